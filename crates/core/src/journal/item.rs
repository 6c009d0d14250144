//! What only an item has.

use serde::{Deserialize, Serialize};

use super::State;
use crate::words::digest::Digest;

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

impl ItemDetail {
    /// The tries of this entry; one that was cut off or given back and then continued is one.
    pub fn tries(&self) -> i64 {
        self.try_no - self.first_try + 1
    }
}

/// Most items have nothing of it: their rows stay small.
fn is_zero(n: &i64) -> bool {
    *n == 0
}
