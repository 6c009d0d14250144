//! Snapshots: named points of a run's journal.

use serde::{Deserialize, Serialize};

use crate::words::id::{Micros, RunId, Seq};

/// Who keeps them in the state.
pub const AGENT: &str = "outlast";

/// Where a run's snapshots are kept.
pub fn namespace(run: &RunId) -> String {
    format!("snapshots:{run}")
}

/// What is kept of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub seq: Seq,
    pub at: Micros,
}
