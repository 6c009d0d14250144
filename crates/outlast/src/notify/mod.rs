//! Telling a person what happens: messages of events, delivered at least once.
//!
//! Each endpoint has a row in the store: how far its deliveries have come, what failed, and which process delivers. A
//! process takes the place of one that is dead or has left, and goes on where that stopped. A message's id is that of its
//! event and endpoint, so that whoever gets one twice can tell.

mod command;
pub mod message;
pub mod topic;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use outlast_core::{
    engine::notify::PutDelivery,
    events::{
        Event, EventQuery, Mark,
        delivery::{Deed, Delivery, Letter},
    },
    run::instance::Life,
    store::{self, Ask as _, Durability, Store},
    words::id::{InstanceNo, Micros, RunId, RunNo},
};
use outlast_server::{door::Network, node::Node, notify::Poster};

use crate::settings::notify::{Endpoint, Notify, Way};
use message::Message;
use topic::Topic;

/// Interval between two looks for new events.
const LOOK: Duration = Duration::from_secs(1);

/// Longest time for which a process that is about to end goes on delivering.
const LAST: Duration = Duration::from_secs(10);

/// Most events that are looked at between two commits of an endpoint's standing. After a kill, at most these are looked
/// at again.
const BATCH: usize = 20;

/// Most failed messages that are sent again between two commits.
const AGAIN: usize = 5;

/// Most attempts to add deeds to a stored standing that other writers keep changing.
const MOST_NOTES: usize = 100;

/// Number of failed tries after which a message is given up: about two days.
const MOST_TRIES: u32 = 60;

/// First pause after a failure, in milliseconds, and the longest. It doubles with each try.
const FIRST_PAUSE_MS: i64 = 5_000;
const LONGEST_PAUSE_MS: i64 = 3_600_000;

/// Deliverer of messages to the configured endpoints, one in each process.
pub struct Deliverer {
    store: Arc<dyn Store>,
    /// Function that returns the instance number of this process, which changes when the process was declared
    /// dead and registered again.
    me: Box<dyn Fn() -> InstanceNo + Send + Sync>,
    notify: Notify,
    poster: Poster,
}

/// Running tasks of a deliverer, which end with [`Delivering::finish`].
pub struct Delivering {
    deliverer: Arc<Deliverer>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Delivering {
    /// Starts to deliver messages and heartbeats; `None` if `[notify]` configures nothing.
    pub fn start(
        notify: Notify,
        network: &Network,
        store: Arc<dyn Store>,
        node: Arc<Node>,
    ) -> Option<Delivering> {
        if notify == Notify::default() {
            return None;
        }
        let deliverer = Arc::new(Deliverer::new(store, notify, network, move || node.instance()));
        let delivering = deliverer.clone();
        let mut tasks = vec![tokio::spawn(async move {
            loop {
                while delivering.round().await {}
                tokio::time::sleep(LOOK).await;
            }
        })];
        if let Some((to, every_ms)) = deliverer.notify.heartbeat.clone() {
            let poster = deliverer.poster.clone();
            tasks.push(tokio::spawn(async move {
                let every = Duration::from_millis(u64::try_from(every_ms).unwrap_or(60_000));
                loop {
                    if let Err(e) = poster.get(&to).await {
                        tracing::warn!("the heartbeat of {}: {e}", to.shown());
                    }
                    tokio::time::sleep(every).await;
                }
            }));
        }
        Some(Delivering { deliverer, tasks })
    }

    /// Stops the tasks and delivers what is still due, for at most a few seconds. The next process on the store
    /// delivers the rest.
    pub async fn finish(self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
        for task in self.tasks {
            let _ = task.await;
        }
        let all = async { while self.deliverer.round().await {} };
        if tokio::time::timeout(LAST, all).await.is_err() {
            tracing::warn!(
                "messages are left to be delivered by the next process of Outlast's on this store"
            );
        }
    }
}

impl Deliverer {
    fn new(
        store: Arc<dyn Store>,
        notify: Notify,
        network: &Network,
        me: impl Fn() -> InstanceNo + Send + Sync + 'static,
    ) -> Deliverer {
        Deliverer { store, me: Box::new(me), notify, poster: Poster::new(network) }
    }

