//! Batch jobs: a run of items, the counts kept in its row, and the outcomes of claiming and recording an item.

use serde::{Deserialize, Serialize};

pub use crate::journal::{ItemDetail, Standing};
use crate::{
    envelope::Amounts,
    journal::{Entry, Opening},
    words::{AttemptNo, Micros, Seq},
};

/// Scope of all items: a key names one item of its job, over all attempts.
pub const SCOPE: &str = "items";

/// Number of process deaths after which an item that was open at each of them is dead: the item seems to kill whatever
/// runs it.
pub const MOST_DEATHS: i64 = 3;

/// Number of starts of the job after which an item that failed in each of them is dead.
pub const MOST_FAILED_STARTS: i64 = 3;

/// Data of a batch job in its run's row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Job {
    pub name: String,
    pub counts: Counts,
}

/// Numbers of a job's items by standing. The numbers are exact: they change in the same commits as the items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    pub open: i64,
    pub done: i64,
    pub failed: i64,
    pub dead: i64,
    pub skipped: i64,
    /// Number of items of the input that the job was last started with; 0 if no start has recorded it.
    pub expected: i64,
    /// Number of recorded items that this input no longer has.
    pub vanished: i64,
    /// Milliseconds in which a process worked on the job, as posted until `worked_until`. Several at once count once.
    pub worked_ms: i64,
    pub worked_until: Micros,
}

impl Counts {
    pub fn of(mut self, standing: Standing) -> i64 {
        *self.of_mut(standing)
    }

    /// Adds the `ms` milliseconds before `now` in which a process worked, without those that are posted already.
    pub fn work(&mut self, ms: i64, now: Micros) {
        self.worked_ms += ms.min(now.ms_since(self.worked_until));
        self.worked_until = self.worked_until.max(now);
    }

    pub fn of_mut(&mut self, standing: Standing) -> &mut i64 {
        match standing {
            Standing::Open => &mut self.open,
            Standing::Done => &mut self.done,
            Standing::Failed => &mut self.failed,
            Standing::Dead => &mut self.dead,
            Standing::Skipped => &mut self.skipped,
        }
    }

    pub fn total(&self) -> i64 {
        Standing::ALL.iter().map(|s| self.of(*s)).sum()
    }

    /// Returns the number of items that are still to be worked on, including those that no worker has claimed yet.
    pub fn wanted(&self) -> i64 {
        (self.expected + self.vanished).max(self.total())
    }

    /// Returns the number of items that need no more work.
    pub fn ended(&self) -> i64 {
        self.total() - self.open
    }
}

/// Part of an item's newest entry that a resume, a list or an inspection reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemRow {
    pub seq: Seq,
    pub key: String,
    /// Attempt that claimed the item last.
    pub attempt: AttemptNo,
    pub opened_at: Micros,
    pub closed_at: Option<Micros>,
    /// Charges of the item's calls in all its entries, including the calls in its steps.
    pub spent: Amounts,
    pub detail: ItemDetail,
}

impl ItemRow {
    /// Returns the row of an item's entry; `None` for any other entry.
    pub fn of(e: &Entry) -> Option<ItemRow> {
        Some(ItemRow {
            seq: e.seq,
            key: e.key.clone()?,
            attempt: e.attempt,
            opened_at: e.opened_at,
            closed_at: e.closed_at,
            spent: e.spent + e.item.as_deref()?.earlier,
            detail: e.item.as_deref()?.clone(),
        })
    }
}

/// Policy for an item whose content or code changed since it was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnChange {
    /// Opens a new entry; the old result is kept as history.
    #[default]
    Rerun,
    Keep,
    /// Returns `ItemClaim::Changed` to the caller, and writes nothing.
    Fail,
}

/// Outcome of claiming an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemClaim {
    /// The item is claimed: run it.
    Run(ItemRun),
    /// Nothing is to be run: the item is `Done`, `Skipped` or `Dead`, or has `Failed` since this start of the job.
    Ended { seq: Seq, standing: Standing },
    /// A live worker has claimed the item.
    Held { seq: Seq },
    /// This try would be the item's last before it counts as dead. Let all other items end, then claim this one
    /// `alone`.
    Suspect { seq: Seq, deaths: i64 },
    /// The item is done with other content or code, and the caller chose `OnChange::Fail`.
    Changed { seq: Seq },
}

/// A claimed item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemRun {
    pub opening: Opening,
    pub try_no: i64,
    /// Number of this try within the entry, from 1.
    pub tries: i64,
    /// Whether a try that was cut off or given back goes on. Its paid answers are replayed.
    pub continued: bool,
    pub deaths: i64,
    /// Scope of the item's steps, as `BeginStep` takes it.
    pub steps: std::sync::Arc<str>,
}

/// Outcome of recording an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemEnded {
    pub seq: Seq,
    /// New standing; `Dead` if the item was recorded as failed once too often.
    pub standing: Standing,
    pub tries: i64,
    pub spent: Amounts,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: two processes on one job halved its pace. Cause: the pace was that of the sum of their times.
    #[test]
    fn time_in_which_several_processes_work_counts_once() {
        let mut counts = Counts::default();
        for (ms, at_ms, wanted) in
            [(1000, 5000, 1000), (900, 5000, 1000), (1500, 6000, 2000), (200, 9000, 2200)]
        {
            counts.work(ms, Micros(at_ms * 1000));
            assert_eq!(counts.worked_ms, wanted);
        }
        counts.work(100, Micros(8_000_000));
        assert_eq!((counts.worked_ms, counts.worked_until), (2200, Micros(9_000_000)), "the clock went back");
    }
}
