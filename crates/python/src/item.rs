//! Items of a batch job and steps in doubt, used through an attempt: claimed, retried, recorded, returned, decided.

use outlast_core::{engine::ItemEnd, journal::OnChange, words::Digest};
use outlast_server::work::Deed;
use pyo3::prelude::*;

use crate::{
    error::Failure,
    open_run::OpenRun,
    ticket::Ticket,
    values::{RawChange, changes_of, encode},
};

/// Claims the item `key`. The ticket's answer is ("run", seq, tries, continued, deaths, scope of its steps),
/// ("ended", seq, standing), ("held", seq), ("suspect", seq, deaths) or ("changed", seq). Committed.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they are named in the stub, and have one caller")]
pub fn claim_item(
    open_run: &OpenRun,
    key: String,
    index: i64,
    content: Option<[u8; 32]>,
    version: Option<[u8; 32]>,
    on_change: &str,
    on_version: &str,
    alone: bool,
) -> PyResult<Ticket> {
    let (content, version) = (content.map(Digest), version.map(Digest));
    let (on_change, on_version) = (on_change_of(on_change)?, on_change_of(on_version)?);
    open_run.does(Deed::ClaimItem { key, index, content, version, on_change, on_version, alone })
}

/// Records that a try of the item raised an exception, and begins the next try, whose number is the answer.
/// Committed.
#[pyfunction]
pub fn next_try(open_run: &OpenRun, seq: i64) -> PyResult<Ticket> {
    open_run.does(Deed::NextTry { seq })
}

/// Closes the item as "done" (with its result), "failed" (with its error) or "skipped" (with the reason, as text).
/// The answer is (standing, tries, nano-USD, calls). `changes` of the state are committed with it.
///
/// Synced; only committed if `lasting` is false, for a result that is on disk elsewhere.
#[pyfunction]
#[pyo3(signature = (open_run, seq, how, value, lasting=true, changes=Vec::new()))]
pub fn record_item(
    py: Python<'_>,
    open_run: &OpenRun,
    seq: i64,
    how: &str,
    value: &[u8],
    lasting: bool,
    changes: Vec<RawChange>,
) -> PyResult<Ticket> {
    let end = match how {
        "done" => ItemEnd::Done(encode(py, value)?),
        "failed" => ItemEnd::Failed(encode(py, value)?),
        _ => ItemEnd::Skipped { reason: String::from_utf8_lossy(value).into_owned() },
    };
    open_run.does(Deed::RecordItem { seq, end, changes: changes_of(changes), lasting })
}

/// Gives the item back: it is pending again, and this claim counts neither as a try nor as a death. Committed.
#[pyfunction]
pub fn return_item(open_run: &OpenRun, seq: i64) -> PyResult<Ticket> {
    open_run.does(Deed::ReturnItem { seq })
}

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
    let resolve = Deed::ResolveStep { key, scope, seq, value: encode(py, value)?, failed };
    py.detach(|| open_run.does(resolve))
}

fn on_change_of(text: &str) -> Result<OnChange, Failure> {
    match text {
        "rerun" => Ok(OnChange::Rerun),
        "keep" => Ok(OnChange::Keep),
        "fail" => Ok(OnChange::Fail),
        had => {
            let message = format!("on_change wants 'rerun', 'keep' or 'fail', had {had:?}");
            Err(Failure::new("bad_on_change", message, None))
        }
    }
}
