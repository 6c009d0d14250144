//! Snapshots: named points of a run's journal.

use serde::{Deserialize, Serialize};

use crate::words::{Micros, RunId, Seq};

/// Agent name under which snapshots are kept in the state.
pub const AGENT: &str = "outlast";

/// Returns the namespace of a run's snapshots.
pub fn namespace(run: &RunId) -> String {
    format!("snapshots:{run}")
}

/// Returns the id of the run whose snapshots are in a namespace; `None` for any other namespace.
pub fn run_of(namespace: &str) -> Option<&str> {
    namespace.strip_prefix("snapshots:")
}

/// Stored value of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    pub seq: Seq,
    pub at: Micros,
}
