//! The proxy under one configuration: what its parts share, each by its own noun.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use outlast_core::{
    call::desk::Event,
    run::token::TokenKey,
    store::{Error, Store},
    words::clock::{Clock, Entropy},
};
use tokio::sync::watch;

use super::{
    config::{Config, Observer, Seen, Watch},
    gates::Gates,
    registry::Registry,
    remembered::Memories,
    rules::Compiled,
    seated::Seats,
    sleep::Reading,
    upstream::Pool,
};
use crate::{door::metrics::Metrics, node::Node};

/// The proxy under one configuration. A new one begins beside it, on the same memory: a call ends under the
/// configuration that it began with.
#[derive(Clone)]
pub struct Host {
    pub config: Config,
    pub store: Arc<dyn Store>,
    pub node: Arc<Node>,
    pub clock: Arc<dyn Clock>,
    pub token_keys: Arc<[TokenKey]>,
    pub pool: Pool,
    pub gates: Arc<Gates>,
    pub registry: Arc<Registry>,
    pub memories: Arc<Memories>,
    pub seats: Arc<Seats>,
    pub rules: Arc<Compiled>,
    pub metrics: Arc<Metrics>,
    pub watch: Watch,
    nonce: Arc<AtomicU64>,
    drain: Arc<Drain>,
    suspends: watch::Sender<u64>,
}

/// The end of a server, and the requests that are not with their drivers yet.
#[derive(Default)]
struct Drain {
    begun: AtomicBool,
    arriving: AtomicUsize,
}

/// A request that is not with its driver yet.
pub struct Arriving(Arc<Drain>);

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
        let token_keys = store.token_keys()?.into();
        let registry = Arc::new(Registry::new(node.clone(), config.max_unrecorded));
        let nonce = u64::from_le_bytes(outlast_core::words::clock::random(entropy));
        let clock = node.clock().clone();
        Ok(Arc::new(Host {
            config,
            memories: Arc::new(Memories::new(store.clone(), clock.clone())),
            store,
            node,
            clock,
            token_keys,
            pool: Pool::new(),
            gates: Arc::default(),
            registry,
            seats: Arc::default(),
            rules: Arc::default(),
            metrics: Arc::default(),
            watch: Watch(observer),
            nonce: Arc::new(AtomicU64::new(nonce)),
            drain: Arc::default(),
            suspends: watch::Sender::default(),
        }))
    }

    /// The same under another configuration. What bounds memory in all stays as it was.
    pub fn under(&self, config: Config) -> Arc<Host> {
        Arc::new(Host { config, ..self.clone() })
    }

    /// From here on nothing new is begun.
    pub fn drain(&self) {
        self.drain.begun.store(true, Ordering::SeqCst);
    }

    pub fn is_draining(&self) -> bool {
        self.drain.begun.load(Ordering::SeqCst)
    }

    /// A request comes in: until this is dropped it is somebody a drain waits for. Taken before the look at
    /// [`Host::is_draining`], so that whoever was not refused is seen.
    pub fn arrives(&self) -> Arriving {
        self.drain.arriving.fetch_add(1, Ordering::SeqCst);
        Arriving(self.drain.clone())
    }

    /// Whether nobody waits for anything any more: no request comes in, no call is on its way, and no client
    /// waits for its answer.
    pub fn is_at_rest(&self) -> bool {
        if self.drain.arriving.load(Ordering::SeqCst) > 0 {
            return false;
        }
        self.registry.len() == (0, 0)
    }

    /// A number that no other request of any process has.
    pub fn nonce(&self) -> u64 {
        self.nonce.fetch_add(1, Ordering::Relaxed)
    }

    pub fn saw(&self, seen: Seen) {
        self.watch.saw(seen);
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
        self.registry.on(Event::Moved);
    }

    /// Wakes waiters now and then: room can come back in another process, which tells nobody here.
    pub async fn poll_for_others(self: Arc<Self>) {
        let mut before = Reading::of(self.clock.as_ref());
        loop {
            let jitter = self.nonce().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
            tokio::time::sleep(Duration::from_millis(150 + jitter)).await;
            self.registry.on(Event::Look);
            let now = Reading::of(self.clock.as_ref());
            if before.was_asleep_until(now) {
                self.note_suspend();
            }
            before = now;
        }
    }
}
