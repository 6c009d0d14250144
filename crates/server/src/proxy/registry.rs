//! The registry: the desk of this process, and the tasks that carry out its deeds.
//!
//! One lock around the desk, held for no I/O. Whatever happens to a request or a call is fed here by whoever sees it,
//! and each deed is put into the inbox of its task before the lock is free: so each task has its deeds in their order.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use outlast_core::{
    call::{
        ConnectionId, Desk, connection,
        desk::{At, Deed, Event, ForClient, ForExchange, Key, Request},
        exchange,
    },
    words::id::{AttemptNo, RunNo},
};

use super::{inbox::Inbox, log::Live};
use crate::node::Node;

/// What a request's driver is to do, and the exchange that it concerns.
pub struct Task {
    pub deed: ForClient,
    pub live: Option<Arc<Live>>,
}

/// The registry of one process.
pub struct Registry {
    node: Arc<Node>,
    began: Instant,
    next_connection: AtomicU64,
    state: Mutex<State>,
}

struct State {
    desk: Desk,
    drivers: HashMap<ConnectionId, Driver>,
    lives: HashMap<Key, Arc<Live>>,
}

struct Driver {
    run: RunNo,
    inbox: Arc<Inbox<Task>>,
}

impl Registry {
    /// A registry that keeps up to `max_unrecorded` bytes of answers that cannot be recorded.
    pub fn new(node: Arc<Node>, max_unrecorded: u64) -> Registry {
        let desk = Desk::new(max_unrecorded);
        let state = State { desk, drivers: HashMap::new(), lives: HashMap::new() };
        let next_connection = AtomicU64::new(1);
        Registry { node, began: Instant::now(), next_connection, state: Mutex::new(state) }
    }

    /// A request came. Its driver finds there what to do, until [`Registry::leaves`].
    pub fn arrives(&self, request: Request) -> (ConnectionId, Arc<Inbox<Task>>) {
        let id = ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed));
        let inbox = Arc::new(Inbox::default());
        let driver = Driver { run: request.place.run, inbox: inbox.clone() };
        let mut state = self.lock();
        state.drivers.insert(id, driver);
        state.on(Event::Arrived(id, request), self.now());
        drop(state);
        (id, inbox)
    }

    /// Its driver is over.
    pub fn leaves(&self, id: ConnectionId) {
        self.lock().drivers.remove(&id);
    }

    pub fn on(&self, event: Event) {
        let mut state = self.lock();
        // Read under the lock, so that the desk's time never goes back.
        state.on(event, self.now());
    }

    pub fn client(&self, id: ConnectionId, event: connection::Event) {
        self.on(Event::Client(id, event));
    }

    pub fn exchange(&self, key: Key, event: exchange::Event) {
        self.on(Event::Exchange(key, event));
    }

    /// The attempt is over: nobody retries its errors.
    pub fn forget(&self, run: RunNo, attempt: AttemptNo) {
        self.lock().desk.forget(run, attempt);
    }

    /// Whether an answer waits to be recorded.
    pub fn is_stuck(&self) -> bool {
        self.lock().desk.is_stuck()
    }

    /// Whether one client is all there is: its thread may do the store's work itself, for nobody else's
    /// request has to wait for it, and none could share its commit.
    pub fn is_alone(&self) -> bool {
        let (clients, calls) = self.len();
        clients <= 1 && calls <= 1
    }

    /// Requests whose clients are served, and calls on their way.
    pub fn len(&self) -> (usize, usize) {
        let state = self.lock();
        (state.drivers.len(), state.lives.len())
    }

    fn now(&self) -> At {
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        At { now_ms, instance: self.node.instance() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
            ForClient::Open { seq, instance, .. } | ForClient::Drop { seq, instance } => {
                let key = (*run, seq);
                let live = Live::new(key, instance);
                self.lives.insert(key, live.clone());
                Some(live)
            }
            ForClient::Attach(seq) => self.lives.get(&(*run, seq)).cloned(),
            _ => None,
        };
        let sends = |deed: &ForClient| matches!(deed, ForClient::Send(_));
        let is_send = sends(&deed);
        // A slow client is told how much is visible, not how it grew.
        inbox.push(Task { deed, live }, |last| is_send && sends(&last.deed));
    }
}