    /// Delivers the messages that are due to each endpoint. Returns whether more may be due at once.
    async fn round(&self) -> bool {
        let mut more = false;
        for endpoint in &self.notify.endpoints {
            match self.to(endpoint).await {
                Ok(again) => more |= again,
                // The store is away: the next round asks again.
                Err(e) => tracing::warn!("messages to {}: {e}", endpoint.name),
            }
        }
        more
    }

    /// Delivers the messages that are due to one endpoint, unless another process does. Returns whether more
    /// may be due.
    async fn to(&self, endpoint: &Endpoint) -> Result<bool, store::Error> {
        let me = (self.me)();
        let (name, run) = (endpoint.name.clone(), endpoint.run);
        let Some(mut delivery) = self.read(move |store| held(store, &name, run, me)).await? else {
            return Ok(false);
        };
        if delivery.holder != Some(me) {
            delivery.holder = Some(me);
            if !self.put(&mut delivery).await? {
                return Ok(false);
            }
        }
        let now = self.read(|store| store.now()).await?;
        let due: Vec<Letter> =
            delivery.waiting.iter().filter(|letter| letter.next_at <= now).take(AGAIN).cloned().collect();
        let wanted = EventQuery { run: endpoint.run, after: delivery.cursor, limit: BATCH };
        let events = self.read(move |store| store.events(&wanted)).await?;
        if due.is_empty() && events.is_empty() {
            return Ok(false);
        }
        let more = events.len() == BATCH || due.len() == AGAIN;
        let mut deeds = Deeds { delivery, done: Vec::new() };
        for letter in due {
            let event = self.event(&letter).await?;
            let topic = event.as_ref().and_then(Topic::of);
            match event.zip(topic) {
                Some((event, topic)) => {
                    deeds.note(self.deliver(endpoint, &event, topic, letter.tries).await?);
                }
                // Its run was removed since.
                None => deeds.note(Deed::Gone(letter.mark)),
            }
        }
        for event in events {
            deeds.note(Deed::Passed(event.mark));
            let Some(topic) = Topic::of(&event).filter(|topic| endpoint.topics.contains(topic)) else {
                continue;
            };
            // While the endpoint is down, a new message waits with those before it.
            match deeds.delivery.waiting.first().map(|first| (first.next_at, first.why.clone())) {
                Some((next_at, why)) if next_at > now => {
                    deeds.note(Deed::Failed(Letter { mark: event.mark, tries: 0, next_at, why }));
                }
                _ => deeds.note(self.deliver(endpoint, &event, topic, 0).await?),
            }
        }
        Ok(self.record(deeds, me).await? && more)
    }

    /// Writes an endpoint's standing with the deeds. If the stored standing was changed meanwhile (by a person's
    /// `retry`), the deeds are added to the changed one, so that no message is sent twice. Returns false if another
    /// process delivers to the endpoint by now.
    async fn record(&self, deeds: Deeds, me: InstanceNo) -> Result<bool, store::Error> {
        let Deeds { mut delivery, done } = deeds;
        for _ in 0..MOST_NOTES {
            if self.put(&mut delivery).await? {
                return Ok(true);
            }
            let name = delivery.name.clone();
            let newer = self.read(move |store| store.deliveries()).await?;
            let Some(newer) = newer.into_iter().find(|d| d.name == name && d.holder == Some(me)) else {
                break;
            };
            delivery = newer;
            done.iter().for_each(|deed| delivery.note(deed.clone(), MOST_TRIES));
        }
        Ok(false)
    }

    /// Sends one message. Returns what became of it.
    async fn deliver(
        &self,
        endpoint: &Endpoint,
        event: &Event,
        topic: Topic,
        tries: u32,
    ) -> Result<Deed, store::Error> {
        let no = event.run;
        let run = self.read(move |store| run_of(store, no)).await?;
        let message = Message::of(event, topic, &endpoint.name, run);
        let now = self.read(|store| store.now()).await?;
        match send(&self.poster, endpoint, &message, now).await {
            Ok(()) => Ok(Deed::Sent(event.mark)),
            Err(why) => {
                tracing::warn!("{}: {} was not delivered: {why}", endpoint.name, message.id);
                let pause = FIRST_PAUSE_MS.saturating_mul(1 << tries.min(16)).min(LONGEST_PAUSE_MS);
                let next_at = now.plus_ms(pause);
                Ok(Deed::Failed(Letter { mark: event.mark, tries: tries + 1, next_at, why }))
            }
        }
    }

