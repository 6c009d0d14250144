//! Store handle of one process: the real group commit over the process's own line to the one disk.
//!
//! A crash affects one process; a loss of power affects all (`MemoryStore::lose_power`). The process says when the next
//! group runs, and what goes wrong with it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use outlast_core::{
    engine::{Op, Outcome},
    memory::{MemoryStore, Tables},
    store::{Durability, Error, Ticket},
};
use outlast_store::group::{Step, Steps};

use crate::{
    backend::{Fault, FaultBackend, Line},
    bug::Bug,
};

/// Store handle of one process.
pub struct FaultStore {
    disk: Arc<MemoryStore>,
    line: Arc<Line>,
    bug: Option<Bug>,
    writer: Steps<FaultBackend>,
}

impl FaultStore {
    pub fn new(disk: Arc<MemoryStore>, bug: Option<Bug>) -> FaultStore {
        let line = Arc::new(Line::default());
        let backend = FaultBackend::new(disk.clone(), line.clone(), bug);
        let writer = Steps::new(backend, disk.op_numbers());
        FaultStore { disk, line, bug, writer }
    }

    /// Sets the faults that the next transactions meet, one after the other.
    pub fn plan(&self, faults: Vec<Option<Fault>>) {
        self.line.plan(faults);
    }

    pub fn has_crashed(&self) -> bool {
        self.line.has_crashed()
    }

    /// Returns whether a write ever failed here.
    pub fn has_failed(&self) -> bool {
        self.line.has_failed()
    }

    pub fn is_torn(&self) -> bool {
        self.line.is_torn()
    }

    pub fn is_away(&self) -> bool {
        self.line.is_away()
    }

    /// Cuts the connection to the disk, or restores it.
    pub fn set_away(&self, away: bool) {
        self.line.set_away(away);
    }

    /// Opens the store anew, after a failure that the writer does not work on after. What was queued is lost.
    pub fn reopen(&mut self) {
        let away = self.is_away();
        *self = FaultStore::new(self.disk.clone(), self.bug);
        self.set_away(away);
    }

    /// Reads what is committed, if the store can be reached.
    pub fn read<R>(&self, read: impl FnOnce(&MemoryStore) -> Result<R, Error>) -> Result<R, Error> {
        self.line.check_reachable()?;
        read(&self.disk)
    }

    pub fn submit(&mut self, op: Op, durability: Durability, now_ms: u64) -> Ticket {
        self.writer.submit(op, durability, Duration::from_millis(now_ms))
    }

    /// Submits `op` on the caller's own thread.
    pub fn submit_here(&mut self, op: Op, durability: Durability, now_ms: u64) -> Ticket {
        self.writer.submit_here(op, durability, Duration::from_millis(now_ms))
    }

    /// Returns the outcome of `op` before its commit, or gives `op` back as the error.
    pub fn ahead(&mut self, op: Op, now_ms: u64) -> Result<Result<Outcome, Error>, Op> {
        self.writer.ahead(op, Duration::from_millis(now_ms))
    }

    /// Plants a defect: returns the outcome of `op`, and never writes it.
    pub fn ahead_and_forgotten(&self, op: Op, now_ms: u64) -> Result<Result<Outcome, Error>, Op> {
        let backend = FaultBackend::new(self.disk.clone(), self.line.clone(), None);
        Steps::new(backend, self.disk.op_numbers()).ahead(op, Duration::from_millis(now_ms))
    }

    /// Runs the next group, if one is due. Returns the tables as its operations left them, one after the other.
    pub fn step(&mut self, now_ms: u64) -> (Step, Vec<Arc<Tables>>) {
        if self.bug == Some(Bug::QueueBusy) && self.line.has_failed() {
            return (Step::Idle, Vec::new());
        }
        let step = self.writer.step(Duration::from_millis(now_ms));
        (step, self.line.take_trail())
    }
}

/// Returns the outcome of a ticket that is resolved.
pub fn resolved(ticket: &mut Ticket) -> Option<Result<Outcome, Error>> {
    match Pin::new(ticket).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use outlast_core::{
        engine::{Register, Verb},
        words::{ManualClock, Micros},
    };

    use super::*;
    use crate::backend::Why;

    fn register() -> Op {
        Op::from(Register { identity: Default::default() })
    }

    /// Submits two registrations in one group, and returns their codes.
    fn two(store: &mut FaultStore) -> [&'static str; 2] {
        let tickets = [(); 2].map(|()| store.submit(register(), Durability::Synced, 0));
        assert_eq!(store.step(0).0, Step::Ran);
        tickets.map(|mut t| match resolved(&mut t) {
            Some(Ok(outcome)) => Register::answer(outcome).map_or("other", |_| "ok"),
            Some(Err(e)) => e.code(),
            None => "pending",
        })
    }

    fn check(faults: &[Option<Fault>], codes: [&str; 2], instances: usize, after: [&str; 2]) {
        let disk = Arc::new(MemoryStore::new(Arc::new(ManualClock::new(Micros(0)))));
        let mut store = FaultStore::new(disk.clone(), None);
        store.plan(faults.to_vec());
        assert_eq!(two(&mut store), codes, "{faults:?}");
        assert_eq!(disk.tables().instances.len(), instances, "{faults:?}");
        store.plan(Vec::new());
        assert_eq!(two(&mut store), after, "{faults:?}");
        store.reopen();
        assert_eq!(two(&mut store), ["ok"; 2], "{faults:?}");
    }

    #[test]
    fn a_fault_meets_one_transaction_and_says_only_what_a_process_would_see() {
        let full = |after| Some(Fault::Write { after, why: Why::Full });
        let unclear = |committed, told| [Some(Fault::Unclear { committed, told })];
        let (ok, refused) = (["ok"; 2], ["store_refused"; 2]);
        check(&[], ok, 2, ok);
        check(&[Some(Fault::Refused)], ok, 2, ok);
        // A full disk takes only what closes open work, until there is room.
        check(&[full(1)], ["store_full"; 2], 0, ["store_full"; 2]);
        check(&[Some(Fault::Write { after: 1, why: Why::Io })], ok, 2, ok);
        for committed in [false, true] {
            let n = if committed { 2 } else { 0 };
            check(&unclear(committed, false), ["commit_unknown"; 2], n, refused);
            check(&unclear(committed, true), ok, 2, ok);
            check(&[Some(Fault::Crash { committed })], ["commit_unknown"; 2], n, refused);
        }
    }
}
