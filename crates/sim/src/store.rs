//! Store with injected faults of disks and processes, over the strict memory store.
//!
//! Each process has its own handle on the one disk. A crash affects one process; a loss of power affects all
//! (`MemoryStore::lose_power`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outlast_core::{
    engine::{
        call::admit::Admission,
        loaded::Loaded,
        op::{self, Op},
    },
    envelope::unit::Limits,
    memory::{MemoryStore, Tables},
    store::{Durability, Error, Store, Ticket},
};

/// Fault that an operation meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Rolled back: nothing was written, and the store goes on working.
    Full,
    /// The commit's outcome is unknown, and the handle refuses everything until it is reopened.
    Unclear { committed: bool },
    /// The process dies before the commit, or after it but before learning of it.
    Crash { committed: bool },
}

/// Store handle of one process.
pub struct FaultStore {
    disk: Arc<MemoryStore>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: Option<Fault>,
    refuses: bool,
    crashed: bool,
}

impl FaultStore {
    pub fn new(disk: Arc<MemoryStore>) -> FaultStore {
        FaultStore { disk, state: Mutex::default() }
    }

    /// Sets the fault that the next operation meets.
    pub fn plan(&self, fault: Fault) {
        self.lock().next = Some(fault);
    }

    pub fn has_crashed(&self) -> bool {
        self.lock().crashed
    }

    pub fn refuses(&self) -> bool {
        self.lock().refuses
    }

    pub fn reopen(&self) {
        *self.lock() = State::default();
    }

    /// Returns the disk itself: reads meet no faults.
    pub fn disk(&self) -> &MemoryStore {
        &self.disk
    }

    pub fn submit(&self, op: Op, durability: Durability) -> Ticket {
        self.meet(|| self.disk.submit(op, durability))
    }

    /// Plants a defect: decides on `stale` whether the call fits, and writes it regardless.
    pub fn submit_on_stale(&self, stale: &Tables, op: Op) -> Ticket {
        let now = self.disk.now().unwrap_or_default();
        let decided = stale.load(&op.needs(), now).map(|mut l| op::decide(&op, &mut l, now));
        match decided {
            Ok(Ok(op::Outcome::Admitted(Admission::Go { .. }))) => self.meet(|| {
                self.disk.tamper(|tables| {
                    let mut l = match tables.load(&op.needs(), now) {
                        Ok(l) => l,
                        Err(e) => return Ticket::ready(Err(e)),
                    };
                    let limits = lift_limits(&mut l);
                    let outcome = op::decide(&op, &mut l, now);
                    for (row, limits) in l.envelopes.iter_mut().zip(limits) {
                        row.value.limits = limits;
                    }
                    if outcome.is_ok() {
                        tables.apply(l);
                    }
                    Ticket::ready(outcome.map_err(Error::from))
                })
            }),
            _ => self.submit(op, Durability::Synced),
        }
    }

    fn meet(&self, commit: impl FnOnce() -> Ticket) -> Ticket {
        let fault = {
            let mut state = self.lock();
            if state.crashed || state.refuses {
                return Ticket::ready(Err(Error::Refused { why: "an earlier failure".into() }));
            }
            state.next.take()
        };
        let Some(fault) = fault else { return commit() };
        let why = || "simulated".to_owned();
        let (committed, error) = match fault {
            Fault::Full => (false, Error::Full { why: why() }),
            Fault::Unclear { committed } => (committed, Error::CommitUnknown { why: why() }),
            Fault::Crash { committed } => (committed, Error::Closed),
        };
        if committed {
            drop(commit());
        }
        let mut state = self.lock();
        state.refuses |= matches!(fault, Fault::Unclear { .. });
        state.crashed |= matches!(fault, Fault::Crash { .. });
        Ticket::ready(Err(error))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lift_limits(l: &mut Loaded) -> Vec<Limits> {
    l.envelopes.iter_mut().map(|row| std::mem::take(&mut row.value.limits)).collect()
}

#[cfg(test)]
mod tests {
    use outlast_core::{
        engine::{op::Verb, run::register::Register},
        words::{clock::ManualClock, id::Micros},
    };

    use super::*;

    fn check(fault: Option<Fault>, code: Option<&str>, instances: usize, refuses: bool, crashed: bool) {
        let disk = Arc::new(MemoryStore::new(Arc::new(ManualClock::new(Micros(0)))));
        let store = FaultStore::new(disk.clone());
        if let Some(fault) = fault {
            store.plan(fault);
        }
        let register = || Op::from(Register { identity: Default::default() });
        let had = store.submit(register(), Durability::Synced).wait();
        assert_eq!(had.as_ref().err().map(Error::code), code, "{fault:?}");
        assert_eq!(had.ok().and_then(Register::answer).is_some(), code.is_none(), "{fault:?}");
        assert_eq!(disk.tables().instances.len(), instances, "{fault:?}");
        assert_eq!((store.refuses(), store.has_crashed()), (refuses, crashed), "{fault:?}");
        let again = store.submit(register(), Durability::Synced).wait().is_ok();
        assert_eq!(again, !refuses && !crashed, "{fault:?}");
        store.reopen();
        assert!(store.submit(register(), Durability::Synced).wait().is_ok(), "{fault:?}");
    }

    #[test]
    fn a_fault_meets_one_operation_and_says_only_what_a_process_would_see() {
        check(None, None, 1, false, false);
        check(Some(Fault::Full), Some("store_full"), 0, false, false);
        for committed in [false, true] {
            let n = usize::from(committed);
            check(Some(Fault::Unclear { committed }), Some("commit_unknown"), n, true, false);
            check(Some(Fault::Crash { committed }), Some("store_closed"), n, false, true);
        }
    }
}
