//! Decisions of a person on steps in doubt.

use outlast_core::{engine::step::ResolveStep, journal::iteration_scope, store::Durability, words::id::Seq};
use pyo3::prelude::*;

use crate::{error::Failure, open_run::OpenRun, ticket::Ticket, values::encode};

/// Records a person's decision on the step `key`, which is in doubt. `seq` is its newest entry, None if this process
/// itself recorded it. The ticket's answer is the entry that holds the decision. Synced.
#[pyfunction]
pub fn resolve_step(
    py: Python<'_>,
    open_run: &OpenRun,
    key: String,
    scope: Option<String>,
    seq: Option<i64>,
    value: &[u8],
    failed: bool,
) -> PyResult<Ticket> {
    let actor = open_run.actor();
    let core = open_run.core()?;
    let seen = match seq {
        Some(seq) => {
            let entry = py.detach(|| core.store.entry(actor.run, Seq(seq))).map_err(Failure::from)?;
            entry.and_then(|e| e.instance)
        }
        None => Some(actor.instance),
    };
    let resolve = ResolveStep {
        run: actor.run,
        scope: scope.map_or_else(|| iteration_scope(open_run.iteration_of()), Into::into),
        key,
        seen,
        by: Some(actor.instance),
        value: encode(py, value)?,
        failed,
    };
    Ok(open_run.submit(resolve, Durability::Synced)?)
}
