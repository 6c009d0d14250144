//! Snapshots: named points of a run's journal.

use serde::{Deserialize, Serialize};

use crate::{
    store::{Error, Store},
    words::id::{Micros, RunId, Seq},
};

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

/// The point of this name; the newest one of it counts.
pub fn named(store: &dyn Store, run: &RunId, name: &str) -> Result<Option<(Seq, Micros)>, Error> {
    let found = store.state(&namespace(run), AGENT, name)?.and_then(|item| item.value);
    let Some(value) = found else { return Ok(None) };
    let kept: Kept = serde_json::from_slice(&value)
        .map_err(|e| Error::Corrupt { what: format!("the snapshot {name:?} of run {run}: {e}") })?;
    Ok(Some((kept.seq, kept.at)))
}
