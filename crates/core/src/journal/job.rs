//! A batch job is a run of items: what its row counts, and what an item's entry keeps.

use serde::{Deserialize, Serialize};

use crate::{
    envelope::unit::Amounts,
    journal::{Entry, State},
    words::{
        digest::Digest,
        id::{AttemptNo, Micros, Seq},
    },
};

/// The scope of all items: a key names one item of its job, over all attempts.
pub const SCOPE: &str = "items";

/// An item that was open at this many deaths of its process is dead: it kills what runs it.
pub const MOST_DEATHS: i64 = 3;

/// An item that failed in this many starts is dead.
pub const MOST_FAILED_STARTS: i64 = 3;

/// What makes a run a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Job {
    pub name: String,
    pub counts: Counts,
}

/// How many of a job's items stand where. Exact: changed in the commits that change the items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    pub open: i64,
    pub done: i64,
    pub failed: i64,
    pub dead: i64,
    pub skipped: i64,
}

impl Counts {
    pub fn of(&self, standing: Standing) -> i64 {
        match standing {
            Standing::Open => self.open,
            Standing::Done => self.done,
            Standing::Failed => self.failed,
            Standing::Dead => self.dead,
            Standing::Skipped => self.skipped,
        }
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
}

/// Where an item stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Claimed, or given back and pending.
    #[default]
    Open,
    Done,
    /// Runs again at the next start.
    Failed,
    /// Runs again only when a person resets it.
    Dead,
    /// The function refused it with a reason: a tombstone, so that no resume pays for it again.
    Skipped,
}

impl Standing {
    pub const ALL: [Standing; 5] =
        [Standing::Open, Standing::Done, Standing::Failed, Standing::Dead, Standing::Skipped];

    pub fn name(self) -> &'static str {
        match self {
            Standing::Open => "open",
            Standing::Done => "done",
            Standing::Failed => "failed",
            Standing::Dead => "dead",
            Standing::Skipped => "skipped",
        }
    }

    /// The state of the item's entry.
    pub fn state(self) -> State {
        match self {
            Standing::Open => State::Open,
            Standing::Done | Standing::Skipped => State::Done,
            Standing::Failed | Standing::Dead => State::Failed,
        }
    }
}

/// What only an item's entry has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ItemDetail {
    /// Its place in the input of the start that claimed it, from 0.
    pub index: i64,
    /// Of its content, to see that the same key means something else now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Digest>,
    /// Of the code that ran it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Digest>,
    pub standing: Standing,
    /// The number of its current try, over all entries of its key: the scope of its calls.
    pub try_no: i64,
    /// The number of this entry's first try.
    pub first_try: i64,
    /// Starts in which it failed, this entry's own included.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_starts: i64,
    /// Deaths of processes while it was open.
    #[serde(skip_serializing_if = "is_zero")]
    pub deaths: i64,
    /// Grows when its finished steps no longer count: it was done, and runs anew.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// The generation whose paid answers its steps with retries replay.
    #[serde(skip_serializing_if = "is_zero")]
    pub root: i64,
    /// Why it was skipped, or what made it dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Most items have nothing of it: their rows stay small.
fn is_zero(n: &i64) -> bool {
    *n == 0
}

impl ItemDetail {
    /// The tries of this entry; one that was cut off or given back and then continued is one.
    pub fn tries(&self) -> i64 {
        self.try_no - self.first_try + 1
    }
}

/// An item as a resume, a list or an inspection needs it: its newest entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemRow {
    pub seq: Seq,
    pub key: String,
    /// The attempt that claimed it last.
    pub attempt: AttemptNo,
    pub opened_at: Micros,
    pub closed_at: Option<Micros>,
    /// What its calls were charged, those of its steps included.
    pub spent: Amounts,
    pub detail: ItemDetail,
}

impl ItemRow {
    /// The row of an item's entry; `None` for any other.
    pub fn of(e: &Entry) -> Option<ItemRow> {
        Some(ItemRow {
            seq: e.seq,
            key: e.key.clone()?,
            attempt: e.attempt,
            opened_at: e.opened_at,
            closed_at: e.closed_at,
            spent: e.spent,
            detail: e.item.as_deref()?.clone(),
        })
    }
}

/// What becomes of an item whose content or code changed since it was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnChange {
    /// A new entry; the old result is kept as history.
    #[default]
    Rerun,
    Keep,
    /// The caller is told, and nothing is written.
    Fail,
}

/// What became of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemClaim {
    /// Claimed: run it.
    Run(ItemRun),
    /// Nothing to run: `Done` or `Skipped` before, `Dead`, or `Failed` in this start.
    Ended { seq: Seq, standing: Standing },
    /// A live worker has it.
    Held { seq: Seq },
    /// This would be its last try before it is dead: let all others end, then claim it `alone`.
    Suspect { seq: Seq, deaths: i64 },
    /// It is done with other content or code, and the caller wanted to be told.
    Changed { seq: Seq },
}

/// A claimed item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemRun {
    pub seq: Seq,
    pub try_no: i64,
    /// Which try of this entry it is, from 1.
    pub tries: i64,
    /// A try that was cut off or given back goes on: its paid answers are replayed.
    pub continued: bool,
    pub deaths: i64,
    /// Where its steps are found: the `scope` of their `BeginStep`.
    pub steps: std::sync::Arc<str>,
}

/// What became of an item that was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemEnded {
    pub seq: Seq,
    /// `Dead` where it was recorded as failed once too often.
    pub standing: Standing,
    pub tries: i64,
    pub spent: Amounts,
}
