//! Snapshots, found by name.

use crate::{
    run::snapshot::{AGENT, Kept, namespace},
    store::{Error, Store},
    words::{Micros, RunId, Seq},
};

/// Returns the entry number and the time of the newest snapshot of this name; `None` if there is none.
pub fn named(store: &dyn Store, run: &RunId, name: &str) -> Result<Option<(Seq, Micros)>, Error> {
    let found = store.state(&namespace(run), AGENT, name)?.and_then(|item| item.value);
    let Some(value) = found else { return Ok(None) };
    let kept: Kept = serde_json::from_slice(&value)
        .map_err(|e| Error::Corrupt { what: format!("the snapshot {name:?} of run {run}: {e}") })?;
    Ok(Some((kept.seq, kept.at)))
}
