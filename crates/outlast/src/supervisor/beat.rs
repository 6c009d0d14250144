//! The supervisor's heartbeat: renews everything it holds once a second, and learns of stops, halts and lost
//! leases.
//!
//! A supervisor that is cut off from its store: another host may take the run over, so the agent stands still.
//!
//! On a store that machines share, everything below the supervisor is frozen when no renewal has succeeded for
//! [`Lease::trust_ms`], long before another host may claim the run. The guardian keeps that moment and freezes; a
//! supervisor that was stopped could not. The supervisor looks as well, for a guardian that was stopped. A renewal of
//! the same instance proves that nobody has claimed the run, and thaws; if the fence has moved, the agent is killed.

use std::{sync::Arc, time::Duration};

use outlast_core::{
    call::membership::Lease,
    engine::{self, Pulse},
    run::Status,
    store::Error,
    words::{AttemptNo, InstanceNo, RunNo},
};
use outlast_process::{
    freeze::{Frozen, boottime_ms},
    guardian,
    tree::{Marker, Tree},
};
use outlast_server::node::{self, HEARTBEAT, Node};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::drive::attempt::Hold;
use crate::program::say::say;

/// Result of the last heartbeat, by which the supervisor learns of stops, halts and lost leases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Word {
    /// Attempt in which the heartbeat was sent; `None` before the first one.
    attempt: Option<(AttemptNo, InstanceNo)>,
    pub pulse: Option<Pulse>,
    /// Whether this process was declared dead meanwhile: the supervisor must claim the run again.
    pub dead: bool,
}

/// Heartbeat task of one run's supervisor.
pub struct Beat {
    node: Arc<Node>,
    run: RunNo,
    attempts: node::Beat,
    /// Attempt that is open, with the instance that owns it. After being declared dead this process registers as another one.
    open: Mutex<Option<(AttemptNo, InstanceNo)>>,
    word: watch::Sender<Word>,
    cut_off: Arc<CutOff>,
}

impl Beat {
    /// Starts the heartbeat, which goes on until the runtime ends.
    pub fn start(node: Arc<Node>, run: RunNo) -> Arc<Beat> {
        let cut_off = Arc::new(CutOff::new(&node));
        tokio::spawn(cut_off.clone().watch());
        let (attempts, open, word) = Default::default();
        let beat = Arc::new(Beat { node, run, attempts, open, word, cut_off });
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
        self.attempts.open(&self.node, self.run, attempt, instance, true);
        *self.open.lock() = Some((attempt, instance));
        // Of an instance that was declared dead since, nothing is trusted.
        self.cut_off.begin(self.renewed_at(instance).unwrap_or(0));
        self.word.send_replace(Word { attempt: Some((attempt, instance)), ..Word::default() });
    }

    /// Records that the attempt is over. Returns the active time in milliseconds that no heartbeat has posted yet.
    pub fn close(&self) -> i64 {
        self.cut_off.end();
        self.open.lock().take().map_or(0, |(attempt, _)| self.attempts.close(&self.node, self.run, attempt))
    }

    /// Sends a heartbeat at once, for example after a refused call, to learn whether the run is halted.
    pub async fn now(&self) {
        let open = *self.open.lock();
        // The proxy may have learnt of the verdict first and registered this process anew.
        if open.is_some_and(|(_, instance)| instance != self.node.instance()) {
            self.word.send_if_modified(|word| word.hear(open, None, true));
        }
        let renewed = self.attempts.now(&self.node).await;
        let is_dead = matches!(renewed, Err(Error::Engine(engine::Error::InstanceDead)));
        if let (Ok(_), Some((_, instance))) = (&renewed, open)
            && let Some(at_ms) = self.renewed_at(instance)
        {
            self.cut_off.renewed(at_ms);
        }
        // Without an answer the next beat may succeed: an outage is no verdict, and ends no agent.
        let pulse = renewed.ok().and_then(|pulses| pulses.into_iter().next());
        self.word.send_if_modified(|word| word.hear(open, pulse, is_dead));
    }

    /// Returns the time at which the newest renewal of `instance` was submitted; `None` if this process acts as another
    /// instance now, whose renewals tell nothing of that one's leases.
    fn renewed_at(&self, instance: InstanceNo) -> Option<u64> {
        // A new instance is known before its first renewal is.
        let at_ms = self.node.renewed_at_ms();
        (self.node.instance() == instance).then_some(at_ms)
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
}

impl Word {
    /// Takes the result of a heartbeat that was sent in `attempt`. Returns whether the word is another one now: a late result
    /// of an earlier attempt changes nothing.
    fn hear(
        &mut self,
        attempt: Option<(AttemptNo, InstanceNo)>,
        pulse: Option<Pulse>,
        is_dead: bool,
    ) -> bool {
        if self.attempt != attempt {
            return false;
        }
        let pulse = pulse.or_else(|| self.pulse.clone());
        let new = Word { attempt, pulse, dead: self.dead || is_dead };
        let changed = *self != new;
        *self = new;
        changed
    }

