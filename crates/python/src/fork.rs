//! Snapshots and forks for Python.

use std::collections::HashMap;

use outlast::program::find::fork_point;
use outlast_core::{
    engine::{InName, Snapshot},
    reads::forks::{Point, id_of, prepare},
    store::{Ask as _, Durability},
    words::{AttemptNo, Micros, RunId},
};
use pyo3::prelude::*;

use crate::{engine::Engine, error::Failure, values::limits_of};

/// Names the run's present point as a snapshot. Returns the number of the journal entry at that point. Synced. Errors:
/// `UnknownRun`.
#[pyfunction]
pub fn snapshot(py: Python<'_>, engine: &Engine, run: &str, name: String) -> PyResult<i64> {
    let core = engine.core()?;
    let seq = py.detach(|| {
        let view = Engine::view_of(&core, run)?;
        let snapshot = Snapshot { run: view.run.no, id: view.run.id, name };
        Ok::<_, Failure>(core.store.ask(snapshot, Durability::Synced).wait()?)
    })?;
    Ok(seq.0)
}

/// Forks the run from a point: an attempt's number, a moment in microseconds since the Unix epoch, or a word (the name
/// of a snapshot, else a time as text). Returns the fork's id, the same one for the same point. Synced.
#[pyfunction]
pub fn fork(
    py: Python<'_>,
    engine: &Engine,
    run: &str,
    attempt: Option<i64>,
    at_us: Option<i64>,
    word: Option<String>,
    limits: HashMap<String, i64>,
) -> PyResult<String> {
    let core = engine.core()?;
    let limits = limits_of(&limits)?;
    let id = py.detach(|| {
        let view = Engine::view_of(&core, run)?;
        let point = match (attempt, at_us, word) {
            (Some(no), ..) => Point::Attempt(AttemptNo(no)),
            (_, Some(at), _) => Point::Time(Micros(at)),
            (.., word) => fork_point(core.store.as_ref(), &view, &word.unwrap_or_default())?,
        };
        let long = || Failure::new("bad_run_id", "the fork's id would be longer than 128 characters", None);
        let id: RunId = id_of(&view.run.id, &point).ok_or_else(long)?;
        let fork = prepare(core.store.as_ref(), view.run.no, &point, id.clone(), limits)?;
        core.store.ask(InName::of(core.actor(), fork), Durability::Synced).wait()?;
        Ok::<_, Failure>(id.to_string())
    })?;
    Ok(id)
}
