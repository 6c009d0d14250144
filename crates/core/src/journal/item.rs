//! Details and standing of item entries.

use serde::{Deserialize, Serialize};

use super::State;
use crate::{named, words::digest::Digest};

named! {
    /// Standing of a batch item.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Standing {
        /// Claimed, or given back and pending.
        #[default]
        Open "open",
        Done "done",
        /// Failed. The item runs again at the job's next start.
        Failed "failed",
        /// Dead. The item runs again only when a person resets it.
        Dead "dead",
        /// Refused by the function with a reason. Kept as a tombstone, so that no resume pays for the item again.
        Skipped "skipped",
    }
}

impl Standing {
    /// Returns the state of the item's entry.
    pub fn state(self) -> State {
        match self {
            Standing::Open => State::Open,
            Standing::Done | Standing::Skipped => State::Done,
            Standing::Failed | Standing::Dead => State::Failed,
        }
    }
}

/// Details of an item entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ItemDetail {
    /// Position in the input of the start that claimed the item, from 0.
    pub index: i64,
    /// Digest of the item's content, which shows if the key now names other content; `None` if not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Digest>,
    /// Digest of the code that ran the item; `None` if not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Digest>,
    pub standing: Standing,
    /// Number of the current try, counted over all entries of the key. The number is part of the scope of the try's
    /// calls.
    pub try_no: i64,
    /// Number of this entry's first try.
    pub first_try: i64,
    /// Number of starts of the job in which the item failed, this entry's own included.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed_starts: i64,
    /// Number of process deaths while the item was open.
    #[serde(skip_serializing_if = "is_zero")]
    pub deaths: i64,
    /// Generation of the item's steps. Grows when finished steps no longer count, because the item runs anew.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// Generation whose paid answers are replayed to the item's steps with retries.
    #[serde(skip_serializing_if = "is_zero")]
    pub root: i64,
    /// Reason why the item was skipped or is dead; `None` in any other standing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who made the item run again, with this entry: see [`super::act::ActDetail::by`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_by: Option<String>,
}

impl ItemDetail {
    /// Returns the number of tries of this entry. A try that was cut off or given back and then continued
    /// counts once.
    pub fn tries(&self) -> i64 {
        self.try_no - self.first_try + 1
    }
}

/// Tells whether a count is zero, so that rows of ordinary items stay small.
fn is_zero(n: &i64) -> bool {
    *n == 0
}
