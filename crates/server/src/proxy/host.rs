//! The proxy under one configuration: the shared parts that requests use.
//!
//! Detects that the machine was asleep: connections may be dead then without notice.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use outlast_core::{
    call::desk::Event,
    run::{TokenKey, token},
    store::{Error, News, Store},
    words::{Clock, Entropy},
};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    config::{Config, Observer, Seen, Watch},
    gates::Gates,
    metrics::Metrics,
    plans::Plans,
    registry::Registry,
    remembered::Memories,
    seat::{Compiled, Seats},
    shares::Sharing,
    upstream::{IDLE, Pool},
};
use crate::{hints::Ear, node::Node, wire::refuse::Refusal};

/// Most models of which it is told that another's price stands in for theirs: agents choose the names.
const MOST_STAND_INS: usize = 100;

/// Proxy under one configuration, with the parts that requests share.
///
/// A new configuration makes a new host with the same parts: a call ends under the configuration that it began with.
#[derive(Clone)]
pub struct Host {
    pub config: Config,
    pub store: Arc<dyn Store>,
    pub node: Arc<Node>,
    pub clock: Arc<dyn Clock>,
    pub token_keys: Arc<[TokenKey]>,
    pub pool: Pool,
    pub gates: Arc<Gates>,
    pub plans: Arc<Plans>,
    pub registry: Arc<Registry>,
    pub sharing: Arc<Sharing>,
    pub memories: Arc<Memories>,
    pub seats: Arc<Seats>,
    pub rules: Arc<Compiled>,
    pub metrics: Arc<Metrics>,
    pub watch: Watch,
    nonce: Arc<AtomicU64>,
    drain: Arc<Drain>,
    /// Models of which it was told that another's price stands in for theirs.
    stand_ins: Arc<Mutex<HashSet<String>>>,
    suspends: watch::Sender<u64>,
}

/// State of a drain: whether it has begun, and the number of requests that have no driver yet.
#[derive(Default)]
struct Drain {
    begun: AtomicBool,
    arriving: AtomicUsize,
}

