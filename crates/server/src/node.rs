//! This process as an instance of the store: registration, heartbeat, and the sweep of dead instances.
//!
//! [`Membership`] decides; this file reads the store and the clock, submits the commands and waits.
//!
//! An instance that drives attempts has a [`Beat`]: one renewal a second for all of them, and the orders that it learns by
//! that.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use outlast_core::{
    call::{
        Membership,
        membership::{HEARTBEAT_MS, verdict},
    },
    engine::{self, Active, ActiveTime, DeclareDead, Heir, Pulse, Received, Register, Renew, Swept},
    run::{Identity, Instance},
    store::{Ask as _, Durability, Error, Store},
    words::{AttemptNo, Clock, Entropy, InstanceNo, RunNo, clock::random},
};
use parking_lot::Mutex;
use tokio::sync::{Notify, futures::Notified};

use crate::{
    hints::Hints,
    trouble::{SLOW, Trouble},
};

pub use outlast_core::call::membership::Inquest;

/// Time between two heartbeats of a process.
pub const HEARTBEAT: Duration = Duration::from_millis(HEARTBEAT_MS);

/// Time between two looks at silent instances, for a caller that waits until they are known to be live or dead.
pub const LOOK: Duration = Duration::from_millis(HEARTBEAT_MS / 4);

/// Knowledge about which processes have ended, as far as it is known without waiting for a lease.
///
/// Within the same boot and pid namespace, pid and start time show it; on the same host, the end of the
/// process's boot.
pub trait Census: Send + Sync {
    /// Returns `Some(true)` for a process that has certainly ended, `Some(false)` for one that certainly
    /// lives, and `None` if only its lease can show that.
    fn is_gone(&self, identity: &Identity) -> Option<bool>;
}

/// Source of the answers that connections of this process are receiving.
pub type Receiving = Box<dyn Fn() -> Vec<Received> + Send + Sync>;

/// Process that is registered as an instance of a store.
pub struct Node {
    store: Arc<dyn Store>,
    hints: Arc<Hints>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    census: Arc<dyn Census>,
    identity: Identity,
    /// Current instance number, or the last one while the process registers again. Every call reads it.
    instance: AtomicI64,
    registering: tokio::sync::Mutex<()>,
    membership: Mutex<Membership>,
    /// Answers that this process's connections receive, in the name of its instance.
    receiving: Mutex<Vec<Receiving>>,
    /// Notified when the store has recorded a heartbeat of this process.
    renewed: Notify,
    heartbeats: Trouble,
    sweeps: Trouble,
}

impl Node {
    /// Registers this process, and closes or hands back what dead instances have open. Blocks on the store.
    pub fn join(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        census: Arc<dyn Census>,
        identity: Identity,
    ) -> Result<Arc<Node>, Error> {
        let asked_ms = clock.boottime_ms();
        let no = store.ask(Register { identity: identity.clone() }, Durability::Synced).wait()?;
        let instance = AtomicI64::new(no.0);
        let membership = Mutex::new(Membership::new(store.is_shared()));
        let (registering, renewed) = (tokio::sync::Mutex::default(), Notify::new());
        let (heartbeats, sweeps) = (Trouble::new("heartbeat not renewed"), Trouble::new("sweep failed"));
        let node = Node {
            hints: Hints::new(store.clone()),
            store,
            clock,
            entropy,
            census,
            identity,
            instance,
            registering,
            membership,
            receiving: Mutex::default(),
            renewed,
            heartbeats,
            sweeps,
        };
        node.membership.lock().registered(no, asked_ms);
        node.sweep()?;
        Ok(Arc::new(node))
    }

    /// Registers another instance beside this one, for a `program` that works through this process. Blocks on the store.
    pub fn beside(&self, program: String) -> Result<Arc<Node>, Error> {
        let identity = Identity { program, ..self.identity.clone() };
        let (clock, entropy, census) = (self.clock.clone(), self.entropy.clone(), self.census.clone());
        Node::join(self.store.clone(), clock, entropy, census, identity)
    }

