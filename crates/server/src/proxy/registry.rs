//! The registry: the desk of this process, and the tasks that carry out its deeds.
//!
//! One lock guards the desk and is never held across I/O. Tasks report their events here, and each resulting deed is
//! put into the inbox of its task under the lock, so that each task gets its deeds in order.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use outlast_core::{
    call::{
        ConnectionId, Desk, Visible, connection,
        desk::{At, Deed, Event, ForClient, ForExchange, Key, Request},
        exchange,
    },
    words::{AttemptNo, Map, RunNo, Seq},
};
use parking_lot::Mutex;

use super::log::{Inbox, Live};
use crate::node::Node;

/// Deed that the desk decided for a request's driver, and the exchange that it concerns (`None`: no exchange).
pub struct Task {
    pub deed: ForClient,
    pub live: Option<Arc<Live>>,
}

/// Desk of one process, which decides about all its calls, with the inboxes of the tasks that carry its decisions out.
pub struct Registry {
    node: Arc<Node>,
    began: Instant,
    next_connection: AtomicU64,
    state: Mutex<State>,
}

struct State {
    desk: Desk,
    drivers: Map<ConnectionId, Driver>,
    lives: Map<Key, Arc<Live>>,
}

struct Driver {
    run: RunNo,
    inbox: Arc<Inbox<Task>>,
}

impl Registry {
    /// Creates a registry that keeps up to `max_unrecorded` bytes of answers in memory while the store cannot record
    /// them, and probes an upstream with an outage at least every `outage_pause`. `first` is random: no two connections to
    /// the servers of a store have one number.
    pub fn new(node: Arc<Node>, max_unrecorded: u64, outage_pause: Duration, first: u64) -> Arc<Registry> {
        let pause_ms = u64::try_from(outage_pause.as_millis()).unwrap_or(u64::MAX);
        let desk = Desk::new(max_unrecorded, pause_ms);
        let state = State { desk, drivers: Map::default(), lives: Map::default() };
        Arc::new_cyclic(|registry: &Weak<Registry>| {
            let registry = registry.clone();
            let received =
                move || registry.upgrade().map_or_else(Vec::new, |all| all.state.lock().desk.received());
            node.receives(Box::new(received));
            Registry {
                node,
                began: Instant::now(),
                next_connection: AtomicU64::new(first >> 1),
                state: Mutex::new(state),
            }
        })
    }

    /// Registers a request. Its driver gets deeds from the returned inbox, until [`Registry::leaves`].
    pub fn arrives(&self, request: Request) -> (ConnectionId, Arc<Inbox<Task>>) {
        let id = ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed));
        let inbox = Arc::new(Inbox::default());
        let driver = Driver { run: request.place.run, inbox: inbox.clone() };
        let mut state = self.state.lock();
        state.drivers.insert(id, driver);
        state.on(Event::Arrived(id, request), self.now());
        drop(state);
        (id, inbox)
    }

    /// Removes the driver of a request that is over.
    pub fn leaves(&self, id: ConnectionId) {
        self.state.lock().drivers.remove(&id);
    }

    pub fn on(&self, event: Event) {
        let mut state = self.state.lock();
        // Read under the lock, so that the desk's time never goes back.
        state.on(event, self.now());
    }

    pub fn client(&self, id: ConnectionId, event: connection::Event) {
        self.on(Event::Client(id, event));
    }

    pub fn exchange(&self, key: Key, event: exchange::Event) {
        self.on(Event::Exchange(key, event));
    }

    /// Returns the requests and tokens that count against the rate of an upstream now.
    pub fn spent(&self, upstream: &str) -> (u64, u64) {
        let state = self.state.lock();
        state.desk.spent(upstream, self.now().now_ms)
    }

    /// Forgets the errors noted for an attempt that has ended: no client retries its calls.
    pub fn forget(&self, run: RunNo, attempt: AttemptNo) {
        self.state.lock().desk.forget(run, attempt);
    }

    /// Returns whether an answer waits in memory because the store cannot record it.
    pub fn is_stuck(&self) -> bool {
        self.state.lock().desk.is_stuck()
    }

    /// Returns whether a call waits for room.
    pub fn is_waiting(&self) -> bool {
        self.state.lock().desk.is_waiting()
    }

    /// Returns whether at most one client and one call are here. The thread may then do the store's work itself: no
    /// other request has to wait for it, and none could share its commit.
    pub fn is_alone(&self) -> bool {
        let (clients, calls) = self.len();
        clients <= 1 && calls <= 1
    }

    /// Returns the number of requests that have a driver, and the number of calls in flight.
    pub fn len(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.drivers.len(), state.lives.len())
    }

    /// Returns the part of an answer under way that its clients may see; `None` for a call that is not under way here.
    pub fn visible(&self, key: Key) -> Option<Visible> {
        self.state.lock().desk.visible(key)
    }

    /// Returns a call that is under way in this process; `None` if it is not.
    pub fn live(&self, key: Key) -> Option<Arc<Live>> {
        self.state.lock().lives.get(&key).cloned()
    }

    /// Returns the part of an unfinished answer that clients may see; `None` if the call is not under way
    /// here.
    pub fn said(&self, key: Key) -> Option<Vec<u8>> {
        let (visible, live) = {
            let state = self.state.lock();
            (state.desk.visible(key)?, state.lives.get(&key)?.clone())
        };
        let said = live.log.lock().visible_from(visible, 0).to_vec();
        Some(said)
    }

    /// Notes that this process is about to end, which all answers under way hold up.
    pub fn urge(&self) {
        self.state.lock().lives.values().for_each(|live| live.urged.notify_one());
    }

    /// Returns all bytes received so far of a run's unfinished answers, by entry, including those held back
    /// from clients.
    pub fn so_far(&self, run: RunNo) -> HashMap<Seq, Vec<u8>> {
        let lives: Vec<Arc<Live>> =
            self.state.lock().lives.values().filter(|live| live.key().0 == run).cloned().collect();
        lives.into_iter().map(|live| (live.seq(), live.log.lock().frames.bytes().to_vec())).collect()
    }

    fn now(&self) -> At {
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        At { now_ms, instance: self.node.instance() }
    }
}

impl State {
    fn on(&mut self, event: Event, at: At) {
        for deed in self.desk.on(event, at) {
            match deed {
                Deed::Client(id, deed) => self.for_client(id, deed),
                Deed::Exchange(key, deed) => {
                    let live = match deed {
                        ForExchange::Over => self.lives.remove(&key),
                        _ => self.lives.get(&key).cloned(),
                    };
                    live.into_iter().for_each(|live| live.inbox.push(deed.clone(), |_| false));
                }
            }
        }
    }

    fn for_client(&mut self, id: ConnectionId, deed: ForClient) {
        let Some(Driver { run, inbox }) = self.drivers.get(&id) else { return };
        let live = match deed {
            ForClient::Open { opening, .. } | ForClient::Drop(opening) => {
                let live = Live::new(opening);
                self.lives.insert(live.key(), live.clone());
                Some(live)
            }
            ForClient::Attach(seq) => {
                let live = self.lives.get(&(*run, seq)).cloned();
                live.inspect(|live| live.urged.notify_one())
            }
            _ => None,
        };
        let sends = |deed: &ForClient| matches!(deed, ForClient::Send(_));
        let is_send = sends(&deed);
        // Only the newest `Send` counts: a slow client gets all that is visible by then.
        inbox.push(Task { deed, live }, |last| is_send && sends(&last.deed));
    }
}