    /// Returns whether the heartbeat's result ends the attempt: a stop was asked for, the run's status lets no agent
    /// run, or this process was declared dead.
    pub fn ends(&self) -> bool {
        let lives = |status| matches!(status, Status::Running | Status::Waiting | Status::Sleeping);
        let stops = |p: &Pulse| p.stop_requested || !lives(p.status);
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

/// Time that an agent has to end by itself after a halt. Its calls are refused from then on.
pub const HALT_GRACE: Duration = Duration::from_secs(5);

/// Interval at which the supervisor looks whether the agent may run.
const LOOK: Duration = Duration::from_millis(500);

/// Time that the guardian has to freeze the tree, after which the supervisor does it.
const GUARDIAN_MS: u64 = 1_000;

/// Watch over the time for which the agent of one supervisor may run without a renewal.
#[derive(Debug)]
pub struct CutOff {
    /// Time for which a renewal is trusted, in milliseconds; `None` for a store of this machine alone, where a process that
    /// takes a run over sees whether this one lives.
    trust_ms: Option<u64>,
    attempt: Mutex<Option<Trusted>>,
    /// Processes and groups that the supervisor itself has frozen. Only the look locks them.
    frozen: Mutex<Frozen>,
}

#[derive(Clone, Debug, Default)]
struct Trusted {
    /// Moment of CLOCK_BOOTTIME, in milliseconds, until which the agent may run.
    until_ms: u64,
    /// Means by which its processes are found, beside their descent; `None` before it is started.
    tree: Option<Tree>,
    /// Whether it was said that the agent stands still.
    said: bool,
}

impl CutOff {
    pub fn new(node: &Node) -> CutOff {
        let trust_ms = node.store().is_shared().then_some(Lease::on(true).trust_ms);
        CutOff { trust_ms, attempt: Mutex::default(), frozen: Mutex::default() }
    }

    /// Begins the watch over an attempt. `renewed_at_ms`: submission of its instance's newest renewal.
    pub fn begin(&self, renewed_at_ms: u64) {
        *self.attempt.lock() = self.trust_ms.map(|_| Trusted::default());
        self.renewed(renewed_at_ms);
    }

    /// Notes the tree by which the attempt's processes are found. Errors: `/proc` cannot be read.
    pub fn find_by(&self, hold: &Hold) -> std::io::Result<()> {
        if let Some(open) = self.attempt.lock().as_mut() {
            open.tree = Some(hold.tree(Marker::new([]))?);
        }
        Ok(())
    }

    /// Notes that a renewal of the attempt's instance succeeded that was submitted at `at_ms` of CLOCK_BOOTTIME.
    pub fn renewed(&self, at_ms: u64) {
        let Some(trust_ms) = self.trust_ms else { return };
        if let Some(open) = self.attempt.lock().as_mut() {
            open.until_ms = at_ms.saturating_add(trust_ms);
            // A stopped guardian reads a later one when it goes on.
            let _ = guardian::trust_until(Some(open.until_ms));
        }
    }

    /// Ends the watch: nobody of the attempt is left.
    pub fn end(&self) {
        if self.attempt.lock().take().is_some() {
            let _ = guardian::trust_until(None);
        }
    }

    /// Returns whether the agent stands still, or has to.
    pub fn is_on(&self) -> bool {
        self.attempt.lock().as_ref().is_some_and(|open| boottime_ms() >= open.until_ms)
    }

    /// Waits until the agent has to stand still.
    pub async fn begun(&self) {
        while !self.is_on() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Looks without end. Never returns.
    pub async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let cut_off = self.clone();
            // A panic in it has been printed already.
            let _ = tokio::task::spawn_blocking(move || cut_off.look()).await;
        }
    }

    /// Freezes what the guardian should have frozen, or thaws it. What fails is tried again at the next look.
    fn look(&self) {
        let due = self.attempt.lock().clone().filter(|open| boottime_ms() >= open.until_ms);
        self.tell(due.is_some());
        let late = due.filter(|open| boottime_ms() >= open.until_ms.saturating_add(GUARDIAN_MS));
        let mut frozen = self.frozen.lock();
        let _ = match late.and_then(|open| open.tree) {
            Some(tree) => frozen.freeze(&tree).map(drop),
            None => frozen.thaw(),
        };
    }

    fn tell(&self, is_due: bool) {
        let mut attempt = self.attempt.lock();
        let Some(open) = attempt.as_mut() else { return };
        if std::mem::replace(&mut open.said, is_due) == is_due {
            return;
        }
        drop(attempt);
        match is_due {
            true => say(&format!(
                "the store has taken no heartbeat for {} s, and another host may take this run over: the agent stands \
                 still until it is known",
                self.trust_ms.unwrap_or_default() / 1000
            )),
            false => {
                say("the store has taken a heartbeat: the run is still held here, and the agent goes on")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A store that is slow answers the last heartbeat of an attempt when the next one has begun.
    #[test]
    fn a_late_heartbeat_of_an_earlier_attempt_does_not_end_the_next_one() {
        let attempt = |no| Some((AttemptNo(no), InstanceNo(no)));
        let halted = Pulse { run: RunNo(1), status: Status::Halted, stop_requested: false, halt: None };
        let mut word = Word { attempt: attempt(2), ..Word::default() };
        assert!(!word.hear(attempt(1), None, true) && !word.hear(attempt(1), Some(halted.clone()), false));
        assert!(!word.hear(None, None, true) && !word.ends());
        assert!(word.hear(attempt(2), Some(halted), false) && word.ends());
        assert!(word.hear(attempt(2), None, true) && word.dead && word.pulse.is_some());
    }
}
