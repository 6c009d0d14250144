//! A supervisor that is cut off from its store: another host may take the run over, so the agent stands still.
//!
//! On a store that machines share, everything below the supervisor is frozen when no renewal has succeeded for
//! [`Lease::trust_ms`], long before another host may claim the run. The guardian keeps that moment and freezes; a
//! supervisor that was stopped could not. The supervisor looks as well, for a guardian that was stopped. A renewal of
//! the same instance proves that nobody has claimed the run, and thaws; if the fence has moved, the agent is killed.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outlast_core::call::membership::Lease;
use outlast_process::{
    freeze::{Frozen, boottime_ms},
    guarded,
    tree::{Marker, Tree},
};
use outlast_server::node::Node;

use super::attempt::Hold;
use crate::program::say::say;

/// Interval at which the supervisor looks whether the agent may run.
const LOOK: Duration = Duration::from_millis(500);

/// Time that the guardian has to freeze the tree, after which the supervisor does it.
const GUARDIAN_MS: u64 = 1_000;

/// Watch over the time for which the agent of one supervisor may run without a renewal.
#[derive(Debug)]
pub struct CutOff {
    /// Time for which a renewal is trusted, in milliseconds; `None` where nobody takes over who cannot see this process.
    trust_ms: Option<u64>,
    attempt: Mutex<Option<Open>>,
    /// Processes and groups that the supervisor itself has frozen. Only the look locks them.
    frozen: Mutex<Frozen>,
}

#[derive(Clone, Debug, Default)]
struct Open {
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
        *self.attempt() = self.trust_ms.map(|_| Open::default());
        self.renewed(renewed_at_ms);
    }

    /// Tells how the attempt's processes are found.
    pub fn find_by(&self, hold: &Hold) -> std::io::Result<()> {
        if let Some(open) = self.attempt().as_mut() {
            let groups = hold.group.iter().map(|group| group.path().to_owned()).collect();
            let tree = Tree::of_ours(Marker::new([]))?;
            open.tree = Some(Tree { groups, keep: hold.keep.clone(), ..tree });
        }
        Ok(())
    }

    /// Notes that a renewal of the attempt's instance succeeded that was submitted at `at_ms` of CLOCK_BOOTTIME.
    pub fn renewed(&self, at_ms: u64) {
        let Some(trust_ms) = self.trust_ms else { return };
        if let Some(open) = self.attempt().as_mut() {
            open.until_ms = at_ms.saturating_add(trust_ms);
            // A stopped guardian reads a later one when it goes on.
            let _ = guarded::trust_until(Some(open.until_ms));
        }
    }

    /// Ends the watch: nobody of the attempt is left.
    pub fn end(&self) {
        if self.attempt().take().is_some() {
            let _ = guarded::trust_until(None);
        }
    }

    /// Returns whether the agent stands still, or has to.
    pub fn is_on(&self) -> bool {
        self.attempt().as_ref().is_some_and(|open| boottime_ms() >= open.until_ms)
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
        let due = self.attempt().clone().filter(|open| boottime_ms() >= open.until_ms);
        self.tell(due.is_some());
        let late = due.filter(|open| boottime_ms() >= open.until_ms.saturating_add(GUARDIAN_MS));
        let mut frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = match late.and_then(|open| open.tree) {
            Some(tree) => frozen.freeze(&tree).map(drop),
            None => frozen.thaw(),
        };
    }

    fn tell(&self, is_due: bool) {
        let mut attempt = self.attempt();
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

    fn attempt(&self) -> MutexGuard<'_, Option<Open>> {
        self.attempt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
