//! What the proxy keeps in memory: the registries of the call machine, runs' bases, seats.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use outlast_core::{
    call::{ConnectionId, rate::Rate},
    envelope::unit::Limits,
    price::PriceTable,
    run::{Policy, masks::Masks, status::Status, token::TokenKey},
    store::{Error, Store},
    words::{
        clock::{Clock, Entropy},
        id::{AttemptNo, Micros, RunId, RunNo, Seq},
    },
};
use tokio::sync::watch;

use super::{
    call::{Call, Seat},
    drive::Signal,
    gates::Gates,
    live::Live,
    rates::Rates,
    registry::Registry,
    remembered::RunMemory,
    rules,
    sleep::Reading,
    unrecorded::Unrecorded,
    upstream::{Pool, Providers},
};
use crate::{door::metrics::Metrics, node::Node, wire::who::Access};

/// How the proxy is set up.
#[derive(Clone)]
pub struct Config {
    pub access: Access,
    pub providers: Providers,
    pub prices: PriceTable,
    pub price_hash: Arc<str>,
    /// Of runs that a header names first.
    pub default_limits: Limits,
    pub default_policy: Policy,
    pub admit_wait: Duration,
    pub settle_wait: Duration,
    pub first_byte_timeout: Duration,
    pub idle_timeout: Duration,
    /// Bytes of a request, as it came and decoded.
    pub max_body: usize,
    /// Bytes of an answer that is no stream.
    pub max_answer: usize,
    /// Bytes of answers kept in memory, in all, while they cannot be recorded.
    pub max_unrecorded: u64,
    /// After a suspend an upstream that stays silent for this long is given up.
    pub silence_after_suspend: Duration,
    /// How many calls may be on their way to one upstream at once, over all runs of this server.
    pub upstream_concurrency: Option<usize>,
    /// How many requests and tokens a minute one upstream is asked, over all runs of this server, unless it has a rate
    /// of its own.
    pub upstream_rate: Rate,
    /// How often a call is sent again at most, after its upstream refused it for the moment or was not reached, and
    /// within `admit_wait`. Not for clients that do so themselves.
    pub upstream_retries: u32,
    /// What does not count in the requests of runs that a header names first.
    pub masks: Option<Masks>,
}

/// What a supervisor may watch.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Request,
    /// A new call is on its way.
    Opened {
        seq: Seq,
    },
    /// The first bytes of a stream went to a client.
    Streaming {
        seq: Seq,
    },
    Settled {
        seq: Seq,
        status: Status,
        /// With a 2xx.
        answered: bool,
    },
    /// The upstream refuses whatever is asked until then: said after its `Settled`, before the client hears.
    Limited {
        seq: Seq,
        until: Micros,
    },
    Replayed {
        seq: Seq,
    },
    Refused {
        code: String,
        message: String,
        hint: Option<String>,
    },
    Diverged {
        untaken: i64,
    },
    /// A CLI agent named its session. `agent` is what it was told to send in `X-Outlast-Agent`.
    Session {
        run: RunNo,
        attempt: AttemptNo,
        id: String,
        agent: Option<String>,
    },
}

/// Told of everything, at once and on the proxy's own threads: it must not block.
pub type Observer = Arc<dyn Fn(&Seen) + Send + Sync>;

/// The proxy under one configuration. A new one begins beside it, on the same memory: a call ends under the
/// configuration that it began with.
pub struct Host {
    pub config: Config,
    memory: Arc<Memory>,
}

impl Deref for Host {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.memory
    }
}

/// The proxy's memory.
pub struct Memory {
    pub store: Arc<dyn Store>,
    pub node: Arc<Node>,
    pub clock: Arc<dyn Clock>,
    pub pool: Pool,
    pub metrics: Metrics,
    pub gates: Gates,
    pub rates: Arc<Rates>,
    draining: AtomicBool,
    arriving: AtomicUsize,
    pub token_keys: Vec<TokenKey>,
    registry: Mutex<Registry>,
    pub(super) runs: Mutex<HashMap<RunNo, Arc<RunMemory>>>,
    pub(super) seats: Mutex<HashMap<(RunId, Option<String>), Seat>>,
    tokens: Mutex<HashMap<(RunNo, AttemptNo), Seat>>,
    pub(super) rules: Mutex<rules::Compiled>,
    next_connection: AtomicU64,
    nonce: AtomicU64,
    /// While there are such, new calls are refused.
    pub unrecorded: Unrecorded,
    suspends: watch::Sender<u64>,
    observer: Option<Observer>,
}

