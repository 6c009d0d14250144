//! The supervisor's heartbeat: renews everything it holds once a second, and learns of stops, halts and lost
//! leases.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use outlast_core::{
    engine::{
        self,
        run::process::{Active, ActiveTime, Pulse},
    },
    store::Error,
    words::id::{AttemptNo, InstanceNo, RunNo},
};
use outlast_server::node::{HEARTBEAT, Node};
use tokio::sync::watch;

use super::cut_off::CutOff;

/// Result of the last heartbeat, by which the supervisor learns of stops, halts and lost leases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Word {
    pub pulse: Option<Pulse>,
    /// Whether this process was declared dead meanwhile: the supervisor must claim the run again.
    pub dead: bool,
}

/// Heartbeat task of one run's supervisor.
pub struct Beat {
    node: Arc<Node>,
    run: RunNo,
    open: Mutex<Option<Open>>,
    word: watch::Sender<Word>,
    cut_off: Arc<CutOff>,
}

/// Attempt that is open, whose active time the heartbeat posts.
#[derive(Clone, Copy)]
struct Open {
    attempt: AttemptNo,
    /// Instance that owns the attempt. After being declared dead this process registers as another one.
    instance: InstanceNo,
    active: ActiveTime,
}

impl Beat {
    /// Starts the heartbeat, which goes on until the runtime ends.
    pub fn start(node: Arc<Node>, run: RunNo) -> Arc<Beat> {
        let cut_off = Arc::new(CutOff::new(&node));
        tokio::spawn(cut_off.clone().watch());
        let beat = Beat { node, run, open: Mutex::default(), word: watch::Sender::default(), cut_off };
        let beat = Arc::new(beat);
        tokio::spawn(beat.clone().go_on());
        beat
    }

    pub fn word(&self) -> watch::Receiver<Word> {
        self.word.subscribe()
    }

    pub fn cut_off(&self) -> &CutOff {
        &self.cut_off
    }

    /// Records that an attempt of `instance` is open from now on, so that heartbeats post its active time.
    pub fn open(&self, attempt: AttemptNo, instance: InstanceNo) {
        let active = ActiveTime::begin(self.node.clock().monotonic_ms());
        *self.attempt() = Some(Open { attempt, instance, active });
        // Of an instance that was declared dead since, nothing is trusted.
        self.cut_off.begin(self.renewed_at(instance).unwrap_or(0));
        self.word.send_replace(Word::default());
    }

    /// Records that the attempt is over. Returns the active time in milliseconds that no heartbeat has posted yet.
    pub fn close(&self) -> i64 {
        let now = self.node.clock().monotonic_ms();
        self.cut_off.end();
        self.attempt().take().map_or(0, |mut open| open.active.take(now))
    }

    /// Sends a heartbeat at once, for example after a refused call, to learn whether the run is halted.
    pub async fn now(&self) {
        let now = self.node.clock().monotonic_ms();
        let open = self.attempt().as_mut().map(|open| (*open, open.active.take(now)));
        // The proxy may have learnt of the verdict first and registered this process anew.
        if open.is_some_and(|(o, _)| o.instance != self.node.instance()) {
            self.word.send_modify(|word| word.dead = true);
        }
        let active: Vec<Active> =
            open.iter().map(|(o, ms)| Active { run: self.run, attempt: o.attempt, ms: *ms }).collect();
        match self.node.renew(active).await {
            Ok(pulses) => {
                if let Some(at_ms) = open.and_then(|(open, _)| self.renewed_at(open.instance)) {
                    self.cut_off.renewed(at_ms);
                }
                if let Some(pulse) = pulses.into_iter().next() {
                    self.word.send_if_modified(|word| {
                        let new = Word { pulse: Some(pulse), dead: word.dead };
                        let changed = *word != new;
                        *word = new;
                        changed
                    });
                }
            }
            Err(Error::Engine(engine::Error::InstanceDead)) => {
                self.word.send_modify(|word| word.dead = true);
            }
            // The next beat may succeed: an outage is no verdict, and ends no agent.
            Err(e) => self.give_back(open, &e),
        }
    }

    /// Returns the time at which the newest renewal of `instance` was submitted; `None` if this process acts as another
    /// instance now, whose renewals tell nothing of that one's leases.
    fn renewed_at(&self, instance: InstanceNo) -> Option<u64> {
        // A new instance is known before its first renewal is.
        let at_ms = self.node.renewed_at_ms();
        (self.node.instance() == instance).then_some(at_ms)
    }

    /// Takes back active time that a failed renewal did not post, for a later one.
    fn give_back(&self, renewed: Option<(Open, i64)>, why: &Error) {
        let is_posted = matches!(why, Error::CommitUnknown { .. });
        if let Some((before, ms)) = renewed.filter(|_| !is_posted)
            && let Some(open) = self.attempt().as_mut().filter(|open| open.attempt == before.attempt)
        {
            open.active.give_back(ms);
        }
    }

    async fn go_on(self: Arc<Self>) {
        let mut sweeps = 0u32;
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            self.now().await;
            sweeps += 1;
            // The deaths of other instances concern this run little: every fifth beat is enough.
            if sweeps.is_multiple_of(5) {
                let node = self.node.clone();
                // A failed one is logged, and the next one may succeed.
                let _ = tokio::task::spawn_blocking(move || node.sweep()).await;
            }
        }
    }

    fn attempt(&self) -> std::sync::MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Word {
    /// Returns whether the heartbeat's result ends the attempt: a stop was asked for, the run's status lets no agent
    /// run, or this process was declared dead.
    pub fn ends(&self) -> bool {
        let stops = |p: &Pulse| {
            p.stop_requested || p.status != outlast_core::run::status::Status::Running && !waits(p.status)
        };
        self.dead || self.pulse.as_ref().is_some_and(stops)
    }
}

/// Waits until a heartbeat brings a result that ends the attempt, and returns this result.
pub async fn ending(word: &mut watch::Receiver<Word>) -> Word {
    loop {
        {
            let now = word.borrow_and_update();
            if now.ends() {
                return now.clone();
            }
        }
        if word.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn waits(status: outlast_core::run::status::Status) -> bool {
    matches!(status, outlast_core::run::status::Status::Waiting | outlast_core::run::status::Status::Sleeping)
}

/// Time that an agent has to end by itself after a halt. Its calls are refused from then on.
pub const HALT_GRACE: Duration = Duration::from_secs(5);
