//! This process on the store: its instance, its heartbeat, and the verdict on others.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use outlast_core::{
    engine::{
        self,
        op::{Durability, Pulse, Swept},
        run::{
            declare_dead::DeclareDead,
            register::Register,
            renew::{Active, Renew},
        },
    },
    run::instance::{Identity, Instance},
    store::{Ask as _, Error, Store},
    words::{clock::Clock, id::InstanceNo},
};

/// How often the one heartbeat of a process is renewed.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// Who was not seen to renew for this long, by the observer's own monotonic clock, is dead.
pub const LEASE_MS: u64 = 5_000;

/// What can be known at once of another process: on the same boot and in the same pid namespace its
/// pid and start time, on the same host whether its boot is over.
pub trait Census: Send + Sync {
    /// `Some(true)`: it is certainly gone. `Some(false)`: it certainly lives. `None`: wait out its lease.
    fn is_gone(&self, identity: &Identity) -> Option<bool>;
}

/// A registered process.
pub struct Node {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    census: Arc<dyn Census>,
    identity: Identity,
    instance: AtomicI64,
    /// When a heartbeat was last written, by our monotonic clock.
    written_ms: AtomicU64,
    /// Of others: the heartbeat seen, and since when by our monotonic clock.
    seen: Mutex<HashMap<InstanceNo, (i64, u64)>>,
}

impl Node {
    /// Registers this process and sweeps what the dead left open. Blocks on the store.
    pub fn join(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        census: Arc<dyn Census>,
        identity: Identity,
    ) -> Result<Arc<Node>, Error> {
        let no = store.ask(Register { identity: identity.clone() }, Durability::Synced).wait()?;
        let instance = AtomicI64::new(no.0);
        let written_ms = AtomicU64::new(clock.monotonic_ms());
        let node = Node { store, clock, census, identity, instance, written_ms, seen: Mutex::default() };
        node.sweep()?;
        Ok(Arc::new(node))
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Its number now: another one after it was declared dead.
    pub fn instance(&self) -> InstanceNo {
        InstanceNo(self.instance.load(Ordering::Acquire))
    }

    /// Renews the heartbeat, posts active time, and learns what its runs are told.
    ///
    /// Declared dead (a suspended machine, a stopped process), it registers anew and says so with
    /// `InstanceDead`: what it drove has to be claimed again.
    pub async fn renew(&self, active: Vec<Active>) -> Result<Vec<Pulse>, Error> {
        let instance = self.instance();
        let renewed = self.store.ask(Renew { instance, active }, Durability::Committed).await;
        if renewed.is_ok() {
            self.written_ms.store(self.clock.monotonic_ms(), Ordering::Release);
        }
        if let Err(Error::Engine(engine::Error::InstanceDead)) = &renewed {
            self.register_anew(instance).await?;
        }
        renewed
    }

    /// Whether the store took a heartbeat within the last lease. Asks nobody: a probe costs no write.
    pub fn is_writing(&self) -> bool {
        let written = self.written_ms.load(Ordering::Acquire);
        self.clock.monotonic_ms().saturating_sub(written) < LEASE_MS
    }

    /// Registers again, unless somebody did meanwhile.
    pub async fn register_anew(&self, dead: InstanceNo) -> Result<(), Error> {
        if self.instance() != dead {
            return Ok(());
        }
        let register = Register { identity: self.identity.clone() };
        let no = self.store.ask(register, Durability::Synced).await?;
        self.instance.store(no.0, Ordering::Release);
        Ok(())
    }

    /// Declares dead who is certainly gone, or was not seen to renew for a whole lease.
    pub fn sweep(&self) -> Result<Vec<Swept>, Error> {
        let me = self.instance();
        let now = self.clock.monotonic_ms();
        let others: Vec<Instance> = self.store.live_instances()?.into_iter().filter(|i| i.no != me).collect();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|no, _| others.iter().any(|i| i.no == *no));
        let mut verdicts = Vec::new();
        for other in others {
            let (heartbeat, since) = *seen
                .entry(other.no)
                .and_modify(|s| {
                    if s.0 != other.heartbeat {
                        *s = (other.heartbeat, now);
                    }
                })
                .or_insert((other.heartbeat, now));
            let gone = match self.census.is_gone(&other.identity) {
                Some(gone) => gone,
                None => now.saturating_sub(since) >= LEASE_MS,
            };
            if gone {
                verdicts.push(DeclareDead { instance: other.no, heartbeat_seen: heartbeat, left: false });
            }
        }
        drop(seen);
        let mut swept = Vec::new();
        for verdict in verdicts {
            match self.store.ask(verdict, Durability::Synced).wait() {
                Ok(one) => swept.push(one),
                Err(Error::Engine(engine::Error::HeartbeatMoved { .. })) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(swept)
    }

    /// Waits until all are judged of whom only their silence can tell (those of other containers and
    /// hosts): each was seen to renew, or its lease is over and it is declared dead.
    ///
    /// Blocks for little more than a lease at most, and not at all where there is nobody of that kind.
    pub fn await_verdicts(&self) -> Result<(), Error> {
        let longest = LEASE_MS + 2 * HEARTBEAT.as_millis() as u64;
        let began = self.clock.monotonic_ms();
        let mut first_seen: HashMap<InstanceNo, i64> = HashMap::new();
        loop {
            self.sweep()?;
            let me = self.instance();
            let mut all_judged = true;
            for other in self.store.live_instances()? {
                if other.no != me && self.census.is_gone(&other.identity).is_none() {
                    all_judged &= *first_seen.entry(other.no).or_insert(other.heartbeat) != other.heartbeat;
                }
            }
            if all_judged || self.clock.monotonic_ms().saturating_sub(began) > longest {
                return Ok(());
            }
            // Nobody is to take us for dead meanwhile.
            let renew = Renew { instance: me, active: Vec::new() };
            self.store.ask(renew, Durability::Committed).wait()?;
            std::thread::sleep(HEARTBEAT / 4);
        }
    }

    /// Says goodbye: what is still open becomes unknown at once, and nobody waits out a lease.
    pub fn leave(&self) -> Result<(), Error> {
        loop {
            let no = self.instance();
            let Some(me) = self.store.instance(no)? else { return Ok(()) };
            let goodbye = DeclareDead { instance: no, heartbeat_seen: me.heartbeat, left: true };
            match self.store.ask(goodbye, Durability::Synced).wait() {
                // A renewal of our own was on its way.
                Err(Error::Engine(engine::Error::HeartbeatMoved { .. })) => {}
                left => return left.map(drop),
            }
        }
    }

    /// Heartbeats and sweeps until `stop` resolves: for a server, which drives no attempt itself.
    pub async fn keep_alive(self: Arc<Self>) {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            if let Err(e) = self.renew(Vec::new()).await {
                tracing::warn!(error = %e, "heartbeat not renewed");
            }
            let node = self.clone();
            match tokio::task::spawn_blocking(move || node.sweep()).await {
                Ok(Err(e)) => tracing::warn!(error = %e, "sweep failed"),
                Ok(Ok(swept)) => {
                    for one in swept {
                        tracing::info!(?one, "swept what a dead process left");
                    }
                }
                Err(_) => return,
            }
        }
    }
}
