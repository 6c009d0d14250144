//! Telling a person what happens: messages of events, delivered at least once.
//!
//! Each endpoint has a row in the store: how far its deliveries have come, what failed, and which process delivers. A
//! process takes the place of one that is dead or has left, and goes on where that stopped. A message's id is that of its
//! event and endpoint, so that whoever gets one twice can tell.

pub mod endpoint;
pub mod message;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use outlast_core::{
    engine::PutDelivery,
    events::{
        Event, EventQuery, Kind, Mark,
        delivery::{Deed, Delivery, Digests, Letter, Waiting},
    },
    run::Life,
    store::{self, Ask as _, Durability, Store},
    words::{InstanceNo, Micros, RunNo},
};
use outlast_server::{door::Network, node::Node, notify::Poster};

use crate::{
    digest::{self, Ground},
    program::{context::Context, say::say},
    render::time,
};
use endpoint::{Endpoint, Notify, Topic, Way};
use message::Message;

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
    ground: Arc<Ground>,
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
        context: &Context,
        network: &Network,
        store: Arc<dyn Store>,
        node: Arc<Node>,
    ) -> Option<Delivering> {
        for (endpoint, variable) in &notify.muted {
            say(&format!("the endpoint {endpoint} is not told: {variable}, its secret, is not set"));
        }
        if notify.endpoints.is_empty() && notify.heartbeat.is_none() {
            return None;
        }
        let ground = Ground::of(context, notify.link.clone());
        let deliverer = Arc::new(Deliverer::new(store, notify, ground, network, move || node.instance()));
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
        ground: Ground,
        network: &Network,
        me: impl Fn() -> InstanceNo + Send + Sync + 'static,
    ) -> Deliverer {
        let (me, ground) = (Box::new(me), Arc::new(ground));
        Deliverer { store, me, notify, ground, poster: Poster::new(network) }
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
        let digested = self.digest(endpoint, delivery.digests, now).await?;
        if due.is_empty() && events.is_empty() && digested.is_none() {
            return Ok(false);
        }
        let more = events.len() == BATCH || due.len() == AGAIN;
        let mut deeds = Deeds { delivery, done: Vec::new() };
        digested.into_iter().for_each(|digests| deeds.note(Deed::Digested(digests)));
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
            if deeds.is_told_already(&event) {
                continue;
            }
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

    /// Sends the digest that is due to an endpoint. Returns how far its digests have come then; `None` if none is due.
    async fn digest(
        &self,
        endpoint: &Endpoint,
        had: Digests,
        now: Micros,
    ) -> Result<Option<Digests>, store::Error> {
        let at = self.notify.digest.filter(|_| endpoint.topics.contains(&Topic::Digest));
        let Some(due) = at.map(|clock| time::last_at(clock, now)) else { return Ok(None) };
        let told = Digests { told_until: due, ..Digests::default() };
        // What was before anybody wanted a digest is not told.
        if had.told_until == Micros(0) {
            return Ok(Some(told));
        }
        if due <= had.told_until || now < had.next_at {
            return Ok(None);
        }
        let (ground, since) = (self.ground.clone(), had.told_until);
        let digest = self.read(move |store| digest::gather(store, &ground, since, due)).await?;
        let message = Message::of_digest(digest, &endpoint.name);
        Ok(Some(match send(&self.poster, endpoint, &message, now).await {
            Ok(()) => told,
            Err(why) => {
                tracing::warn!("{}: {} was not delivered: {why}", endpoint.name, message.id);
                let tries = had.tries + 1;
                match tries < MOST_TRIES {
                    true => Digests { tries, next_at: now.plus_ms(pause_ms(had.tries)), ..had },
                    false => told,
                }
            }
        }))
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
        let run = self.read(move |store| Ok(no.map(|no| store.run(no)).transpose()?.flatten())).await?;
        let message = Message::of(event, topic, &endpoint.name, run.as_ref(), &self.ground);
        let now = self.read(|store| store.now()).await?;
        match send(&self.poster, endpoint, &message, now).await {
            Ok(()) => Ok(Deed::Sent(event.mark)),
            Err(why) => {
                tracing::warn!("{}: {} was not delivered: {why}", endpoint.name, message.id);
                let next_at = now.plus_ms(pause_ms(tries));
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
        outlast_server::state::read(&self.store, look).await
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

    /// Notes who waits for a provider by an event. Returns whether another message has told, or will tell, the same: an
    /// outage and its end are told once, however many runs wait, and what it asks of a person once for each kind of cause.
    fn is_told_already(&mut self, event: &Event) -> bool {
        let Some(run) = event.run else { return false };
        let about = |key: &str| event.about[key].as_str().unwrap_or_default();
        let upstream = || about("upstream").to_owned();
        let waits = |upstream, how| Deed::Waits { upstream, run, how };
        match event.kind {
            Kind::OutageBegan => {
                let waiting =
                    self.delivery.outages.get(about("upstream")).is_some_and(|runs| !runs.is_empty());
                self.note(waits(upstream(), Waiting::Waits));
                if event.about["needs_a_person"] != true {
                    return waiting;
                }
                let asked = self.delivery.asked.get(about("upstream"));
                let was_asked = asked.is_some_and(|codes| codes.contains(about("code")));
                self.note(Deed::Asked { upstream: upstream(), code: about("code").to_owned() });
                was_asked
            }
            Kind::OutageEnded => {
                let knew = self.delivery.upstreams_of(run).contains(about("upstream"));
                self.note(waits(upstream(), Waiting::Over));
                let others_wait = self.delivery.outages.contains_key(about("upstream"));
                if knew && !others_wait {
                    // The end is told now; those that nobody drives hear of it when they are taken up.
                    for run in self.delivery.left.get(about("upstream")).cloned().unwrap_or_default() {
                        self.note(Deed::Waits { upstream: upstream(), run, how: Waiting::Over });
                    }
                }
                others_wait || !knew
            }
            Kind::Status | Kind::RunRemoved => {
                let how = match about("to") {
                    "waiting" => Waiting::Waits,
                    "interrupted" if event.about["by_person"] != true => Waiting::Left,
                    // It waits no longer, and its provider may still be out.
                    _ => Waiting::Over,
                };
                for upstream in self.delivery.upstreams_of(run) {
                    let waited = self.delivery.outages.get(&upstream).is_some_and(|runs| runs.contains(&run));
                    // The provider of a run that waited and goes on has answered, which an event of its own tells.
                    if !(waited && about("to") == "running") {
                        self.note(waits(upstream, how));
                    }
                }
                false
            }
            _ => false,
        }
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

/// Returns the pause after a failed try, in milliseconds. `tries`: failed ones before it.
fn pause_ms(tries: u32) -> i64 {
    FIRST_PAUSE_MS.saturating_mul(1 << tries.min(16)).min(LONGEST_PAUSE_MS)
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
        (Way::Command(argv), _) => endpoint::run_command(argv.clone(), message.json().to_string()).await,
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
