//! Store handle of one process: the real group commit over the process's own line to the one disk, which is the tables of the
//! strict memory store, and the faults of what holds them.
//!
//! A crash affects one process; a loss of power affects all (`MemoryStore::lose_power`). The process says when the next
//! group runs, and what goes wrong with it.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use outlast_core::{
    engine::{Loaded, Need, loaded::Key},
    envelope::budget::Past,
    journal::{LedgerLine, State as EntryState},
    store::{Store as _, Ticket, load::Fetch},
};
use outlast_store::{
    backend::{Backend, CommitFailed, DataVersion},
    group::{Step, Steps},
};

use crate::prelude::*;

/// Fault that a transaction meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A write fails after this many others, and the transaction is rolled back.
    Write { after: usize, why: Why },
    /// The commit is refused, and rolled back.
    Refused,
    /// The connection breaks at the commit. `told`: whether a later connection can tell if the transaction was
    /// committed.
    Unclear { committed: bool, told: bool },
    /// The process dies before the commit, or after it but before learning of it.
    Crash { committed: bool },
}

/// Reason why a write fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Full,
    Io,
}

/// Connection between a process and its disk, shared by the backend and the process that plans its faults.
#[derive(Default)]
pub struct Line {
    state: Mutex<LineState>,
}

/// State of a line.
#[derive(Default)]
pub struct LineState {
    /// Faults that the next transactions meet, in order; `None` for a transaction without a fault.
    pub plan: Vec<Option<Fault>>,
    pub crashed: bool,
    /// Whether the store cannot be reached.
    pub away: bool,
    /// Number of transactions for which the disk stays short of room.
    short_for: u32,
    /// Tables before the group and after each operation that wrote, of the transactions that committed.
    pub trail: Vec<Arc<Tables>>,
    /// Whether a transaction found other tables at its begin than the transaction before it left.
    pub torn: bool,
    latest: Micros,
    /// Whether a write failed.
    pub failed: bool,
}

impl LineState {
    /// Returns the latest time ever seen.
    fn latest(&mut self, now: Micros) -> Micros {
        self.latest = self.latest.max(now);
        self.latest
    }
}