/// Guard of a request that has no driver yet. A drain waits until it is dropped.
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
        let nonce = u64::from_le_bytes(outlast_core::words::clock::random(entropy));
        let pause = config.outage_pause.unwrap_or_default();
        let registry = Registry::new(node.clone(), config.max_unrecorded, pause, nonce);
        let clock = node.clock().clone();
        Ok(Arc::new(Host {
            pool: Pool::new(&config.network, IDLE),
            config,
            memories: Arc::new(Memories::new(store.clone(), clock.clone())),
            store,
            node,
            clock,
            token_keys,
            gates: Arc::default(),
            plans: Arc::default(),
            registry,
            sharing: Arc::default(),
            seats: Arc::default(),
            rules: Arc::default(),
            metrics: Arc::default(),
            watch: Watch(observer),
            nonce: Arc::new(AtomicU64::new(nonce)),
            drain: Arc::default(),
            stand_ins: Arc::default(),
            suspends: watch::Sender::default(),
        }))
    }

    /// Returns a host with another configuration and the same parts. `max_unrecorded` and `network` stay as they were.
    pub fn under(&self, config: Config) -> Arc<Host> {
        Arc::new(Host { config, ..self.clone() })
    }

    /// Begins a drain: from here on new requests are refused.
    pub fn drain(&self) {
        self.drain.begun.store(true, Ordering::SeqCst);
        self.registry.urge();
    }

    pub fn is_draining(&self) -> bool {
        self.drain.begun.load(Ordering::SeqCst)
    }

    /// Counts an arriving request, for which a drain waits until the guard is dropped.
    ///
    /// Call it before [`Host::is_draining`], so that the drain sees every request that was not refused.
    pub fn arrives(&self) -> Arriving {
        self.drain.arriving.fetch_add(1, Ordering::SeqCst);
        Arriving(self.drain.clone())
    }

    /// Returns whether a drain is complete: no request arrives, no call is in flight, no client waits for an answer.
    pub fn is_at_rest(&self) -> bool {
        if self.drain.arriving.load(Ordering::SeqCst) > 0 {
            return false;
        }
        self.registry.len() == (0, 0)
    }

    /// Waits until this process may open new entries. A process that could not renew for a whole lease holds its calls,
    /// because others may have declared it dead.
    ///
    /// Errors: 503 after `store_wait`, and at once if the store's file is gone.
    pub async fn opening(&self) -> Result<(), Refusal> {
        if self.node.may_open() {
            return Ok(());
        }
        self.store.check()?;
        let may_open = tokio::time::timeout(self.config.store_wait, self.node.opening());
        may_open.await.map_err(|_| {
            let waited_s = self.config.store_wait.as_secs_f64();
            let why = format!("it took no heartbeat of this process, and the call was held for {waited_s} s");
            Error::Unavailable { why }.into()
        })
    }

    /// Logs, once for each model, that the run's rule bounds and charges it at twice the price of `dearest`.
    pub fn tell_stand_in(&self, model: &str, dearest: &str) {
        let mut told = self.stand_ins.lock();
        if told.len() < MOST_STAND_INS && told.insert(model.to_owned()) {
            tracing::warn!(
                "{model:?} has no known price: it is bounded and charged at twice the price of {dearest:?}"
            );
        }
    }

    /// Returns a number that no other request of this or any other process has.
    pub fn nonce(&self) -> u64 {
        self.nonce.fetch_add(1, Ordering::Relaxed)
    }

    pub fn saw(&self, seen: Seen) {
        self.watch.saw(seen);
    }

    /// Tells the observer of a refused call: it is the run's news, whatever refuses it.
    pub fn saw_refused(&self, refusal: &Refusal) {
        let message = token::mask(&refusal.to_string());
        self.saw(Seen::Refused { code: refusal.code().into(), message, hint: refusal.hint() });
    }

    pub fn suspends(&self) -> watch::Receiver<u64> {
        self.suspends.subscribe()
    }

    /// Makes the first waiting call of every run ask for admission again, because budget may have become free.
    pub fn wake(&self) {
        self.registry.on(Event::Moved);
    }

    /// Sends a waiting call of each upstream that is away, so that it is probed now.
    pub fn probe(&self) {
        self.registry.on(Event::Probe);
    }

    /// Wakes waiting calls every 150 to 280 ms, for ever: another process may have freed budget. Sooner where the store
    /// gives a hint of that. Also detects suspends.
    pub async fn poll_for_others(self: Arc<Self>) {
        let mut before = Reading::of(self.clock.as_ref());
        let mut ear: Option<Ear> = None;
        loop {
            let jitter = self.nonce().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
            let pause = Duration::from_millis(150 + jitter);
            match &mut ear {
                Some(ear) => drop(ear.pause(pause).await),
                None => tokio::time::sleep(pause).await,
            }
            self.registry.on(Event::Look);
            // Hearing hints takes a connection, which most servers never need.
            if ear.is_none() && self.registry.is_waiting() {
                // A person's raise or decision is an event.
                ear = Some(self.node.hints().ear(News::ROOM | News::EVENTS));
            }
            let now = Reading::of(self.clock.as_ref());
            if before.was_asleep_until(now) {
                self.suspends.send_modify(|n| *n += 1);
            }
            before = now;
        }
    }
}

/// Readings of two clocks at one moment. Only one of the clocks counts the time that the machine sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    boottime_ms: u64,
    monotonic_ms: u64,
}

/// Difference between the clocks above which the machine was asleep: shorter than any provider's idle timeout, longer
/// than the time between the two readings.
const ASLEEP_MS: u64 = 5_000;

impl Reading {
    pub fn of(clock: &dyn Clock) -> Reading {
        Reading { boottime_ms: clock.boottime_ms(), monotonic_ms: clock.monotonic_ms() }
    }

    /// Returns whether the machine was suspended between this reading and the later one, `now`.
    pub fn was_asleep_until(self, now: Reading) -> bool {
        let passed = now.boottime_ms.saturating_sub(self.boottime_ms);
        let awake = now.monotonic_ms.saturating_sub(self.monotonic_ms);
        passed.saturating_sub(awake) > ASLEEP_MS
    }
}

#[cfg(test)]
mod tests {
    use outlast_core::words::{ManualClock, Micros};

    use super::*;

    #[test]
    fn only_time_that_one_clock_alone_counted_was_sleep() {
        let check = |then: &dyn Fn(&ManualClock), asleep: bool| {
            let clock = ManualClock::new(Micros(0));
            let before = Reading::of(&clock);
            then(&clock);
            assert_eq!(before.was_asleep_until(Reading::of(&clock)), asleep);
        };
        check(&|c| c.advance_ms(60_000), false);
        check(&|c| c.suspend_ms(5_000), false);
        check(&|c| c.suspend_ms(5_001), true);
        // The wall clock was set, by an administrator or by NTP.
        check(&|c| c.set(Micros(3_600_000_000)), false);
        check(&|c| c.set(Micros(-3_600_000_000)), false);
    }
}
