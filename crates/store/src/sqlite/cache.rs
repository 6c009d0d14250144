//! Cache of the rows that nearly every operation of a run loads, used by the writer.
//!
//! Valid only until another connection commits, which `PRAGMA data_version`, read inside each write transaction,
//! reveals. A rolled-back group clears the cache.

use std::sync::Arc;

use outlast_core::{
    engine::Loaded,
    envelope::{Budget, Envelope},
    run::{Attempt, Instance, Lease, Run},
    words::{AttemptNo, EnvelopeNo, InstanceNo, Map, Row, RunNo, Slot, Touch},
};

/// Number of cached runs above which the cache is cleared. Rare, and simpler than evicting by age.
const MOST_RUNS: usize = 2048;

#[derive(Default)]
pub struct Cache {
    pub version: i64,
    pub instances: Map<InstanceNo, Instance>,
    pub runs: Map<RunNo, Run>,
    pub envelopes: Map<EnvelopeNo, Envelope>,
    /// All named budgets of the store; `None` if they are not cached.
    pub budgets: Option<Arc<Vec<Budget>>>,
    /// Leases by run and slot; `None`: the slot has no lease.
    pub leases: Map<(RunNo, Slot), Option<Lease>>,
    /// Open attempts by run. An entry is present only if it holds all open attempts of the run.
    pub open: Map<RunNo, Arc<Vec<Attempt>>>,
}

impl Cache {
    pub fn forget(&mut self) {
        *self = Cache { version: self.version, ..Cache::default() };
    }

    /// Clears the cache if `version` shows that another connection has committed since the last check.
    pub fn check(&mut self, version: i64) {
        if self.version != version || self.runs.len() > MOST_RUNS {
            self.forget();
            self.version = version;
        }
    }

    /// Returns an open attempt of the run from the cache; `None` if it is not cached, or not open.
    pub fn open_attempt(&self, run: RunNo, no: AttemptNo) -> Option<&Attempt> {
        self.open.get(&run)?.iter().find(|a| a.no == no)
    }

    /// Takes the rows that an operation wrote out of `l`.
    pub fn remember(&mut self, l: &mut Loaded) {
        self.instances.extend(touched(&mut l.instances).map(|i| (i.no, i)));
        self.runs.extend(touched(&mut l.runs).map(|run| (run.no, run)));
        self.envelopes.extend(touched(&mut l.envelopes).map(|e| (e.no, e)));
        if l.budgets.iter().any(|r| r.touch != Touch::Read) {
            self.budgets = None;
        }
        self.leases.extend(touched(&mut l.leases).map(|lease| ((lease.run, lease.slot), Some(lease))));
        for a in touched(&mut l.attempts) {
            if let Some(open) = self.open.get_mut(&a.run) {
                let open = Arc::make_mut(open);
                open.retain(|x| x.no != a.no);
                if a.is_open() {
                    open.push(a);
                    open.sort_by_key(|x| x.no);
                }
            }
        }
    }
}

/// Takes the rows that are to be written back.
fn touched<T>(rows: &mut Vec<Row<T>>) -> impl Iterator<Item = T> {
    rows.drain(..).filter(|row| row.touch != Touch::Read).map(|row| row.value)
}
