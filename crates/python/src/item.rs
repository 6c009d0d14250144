//! Items of a batch job, used through an attempt: claimed, retried, recorded, returned.

use outlast_core::{
    engine::{
        call::settle::StorePart,
        item::{ClaimItem, ItemEnd, RecordItem, ReturnItem},
        step::NextTry,
    },
    journal::{Role, job::OnChange},
    store::Durability,
    words::digest::Digest,
};
use pyo3::prelude::*;

use crate::{
    error::Failure,
    open_run::OpenRun,
    ticket::Ticket,
    values::{RawChange, changes_of, encode},
};

/// Claims the item `key`. The ticket's answer is ("run", seq, tries, continued, deaths, scope of its steps), ("ended",
/// seq, standing), ("held", seq), ("suspect", seq, deaths) or ("changed", seq). Committed.
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
    let claim = ClaimItem {
        actor: open_run.actor(),
        slot: open_run.slot(),
        key,
        index,
        content: content.map(Digest),
        version: version.map(Digest),
        on_change: on_change_of(on_change)?,
        on_version: on_change_of(on_version)?,
        alone,
    };
    Ok(open_run.submit(claim, Durability::Committed)?)
}

/// Records that a try of the item raised an exception, and begins the next try, whose number is the answer. Committed.
#[pyfunction]
pub fn next_try(open_run: &OpenRun, seq: i64) -> PyResult<Ticket> {
    let next = NextTry { actor: open_run.actor(), slot: open_run.slot(), opening: open_run.opening(seq) };
    Ok(open_run.submit(next, Durability::Committed)?)
}

/// Closes the item as "done" (with its result), "failed" (with its error) or "skipped" (with the reason, as text). The
/// answer is (standing, tries, nano-USD, calls). `changes` of the state are committed with it.
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
    let opening = open_run.opening(seq);
    let split = || Ok::<_, Failure>(StorePart::before(opening, Role::Value, encode(py, value)?));
    let (parts, end) = match how {
        "done" => split().map(|(parts, last)| (parts, ItemEnd::Done(last)))?,
        "failed" => split().map(|(parts, last)| (parts, ItemEnd::Failed(last)))?,
        _ => (Vec::new(), ItemEnd::Skipped { reason: String::from_utf8_lossy(value).into_owned() }),
    };
    let record = RecordItem { opening, end, changes: changes_of(changes) };
    let durability = if lasting { Durability::Synced } else { Durability::Committed };
    Ok(open_run.submit(record, durability)?.behind(parts))
}

/// Gives the item back: it is pending again, and this claim counts neither as a try nor as a death. Committed.
#[pyfunction]
pub fn return_item(open_run: &OpenRun, seq: i64) -> PyResult<Ticket> {
    let opening = open_run.opening(seq);
    open_run.openings().lock().forget(opening.run, opening.seq);
    Ok(open_run.submit(ReturnItem { opening }, Durability::Committed)?)
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