impl Line {
    pub fn check_reachable(&self) -> Result<(), Error> {
        let state = self.lock();
        match state.away || state.crashed {
            true => Err(Error::Unavailable { why: "simulated".into() }),
            false => Ok(()),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, LineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Transactions on the tables of the disk, one at a time.
pub struct FaultBackend {
    disk: Arc<MemoryStore>,
    line: Arc<Line>,
    bug: Option<Bug>,
    durability: Durability,
    /// Tables as the transaction sees them.
    tables: Arc<Tables>,
    /// Tables as they were when the transaction began.
    before: Arc<Tables>,
    version: i64,
    writes: u64,
    /// Number of writes in this transaction.
    applied: usize,
    fault: Option<Fault>,
    /// Length of the trail at the transaction's begin.
    trail_len: usize,
}

impl FaultBackend {
    pub fn new(disk: Arc<MemoryStore>, line: Arc<Line>, bug: Option<Bug>) -> FaultBackend {
        let (tables, version) = disk.snapshot();
        FaultBackend {
            disk,
            line,
            bug,
            durability: Durability::Committed,
            before: tables.clone(),
            tables,
            version,
            writes: 0,
            applied: 0,
            fault: None,
            trail_len: 0,
        }
    }

    fn look(&mut self) -> Result<Micros, Error> {
        self.line.check_reachable()?;
        (self.tables, self.version) = self.disk.snapshot();
        self.before = self.tables.clone();
        let now = self.disk.now()?;
        let latest = self.line.lock().latest(now);
        Ok(if self.bug == Some(Bug::ClockJumpSticks) { latest } else { now })
    }

    fn land(&mut self) {
        let durability = match self.bug {
            Some(Bug::UnsyncedTold) => Durability::Committed,
            _ => self.durability,
        };
        self.disk.commit(self.tables.clone(), durability);
        self.line.lock().trail.push(self.tables.clone());
    }
}

impl Fetch for FaultBackend {
    fn fetch(&mut self, keys: &[Key<'_>], into: &mut Loaded) -> Result<(), Error> {
        let stale = |key: &Key<'_>| self.bug == Some(Bug::StaleAdmission) && matches!(key, Key::Envelope(_));
        for key in keys {
            let mut tables = if stale(key) { &*self.before } else { &*self.tables };
            Fetch::fetch(&mut tables, &[*key], into)?;
        }
        Ok(())
    }
}

impl Backend for FaultBackend {
    fn begin(&mut self, synced: bool, _group: &[Vec<Need>]) -> Result<Micros, Error> {
        let now = self.look()?;
        let mut state = self.line.lock();
        let planned = !state.plan.is_empty();
        self.fault = planned.then(|| state.plan.remove(0)).flatten();
        state.short_for = state.short_for.saturating_sub(1);
        self.trail_len = state.trail.len();
        state.torn |= state.trail.last().is_some_and(|left| !Arc::ptr_eq(left, &self.tables));
        state.trail.push(self.tables.clone());
        self.durability = if synced { Durability::Synced } else { Durability::Committed };
        self.applied = 0;
        Ok(now)
    }

    fn begin_read(&mut self, _group: &[Vec<Need>]) -> Result<Option<Micros>, Error> {
        self.look().map(Some)
    }

    fn ground(&self) -> Option<DataVersion> {
        Some(DataVersion { version: self.version, writes: self.writes })
    }

    fn apply(&mut self, loaded: Box<Loaded>) -> Result<(), Error> {
        if let Some(Fault::Write { after, why }) = self.fault
            && self.applied >= after
        {
            self.line.lock().failed = true;
            let simulated = "simulated".to_owned();
            return Err(match why {
                Why::Full => Error::Full { why: simulated },
                Why::Io => Error::Io { why: simulated },
            });
        }
        self.applied += 1;
        self.writes += 1;
        let tables = Arc::make_mut(&mut self.tables);
        tables.apply(*loaded);
        if let Some(bug) = self.bug {
            tamper(bug, tables, &self.before);
        }
        self.line.lock().trail.push(self.tables.clone());
        Ok(())
    }

    fn count(&mut self, instance: InstanceNo, counter: i64) -> Result<(), Error> {
        if let Some(row) = Arc::make_mut(&mut self.tables).instances.get_mut(&instance) {
            row.op_counter = counter;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), CommitFailed> {
        let why = || "simulated".to_owned();
        let committed = match self.fault {
            Some(Fault::Refused) => {
                self.rollback();
                return Err(CommitFailed::RolledBack(Error::Unavailable { why: why() }));
            }
            Some(Fault::Unclear { committed, .. } | Fault::Crash { committed }) => committed,
            Some(Fault::Write { .. }) | None => true,
        };
        match committed {
            true => self.land(),
            false => self.rollback(),
        }
        match self.fault {
            Some(Fault::Unclear { .. }) => Err(CommitFailed::Unclear(Error::Io { why: why() })),
            Some(Fault::Crash { .. }) => {
                self.line.lock().crashed = true;
                Err(CommitFailed::Unclear(Error::Closed))
            }
            _ => Ok(()),
        }
    }

    fn rollback(&mut self) {
        self.writes += 1;
        if self.bug == Some(Bug::GroupHalfApplied) && self.applied > 0 {
            self.disk.commit(self.tables.clone(), self.durability);
        }
        self.release();
        self.line.lock().trail.truncate(self.trail_len + 1);
    }

    fn release(&mut self) {
        self.tables = self.before.clone();
    }

    fn is_committed(&mut self, instance: InstanceNo, counter: i64) -> Option<bool> {
        let Some(Fault::Unclear { told: true, .. }) = self.fault else { return None };
        let (tables, _) = self.disk.snapshot();
        Some(tables.instances.get(&instance).is_some_and(|i| i.op_counter >= counter))
    }

    fn free_ballast(&mut self) -> bool {
        let mut state = self.line.lock();
        state.short_for = 3;
        true
    }

    fn is_short_of_room(&mut self) -> bool {
        self.line.lock().short_for > 0
    }
}

/// Plants defects in what a transaction has written so far. `before`: the tables as it began.
fn tamper(bug: Bug, tables: &mut Tables, before: &Tables) {
    if bug == Bug::WindowsForgotten {
        tables.budgets.values_mut().for_each(|budget| budget.past = Past::default());
    }
    if bug == Bug::TakerUntold {
        tables.entries.values_mut().for_each(|e| e.taken = None);
    }
    let mut given_back = Vec::new();
    for (key, e) in &mut tables.entries {
        let old = before.entries.get(key);
        let was_open = old.is_some_and(|old| old.state == EntryState::Open);
        match (bug, &mut e.call) {
            (Bug::DoubtTooSmall, Some(call)) => {
                call.correction.iter_mut().for_each(|c| c.unbacked_nano_usd = 0);
            }
            (Bug::TokensBeyondUntold, Some(call)) => call.overrun_tokens = 0,
            (Bug::RefundTwice, Some(_)) if was_open && e.state == EntryState::Void => {
                given_back.extend(old.map(|old| (e.run, old.held)));
            }
            _ => {}
        }
    }
    if bug == Bug::DoubtTooSmall {
        // The ledger follows, so that the defect is found as what it is.
        tables.sums = LedgerLine::sum(tables.entries.values().filter_map(LedgerLine::of));
    }
    for (run, held) in given_back {
        let envelope = tables.runs[&run].envelope();
        tables.envelopes.entry(envelope).and_modify(|e| e.reserved -= held);
    }
}

/// Store handle of one process.
pub struct FaultStore {
    disk: Arc<MemoryStore>,
    pub line: Arc<Line>,
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

    /// Opens the store anew, after a failure that the writer does not work on after. What was queued is lost.
    pub fn reopen(&mut self) {
        let away = self.line.lock().away;
        *self = FaultStore::new(self.disk.clone(), self.bug);
        self.line.lock().away = away;
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
        if self.bug == Some(Bug::QueueBusy) && self.line.lock().failed {
            return (Step::Idle, Vec::new());
        }
        let step = self.writer.step(Duration::from_millis(now_ms));
        (step, std::mem::take(&mut self.line.lock().trail))
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
        store.line.lock().plan = faults.to_vec();
        assert_eq!(two(&mut store), codes, "{faults:?}");
        assert_eq!(disk.tables().instances.len(), instances, "{faults:?}");
        store.line.lock().plan = Vec::new();
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
