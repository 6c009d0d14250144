//! The snapshots of a run, in the order of its journal.

use outlast_core::{
    journal::{Kind, Role},
    reads::entries,
    store::{self, RunView, Store},
    words::id::{AttemptNo, Micros, RunNo, Seq},
};
use outlast_files::Id;

use super::{Kept, Moment, is_snapshot};

/// One snapshot with its place in the journal.
#[derive(Clone, Debug)]
pub struct Step {
    pub kept: Kept,
    /// Entry that the snapshot belongs to: its call's, else its own.
    pub at: Seq,
    pub attempt: AttemptNo,
    pub taken_at: Micros,
}

/// Snapshots of a run, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub steps: Vec<Step>,
}

impl History {
    /// Reads the run's snapshots. Errors: the store's; `Corrupt` for one that is none.
    pub fn read(store: &dyn Store, run: RunNo) -> Result<History, store::Error> {
        let mut steps = Vec::new();
        for entry in entries::each(store, run) {
            let entry = entry?;
            if !is_snapshot(&entry) {
                continue;
            }
            let corrupt =
                || store::Error::Corrupt { what: format!("the snapshot of files at entry {}", entry.seq) };
            let value = store.payload(run, entry.seq, Role::Value)?.ok_or_else(corrupt)?;
            let value = value.decode().map_err(|_| corrupt())?;
            let kept: Kept = serde_json::from_slice(&value).map_err(|_| corrupt())?;
            let at = kept.call.map_or(entry.seq, Seq);
            steps.push(Step { kept, at, attempt: entry.attempt, taken_at: entry.opened_at });
        }
        Ok(History { steps })
    }

    pub fn newest(&self) -> Option<&Step> {
        self.steps.last()
    }

    /// Returns the files as they were when an entry began; `None`: the run has no snapshot of before it.
    pub fn at(&self, entry: Seq) -> Option<Id> {
        self.steps.iter().rev().find(|step| step.at <= entry).map(|step| step.kept.snapshot)
    }

    /// Returns the files as the last finished tool left them: as they were when the last call left. `last_call`: its
    /// entry; `None` for a run without one.
    pub fn at_last_tool(&self, last_call: Option<Seq>) -> Option<Id> {
        match last_call {
            Some(call) => self.at(call),
            None => self.steps.first().map(|step| step.kept.snapshot),
        }
    }

    /// Returns the snapshot before a step, with which its changes are told; `None` for the first.
    pub fn before(&self, index: usize) -> Option<Id> {
        self.steps[..index].last().map(|step| step.kept.snapshot)
    }

    /// Returns how many paths the run has changed, and how many of them after its last call: what no finished tool is
    /// known to have left.
    pub fn changed(&self, last_call: Option<Seq>) -> (u64, u64) {
        let (mut all, mut after) = (0, 0);
        for step in &self.steps {
            if step.kept.moment == Moment::Restored {
                after = 0;
                continue;
            }
            all += step.kept.changed;
            if last_call.is_some_and(|call| step.at > call) {
                after += step.kept.changed;
            }
        }
        (all, after)
    }
}

/// Returns the entry of a run's newest call; `None` for a run without one.
pub fn last_call(store: &dyn Store, view: &RunView) -> Result<Option<Seq>, store::Error> {
    for entry in entries::each_back(store, view.run.no, view.run.next_seq) {
        let entry = entry?;
        if entry.kind == Kind::Call {
            return Ok(Some(entry.seq));
        }
    }
    Ok(None)
}
