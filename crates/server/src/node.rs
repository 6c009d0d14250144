//! This process on the store: its instance, its heartbeat, and the verdict on others.
//!
//! What is decided stands in [`Membership`]; here it is read, asked and waited for.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use outlast_core::{
    call::{
        Membership,
        membership::{HEARTBEAT_MS, Inquest, goodbye},
    },
    engine::{
        self,
        run::{
            declare_dead::Swept,
            register::Register,
            renew::{Active, Pulse, Renew},
        },
    },
    run::instance::Identity,
    store::{Ask as _, Durability, Error, Store},
    words::{clock::Clock, id::InstanceNo},
};

pub use outlast_core::call::membership::LEASE_MS;

/// How often the one heartbeat of a process is renewed.
pub const HEARTBEAT: Duration = Duration::from_millis(HEARTBEAT_MS);

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
    /// Its number now, or its last one while it registers anew: every call reads it.
    instance: AtomicI64,
    registering: tokio::sync::Mutex<()>,
    membership: Mutex<Membership>,
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
        let (registering, membership) = (tokio::sync::Mutex::default(), Mutex::default());
        let node = Node { store, clock, census, identity, instance, registering, membership };
        node.membership().registered(no, node.now_ms());
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
    /// Declared dead (a suspended machine, a stopped process), or after a commit in doubt, it registers anew and says
    /// so with `InstanceDead`: what it drove has to be claimed again.
    pub async fn renew(&self, active: Vec<Active>) -> Result<Vec<Pulse>, Error> {
        let instance = self.instance();
        let mut renewed = Err(engine::Error::InstanceDead.into());
        if self.is_registered() {
            renewed = self.store.ask(Renew { instance, active }, Durability::Committed).await;
            match &renewed {
                Ok(_) => self.membership().renewed(self.now_ms()),
                Err(e) => self.membership().failed(instance, e),
            }
        }
        if !self.is_registered() {
            self.register_anew(instance).await?;
            return Err(engine::Error::InstanceDead.into());
        }
        self.farewell().await?;
        renewed
    }

    /// Whether the store took a heartbeat within the last lease. Asks nobody: a probe costs no write.
    pub fn is_writing(&self) -> bool {
        self.membership().is_writing(self.now_ms())
    }

    /// An operation of `instance` failed so that it cannot go on under that number: it was declared dead, or a commit of
    /// it is in doubt. It goes on under another one, at the latest with its next heartbeat.
    pub async fn goes_on_after(&self, why: &Error, instance: InstanceNo) -> Result<(), Error> {
        self.membership().failed(instance, why);
        self.register_anew(instance).await
    }

    /// Registers again, unless somebody did meanwhile.
    pub async fn register_anew(&self, dead: InstanceNo) -> Result<(), Error> {
        let _one_by_one = self.registering.lock().await;
        if self.instance() != dead {
            return Ok(());
        }
        let register = Register { identity: self.identity.clone() };
        let no = self.store.ask(register, Durability::Synced).await?;
        self.instance.store(no.0, Ordering::Release);
        self.membership().registered(no, self.now_ms());
        self.farewell().await
    }

    /// Declares an instance of ours left whose open entries nobody knows any more.
    async fn farewell(&self) -> Result<(), Error> {
        let goodbye = self.membership().farewell(|no| self.store.instance(no))?;
        match goodbye {
            Some(goodbye) => moved(self.store.ask(goodbye, Durability::Synced).await).map(drop),
            None => Ok(()),
        }
    }

    /// Declares dead who is certainly gone, or was not seen to renew for a whole lease.
    pub fn sweep(&self) -> Result<Vec<Swept>, Error> {
        let live = self.store.live_instances()?;
        let is_gone = |who: &Identity| self.census.is_gone(who);
        let verdicts = self.membership().verdicts(&live, is_gone, self.now_ms());
        let mut swept = Vec::new();
        for verdict in verdicts {
            swept.extend(moved(self.store.ask(verdict, Durability::Synced).wait())?);
        }
        Ok(swept)
    }

    /// Waits until all are judged of whom only their silence can tell (those of other containers and
    /// hosts): each was seen to renew, or its lease is over and it is declared dead.
    ///
    /// Blocks for little more than a lease at most, and not at all where there is nobody of that kind.
    pub fn await_verdicts(&self) -> Result<(), Error> {
        let mut inquest = Inquest::new(self.now_ms());
        loop {
            self.sweep()?;
            let (me, live) = (self.instance(), self.store.live_instances()?);
            if inquest.is_over(me, &live, |who| self.census.is_gone(who), self.now_ms()) {
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
            let row = self.store.instance(self.instance())?;
            let Some(goodbye) = row.as_ref().and_then(goodbye) else { return Ok(()) };
            // A renewal of our own may be on its way.
            if moved(self.store.ask(goodbye, Durability::Synced).wait())?.is_some() {
                return Ok(());
            }
        }
    }

    /// Heartbeats and sweeps for ever: for a server, which drives no attempt itself.
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

    fn is_registered(&self) -> bool {
        self.membership().instance().is_some()
    }

    fn membership(&self) -> MutexGuard<'_, Membership> {
        self.membership.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }
}

/// A verdict on somebody who has renewed meanwhile is none.
fn moved(verdict: Result<Swept, Error>) -> Result<Option<Swept>, Error> {
    match verdict {
        Err(Error::Engine(engine::Error::HeartbeatMoved { .. })) => Ok(None),
        other => other.map(Some),
    }
}