    /// Reads the event of a letter again; `None` if it is not kept any more.
    async fn event(&self, letter: &Letter) -> Result<Option<Event>, store::Error> {
        let mark = letter.mark;
        self.read(move |store| {
            let mut after = mark;
            after.no -= 1;
            let found = store.events(&EventQuery { run: None, after, limit: 1 })?;
            Ok(found.into_iter().find(|event| event.mark == mark))
        })
        .await
    }

    /// Stores the state of the deliveries to an endpoint; returns false if another process has changed it
    /// since.
    async fn put(&self, delivery: &mut Delivery) -> Result<bool, store::Error> {
        let put = PutDelivery { delivery: delivery.clone() };
        let written = self.store.ask(put, Durability::Committed).await?;
        delivery.version += 1;
        Ok(written)
    }

    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&dyn Store) -> Result<T, store::Error> + Send + 'static,
    ) -> Result<T, store::Error> {
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || look(&*store)).await.map_err(|_| store::Error::Closed)?
    }
}

/// Standing of an endpoint (how far deliveries to it have come) as it was read, and the deeds since then.
struct Deeds {
    delivery: Delivery,
    done: Vec<Deed>,
}

impl Deeds {
    fn note(&mut self, deed: Deed) {
        self.delivery.note(deed.clone(), MOST_TRIES);
        self.done.push(deed);
    }
}

/// Returns the standing of an endpoint, from which this process goes on delivering; `None` while another living process
/// delivers. A new endpoint gets events from now on or, if it is for one run, all events of that run.
fn held(
    store: &dyn Store,
    name: &str,
    run: Option<RunNo>,
    me: InstanceNo,
) -> Result<Option<Delivery>, store::Error> {
    let Some(delivery) = store.deliveries()?.into_iter().find(|d| d.name == name) else {
        let cursor = if run.is_some() { Mark::default() } else { store.newest_event()? };
        return Ok(Some(Delivery { name: name.to_owned(), cursor, ..Delivery::default() }));
    };
    let Some(holder) = delivery.holder.filter(|holder| *holder != me) else { return Ok(Some(delivery)) };
    let lives = store.instance(holder)?.is_some_and(|instance| instance.life == Life::Live);
    Ok((!lives).then_some(delivery))
}

/// Returns the id and name of a run.
fn run_of(store: &dyn Store, no: Option<RunNo>) -> Result<Option<(RunId, Option<String>)>, store::Error> {
    let view = no.map(|no| store.run(no)).transpose()?.flatten();
    Ok(view.map(|view| (view.run.id, view.spec.name)))
}

/// Sends a message to an endpoint, without another try. The error says why it failed.
pub async fn send(
    poster: &Poster,
    endpoint: &Endpoint,
    message: &Message,
    now: Micros,
) -> Result<(), String> {
    match (&endpoint.way, message.post(endpoint, now)) {
        (Way::Post { to, .. }, Some(post)) => poster.post(to, post).await.map_err(|e| e.to_string()),
        (Way::Command(argv), _) => command::run(argv.clone(), message.json().to_string()).await,
        (Way::Post { .. }, None) => Err("there is no message".into()),
    }
}

/// Returns how far deliveries have come, by endpoint: for the configured endpoints, and for earlier ones that the store
/// still knows.
pub fn standings(store: &dyn Store, notify: &Notify) -> Result<BTreeMap<String, Delivery>, store::Error> {
    let mut all: BTreeMap<String, Delivery> =
        store.deliveries()?.into_iter().map(|d| (d.name.clone(), d)).collect();
    for endpoint in &notify.endpoints {
        all.entry(endpoint.name.clone())
            .or_insert_with(|| Delivery { name: endpoint.name.clone(), ..Delivery::default() });
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