/// A request that is not with its driver yet.
pub struct Arriving(Arc<Host>);

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.arriving.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Host {
    pub fn new(
        node: Arc<Node>,
        entropy: &dyn Entropy,
        config: Config,
        observer: Option<Observer>,
    ) -> Result<Arc<Host>, Error> {
        let store = node.store().clone();
        let token_keys = store.token_keys()?;
        let unrecorded = Unrecorded::new(config.max_unrecorded);
        let nonce = u64::from_le_bytes(outlast_core::words::clock::random(entropy));
        let memory = Memory {
            clock: node.clock().clone(),
            store,
            node,
            pool: Pool::new(),
            metrics: Metrics::default(),
            gates: Gates::default(),
            rates: Arc::default(),
            draining: AtomicBool::new(false),
            arriving: AtomicUsize::new(0),
            token_keys,
            registry: Mutex::default(),
            runs: Mutex::default(),
            seats: Mutex::default(),
            tokens: Mutex::default(),
            rules: Mutex::default(),
            next_connection: AtomicU64::new(1),
            nonce: AtomicU64::new(nonce),
            unrecorded,
            suspends: watch::Sender::default(),
            observer,
        };
        Ok(Arc::new(Host { config, memory: Arc::new(memory) }))
    }

    /// The same under another configuration. What bounds memory in all stays as it was.
    pub fn under(&self, config: Config) -> Arc<Host> {
        Arc::new(Host { config, memory: self.memory.clone() })
    }

    /// From here on nothing new is begun.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// A request comes in: until this is dropped it is somebody a drain waits for. Taken before the look at
    /// [`Host::is_draining`], so that whoever was not refused is seen.
    pub fn arrives(self: &Arc<Host>) -> Arriving {
        self.arriving.fetch_add(1, Ordering::SeqCst);
        Arriving(self.clone())
    }

    /// Whether nobody waits for anything any more: no request comes in, no call is on its way, and no client
    /// waits for its answer.
    pub fn is_at_rest(&self) -> bool {
        if self.arriving.load(Ordering::SeqCst) > 0 {
            return false;
        }
        let registry = self.registry();
        registry.exchanges.is_empty() && registry.inboxes.is_empty()
    }

    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn connection_id(&self) -> ConnectionId {
        ConnectionId(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    /// A number that no other request of any process has.
    pub fn nonce(&self) -> u64 {
        self.nonce.fetch_add(1, Ordering::Relaxed)
    }

    pub fn saw(&self, seen: Seen) {
        if let Some(observer) = &self.observer {
            observer(&seen);
        }
    }

    pub fn suspends(&self) -> watch::Receiver<u64> {
        self.suspends.subscribe()
    }

    /// The machine was asleep.
    fn note_suspend(&self) {
        self.suspends.send_modify(|n| *n += 1);
    }

    /// Room may have come back: every run's first waiter decides again.
    pub fn wake(&self) {
        let registry = self.registry();
        registry.tell(registry.waiters.wake(), Signal::MayRetry);
    }

    /// Wakes waiters now and then: room can come back in another process, which tells nobody here.
    pub async fn poll_for_others(self: Arc<Self>) {
        let mut before = Reading::of(self.clock.as_ref());
        loop {
            let jitter = self.nonce().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
            tokio::time::sleep(Duration::from_millis(150 + jitter)).await;
            {
                let registry = self.registry();
                let firsts: Vec<ConnectionId> = registry.waiters.firsts().collect();
                registry.tell(firsts, Signal::MayRetry);
            }
            let now = Reading::of(self.clock.as_ref());
            if before.was_asleep_until(now) {
                self.note_suspend();
            }
            before = now;
        }
    }

    /// An exchange is settled, or will never be: connections that ask for it look at the store.
    pub fn exchange_over(&self, call: &Call, live: &Live) {
        self.call_ends(&call.seat);
        self.registry().exchanges.remove(&(call.seat.run, live.seq));
        self.wake();
    }

    /// The seat of a run token, looked up once.
    pub(super) fn token_seat(&self, run: RunNo, attempt: AttemptNo) -> Option<Seat> {
        lock(&self.tokens).get(&(run, attempt)).cloned()
    }

    pub(super) fn keep_token_seat(&self, seat: Seat) {
        let mut tokens = lock(&self.tokens);
        // A new attempt has ended the one before it in its slot: nobody retries that one's errors.
        let ended = |s: &Seat| s.run == seat.run && s.slot == seat.slot && s.attempt < seat.attempt;
        for (_, ended) in tokens.extract_if(|_, s| ended(s)) {
            self.registry().taken.forget(ended.run, ended.attempt);
        }
        if tokens.len() > 4096 {
            tokens.clear();
        }
        tokens.insert((seat.run, seat.attempt), seat);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