    pub fn entropy(&self) -> &dyn Entropy {
        self.entropy.as_ref()
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns whether the process of `other` is seen to live.
    pub fn sees(&self, other: &Instance) -> bool {
        self.census.is_gone(&other.identity) == Some(false)
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns what this process hears of others.
    pub fn hints(&self) -> &Arc<Hints> {
        &self.hints
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns the current instance number, which changes when the process was declared dead and registered again.
    pub fn instance(&self) -> InstanceNo {
        InstanceNo(self.instance.load(Ordering::Acquire))
    }

    /// Adds a source of answers that connections of this process are receiving. They stay theirs when it goes on as
    /// another instance.
    pub fn receives(&self, receiving: Receiving) {
        self.receiving.lock().push(receiving);
    }

    /// Renews the heartbeat, posts active time, and returns the status and orders of the runs that this process drives.
    ///
    /// Errors: `InstanceDead` when the process was declared dead (a suspended machine, a stopped process), when a clone
    /// of it renews under its number, or when a commit is in doubt. The process has then registered again, and must
    /// claim the runs that it drove again.
    pub async fn renew(&self, active: Vec<Active>) -> Result<Vec<Pulse>, Error> {
        let renewed = self.heartbeats.watch(SLOW, self.try_to_renew(active)).await;
        match &renewed {
            // A verdict is no trouble of the store's.
            Ok(_) | Err(Error::Engine(engine::Error::InstanceDead)) => self.heartbeats.note(None),
            Err(e) => self.heartbeats.note(Some(e)),
        };
        renewed
    }

    async fn try_to_renew(&self, active: Vec<Active>) -> Result<Vec<Pulse>, Error> {
        let instance = self.instance();
        let mut renewed = Err(engine::Error::InstanceDead.into());
        if let Some(renew) = self.renewal(active) {
            let next = renew.next;
            renewed = self.store.ask(renew, Durability::Committed).await;
            self.answered(instance, next, &renewed);
        }
        if !self.is_registered() {
            self.register_anew(instance).await?;
            return Err(engine::Error::InstanceDead.into());
        }
        self.farewell().await?;
        renewed
    }

    fn renewal(&self, active: Vec<Active>) -> Option<Renew> {
        let fresh = u64::from_le_bytes(random(self.entropy.as_ref()));
        self.membership.lock().renewal(active, fresh, self.now_ms())
    }

    /// Records the outcome of a renewal. A renewal whose outcome is in doubt is sent again, which is safe: a
    /// renewal opens nothing.
    fn answered<T>(&self, instance: InstanceNo, next: i64, renewed: &Result<T, Error>) {
        match renewed {
            Ok(_) => {
                self.membership.lock().renewed(next, self.now_ms());
                self.renewed.notify_waiters();
            }
            Err(Error::CommitUnknown { .. }) => {}
            Err(e) => self.membership.lock().failed(instance, e),
        }
    }

    /// Returns whether the process may open new entries: as far as it knows, no other one can have declared it dead.
    pub fn may_open(&self) -> bool {
        self.membership.lock().may_open(self.now_ms())
    }

    /// Returns what ends with the next heartbeat that the store takes from now on.
    pub fn heartbeat(&self) -> Notified<'_> {
        self.renewed.notified()
    }

    /// Waits until the process may open new entries: see [`Node::may_open`].
    pub async fn opening(&self) {
        loop {
            let renewed = self.renewed.notified();
            if self.may_open() {
                return;
            }
            renewed.await;
        }
    }

    /// Returns the time of CLOCK_BOOTTIME, in milliseconds, at which the newest heartbeat that the store took was
    /// submitted.
    pub fn renewed_at_ms(&self) -> u64 {
        self.membership.lock().written_ms()
    }

    /// Returns whether the store took a heartbeat of this process so lately that nobody can have declared it dead.
    /// Reads memory only, so a probe costs no write.
    pub fn is_writing(&self) -> bool {
        self.membership.lock().is_writing(self.now_ms())
    }

    /// Registers the process again after the error `why` ended `instance`: it was declared dead, or a commit is in
    /// doubt.
    ///
    /// If that fails here, the next heartbeat tries again.
    pub async fn goes_on_after(&self, why: &Error, instance: InstanceNo) -> Result<(), Error> {
        self.membership.lock().failed(instance, why);
        self.register_anew(instance).await
    }

    /// Registers this process under a new instance number, because its number `dead` was declared dead. Does nothing if
    /// another task has done so.
    pub async fn register_anew(&self, dead: InstanceNo) -> Result<(), Error> {
        let _one_by_one = self.registering.lock().await;
        if self.instance() != dead {
            return Ok(());
        }
        let register = Register { identity: self.identity.clone() };
        let asked_ms = self.now_ms();
        let no = self.store.ask(register, Durability::Synced).await?;
        self.instance.store(no.0, Ordering::Release);
        self.membership.lock().registered(no, asked_ms);
        self.renewed.notify_waiters();
        self.farewell().await
    }

    /// Closes a former instance of this process whose open entries no task knows any more.
    async fn farewell(&self) -> Result<(), Error> {
        let goodbye = self.membership.lock().farewell(|no| self.store.instance(no))?;
        match goodbye {
            Some(goodbye) => {
                let goodbye = DeclareDead { heir: Some(self.heir()), ..goodbye };
                moved(self.store.ask(goodbye, Durability::Synced).await).map(drop)
            }
            None => Ok(()),
        }
    }

    fn heir(&self) -> Heir {
        let receiving = self.receiving.lock();
        Heir { instance: self.instance(), received: receiving.iter().flat_map(|all| all()).collect() }
    }

    /// Declares other instances dead that are certainly gone, or that did not renew for a whole lease while this
    /// process did, and returns what was closed or handed back. Blocks on the store.
    pub fn sweep(&self) -> Result<Vec<Swept>, Error> {
        let swept = self.try_to_sweep();
        self.sweeps.note(swept.as_ref().err());
        swept
    }

    fn try_to_sweep(&self) -> Result<Vec<Swept>, Error> {
        let live = self.store.live_instances()?;
        let is_gone = |who: &Identity| self.census.is_gone(who);
        let verdicts = self.membership.lock().verdicts(&live, is_gone, self.now_ms());
        let mut swept = Vec::new();
        for verdict in verdicts {
            swept.extend(moved(self.store.ask(verdict, Durability::Synced).wait())?);
        }
        Ok(swept)
    }

    /// Waits until every instance that only its lease can judge (in other containers, on other hosts) has either
    /// renewed or been declared dead.
    ///
    /// Blocks for little more than one lease, and returns at once if there is no such instance.
    pub fn await_verdicts(&self) -> Result<(), Error> {
        let mut inquest = self.inquest();
        while !self.has_judged(&mut inquest)? {
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Begins a wait until silent instances are known to be live or dead. The caller asks [`Node::has_judged`] every
    /// [`LOOK`] until that is so.
    pub fn inquest(&self) -> Inquest {
        Inquest::new(self.now_ms())
    }

    /// Sweeps, and returns whether all silent instances are known to be live or dead, so that the wait is over. Blocks
    /// on the store.
    pub fn has_judged(&self, inquest: &mut Inquest) -> Result<bool, Error> {
        self.sweep()?;
        let live = self.store.live_instances()?;
        if inquest.is_over(&self.membership.lock(), &live, |who| self.census.is_gone(who)) {
            return Ok(true);
        }
        // Silence counts only while this process renews, and others would declare it dead.
        let instance = self.instance();
        if let Some(renew) = self.renewal(Vec::new()) {
            let next = renew.next;
            let renewed = self.store.ask(renew, Durability::Committed).wait();
            self.answered(instance, next, &renewed);
            renewed?;
        }
        Ok(false)
    }

    /// Unregisters the process. Its open entries become `unknown` at once, and no other process waits for its lease.
    pub fn leave(&self) -> Result<(), Error> {
        declare_dead(self.store.as_ref(), self.instance(), true)
    }

    /// Renews the heartbeat and sweeps, without end. For a server, which drives no attempt itself.
    pub async fn keep_alive(self: Arc<Self>) {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            // A failed one is logged, and the next one may succeed.
            let _ = self.renew(Vec::new()).await;
            let node = self.clone();
            match tokio::task::spawn_blocking(move || node.sweep()).await {
                Ok(Err(_)) => {}
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
        self.membership.lock().instance().is_some()
    }

    /// Others count the time that this machine sleeps, so it counts here too.
    fn now_ms(&self) -> u64 {
        self.clock.boottime_ms()
    }
}

/// Declares an instance dead whose process is gone, or that leaves by itself (`left`). Does nothing if it is dead.
pub fn declare_dead(store: &dyn Store, instance: InstanceNo, left: bool) -> Result<(), Error> {
    loop {
        let Some(verdict) = store.instance(instance)?.and_then(|row| verdict(&row, left)) else {
            return Ok(());
        };
        match store.run_verb(verdict, Durability::Synced) {
            // It renewed its heartbeat meanwhile: read it again.
            Err(Error::Engine(engine::Error::HeartbeatMoved { .. })) => {}
            done => return done.map(drop),
        }
    }
}

/// Turns `HeartbeatMoved` into `None`: an instance that has renewed meanwhile is not declared dead.
fn moved(verdict: Result<Swept, Error>) -> Result<Option<Swept>, Error> {
    match verdict {
        Err(Error::Engine(engine::Error::HeartbeatMoved { .. })) => Ok(None),
        other => other.map(Some),
    }
}

/// Attempts that are open under one instance, all of which its heartbeat renews.
#[derive(Default)]
pub struct Beat {
    open: Mutex<HashMap<(RunNo, AttemptNo), Open>>,
}

struct Open {
    instance: InstanceNo,
    /// Measure of the attempt's active time; `None` if a supervisor posts that time.
    active: Option<ActiveTime>,
    pulse: Option<Pulse>,
    lost: bool,
}

outlast_core::named! {
    /// Order to an attempt, according to the last heartbeat. The client of a session reads its name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Word {
        GoOn "go_on",
        /// A person asked the run to stop.
        Stop "stop",
        /// This process was declared dead. Another one may drive the run.
        Lost "lost",
        /// This process could not send a heartbeat for a whole lease. Others may have declared it dead.
        Away "away",
    }
}

impl Beat {
    /// Adds an open attempt to the heartbeat. `driven`: this process counts its active time, and no supervisor does.
    pub fn open(&self, node: &Node, run: RunNo, attempt: AttemptNo, instance: InstanceNo, driven: bool) {
        let active = driven.then(|| ActiveTime::begin(node.clock().monotonic_ms()));
        self.open.lock().insert((run, attempt), Open { instance, active, pulse: None, lost: false });
    }

    /// Removes an attempt from the heartbeat. Returns its active time in milliseconds that was not posted yet.
    pub fn close(&self, node: &Node, run: RunNo, attempt: AttemptNo) -> i64 {
        let now = node.clock().monotonic_ms();
        let open = self.open.lock().remove(&(run, attempt));
        open.and_then(|open| open.active).map_or(0, |mut active| active.take(now))
    }

    pub fn word(&self, node: &Node, run: RunNo, attempt: AttemptNo) -> Word {
        match self.open.lock().get(&(run, attempt)) {
            Some(open) if open.lost => Word::Lost,
            Some(Open { pulse: Some(pulse), .. }) if pulse.stop_requested => Word::Stop,
            _ if !node.may_open() => Word::Away,
            _ => Word::GoOn,
        }
    }

    /// Sends heartbeats until the runtime ends.
    pub async fn go_on(self: Arc<Self>, node: Arc<Node>) {
        let mut sweeps = 0u32;
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            // The next one may succeed: one missed heartbeat decides nothing.
            let _ = self.now(&node).await;
            sweeps = sweeps.wrapping_add(1);
            if sweeps.is_multiple_of(5) {
                let node = node.clone();
                // A failed one is logged, and the next one may succeed.
                let _ = tokio::task::spawn_blocking(move || node.sweep()).await;
            }
        }
    }

    /// Sends a heartbeat, which posts the attempts' active time. Returns what the store says of their runs.
    pub async fn now(&self, node: &Node) -> Result<Vec<Pulse>, Error> {
        let now = node.clock().monotonic_ms();
        let me = node.instance();
        let active: Vec<Active> = self
            .open
            .lock()
            .iter_mut()
            .filter_map(|((run, attempt), open)| {
                // A proxy in this process may have learnt of the verdict first, and registered a new instance.
                open.lost |= open.instance != me;
                let ms = open.active.as_mut()?.take(now);
                (!open.lost).then_some(Active { run: *run, attempt: *attempt, ms })
            })
            .collect();
        let renewed = node.renew(active.clone()).await;
        match &renewed {
            Ok(pulses) => {
                let mut attempts = self.open.lock();
                for pulse in pulses {
                    for ((run, _), open) in attempts.iter_mut() {
                        if *run == pulse.run {
                            open.pulse = Some(pulse.clone());
                        }
                    }
                }
            }
            Err(Error::Engine(engine::Error::InstanceDead)) => {
                self.open.lock().values_mut().for_each(|open| open.lost = true);
            }
            // What is in doubt may have been posted.
            Err(Error::CommitUnknown { .. }) => {}
            Err(_) => self.give_back(&active),
        }
        renewed
    }

    fn give_back(&self, unposted: &[Active]) {
        let mut attempts = self.open.lock();
        for Active { run, attempt, ms } in unposted {
            let open = attempts.get_mut(&(*run, *attempt)).and_then(|open| open.active.as_mut());
            open.into_iter().for_each(|active| active.give_back(*ms));
        }
    }
}
