//! A batch job's verbs for Python: a job is a run of items, each claimed by one worker and run once.

use std::collections::{BTreeMap, HashMap};

use outlast_core::{
    digest::Digest,
    engine::{
        claim_item::ClaimItem,
        record_item::{ItemEnd, RecordItem},
        reset_item::ResetItem,
        return_item::ReturnItem,
        start::Start,
    },
    id::{RunId, RunNo, Seq},
    job::{ItemClaim, OnChange},
    op::Durability,
    payload::Payload,
    run::{Policy, Spec},
    store::{Ask as _, RunFilter},
    unit::Unit,
};
use pyo3::{prelude::*, types::PyBytes};
use serde_json::json;

use crate::{
    engine::{Engine, limits_of, value},
    error::Failure,
    seat::{Seat, encode},
    ticket::Ticket,
};

/// Jobs that are looked through for one of a name.
const PAGE: usize = 256;

/// Creates the job, or finds it: (number, id, created, status). `limits` by unit name; synced.
#[pyfunction]
pub fn start_job(
    py: Python<'_>,
    engine: &Engine,
    id: &str,
    job: String,
    limits: HashMap<String, i64>,
    tags: BTreeMap<String, String>,
    parent: Option<i64>,
) -> PyResult<(i64, String, bool, &'static str)> {
    let core = engine.core()?;
    let id = RunId::new(id).map_err(|e| Failure::new("bad_run_id", e.to_string(), None))?;
    let start = Start {
        id: id.clone(),
        limits: limits_of(&limits)?,
        policy: Policy::default(),
        spec: Spec { name: Some(job.clone()), tags, job: Some(job), ..Spec::default() },
        parent: parent.map(RunNo),
        command_key: None,
        stdin: None,
    };
    let started = py.detach(|| core.store.ask(start, Durability::Synced).wait()).map_err(Failure::from)?;
    Ok((started.run.0, id.to_string(), started.created, started.status.name()))
}

/// The jobs of this name as JSON, newest first: number, id, status, and how many of its items stand where.
#[pyfunction]
pub fn jobs(py: Python<'_>, engine: &Engine, name: &str) -> PyResult<String> {
    let core = engine.core()?;
    let mut found = Vec::new();
    py.detach(|| {
        let mut filter = RunFilter { jobs: true, limit: PAGE, ..RunFilter::default() };
        loop {
            let page = core.store.runs(&filter)?;
            let whole = page.len() == PAGE;
            filter.before = page.last().map(|view| view.run.no);
            for view in page {
                let Some(job) = view.run.job.filter(|job| job.name == name) else { continue };
                found.push(json!({
                    "no": view.run.no.0,
                    "id": view.run.id.as_str(),
                    "status": view.run.status.name(),
                    "counts": job.counts,
                }));
            }
            if !whole {
                return Ok::<_, Failure>(());
            }
        }
    })?;
    Ok(serde_json::Value::Array(found).to_string())
}

/// Claims an item in this attempt. Answers ("run", seq, tries, deaths), or why there is nothing to run:
/// (standing, seq, 0, 0), ("held", …), ("changed", …).
///
/// `version` other than the recorded one runs it again; `content` is kept beside it. Committed.
#[pyfunction]
pub fn claim_item(
    seat: &Seat,
    key: String,
    index: i64,
    content: Option<&[u8]>,
    version: Option<&[u8]>,
) -> PyResult<Ticket> {
    let claim = ClaimItem {
        actor: seat.actor(),
        slot: seat.slot(),
        key,
        index,
        content: content.map(Digest::of),
        version: version.map(Digest::of),
        on_change: OnChange::Keep,
        on_version: OnChange::Rerun,
        // One item at a time is all that this worker ever has.
        alone: true,
    };
    Ok(seat.submit(claim, Durability::Committed)?)
}

/// Closes an item: "done" or "failed" with what came of it, "skipped" with a reason. Answers its standing.
///
/// Synced; `Committed` where `lasting` is false and what it came to is on disk elsewhere.
#[pyfunction]
#[pyo3(signature = (seat, seq, how, value, lasting=true))]
pub fn record_item(
    py: Python<'_>,
    seat: &Seat,
    seq: i64,
    how: &str,
    value: &[u8],
    lasting: bool,
) -> PyResult<Ticket> {
    let end = match how {
        "done" => ItemEnd::Done(encode(py, value)?),
        "failed" => ItemEnd::Failed(encode(py, value)?),
        _ => ItemEnd::Skipped { reason: String::from_utf8_lossy(value).into_owned() },
    };
    let actor = seat.actor();
    let record =
        RecordItem { run: actor.run, seq: Seq(seq), instance: actor.instance, end, changes: Vec::new() };
    Ok(seat.submit(record, if lasting { Durability::Synced } else { Durability::Committed })?)
}

/// Gives a claimed item back: nothing is held against it. Committed.
#[pyfunction]
pub fn return_item(seat: &Seat, seq: i64) -> PyResult<Ticket> {
    let actor = seat.actor();
    let back = ReturnItem { run: actor.run, seq: Seq(seq), instance: actor.instance };
    Ok(seat.submit(back, Durability::Committed)?)
}

/// Makes an item pending again; what it came to is history. Synced.
#[pyfunction]
pub fn reset_item(py: Python<'_>, engine: &Engine, run: i64, key: String) -> PyResult<i64> {
    let core = engine.core()?;
    let reset = ResetItem { run: RunNo(run), key, reuse_answers: false };
    let seq = py.detach(|| core.store.ask(reset, Durability::Synced).wait()).map_err(Failure::from)?;
    Ok(seq.0)
}

/// An item's row: seq, key, attempt, closed at (microseconds since the Unix epoch), nano-USD, index, content,
/// version (digests in hex), standing, and what was recorded.
type Row<'py> = (
    i64,
    String,
    i64,
    Option<i64>,
    i64,
    i64,
    Option<String>,
    Option<String>,
    &'static str,
    Option<Bound<'py, PyBytes>>,
);

/// The newest entry of each item after `after`, in order, at most `limit`.
#[pyfunction]
pub fn items<'py>(
    py: Python<'py>,
    engine: &Engine,
    run: i64,
    after: i64,
    limit: usize,
) -> PyResult<Vec<Row<'py>>> {
    let core = engine.core()?;
    let page = py.detach(|| {
        let page = core.store.results(RunNo(run), Seq(after), limit)?;
        let read = |(row, kept): (outlast_core::job::ItemRow, Option<Payload>)| {
            let kept = match kept {
                Some(kept) => Some(kept.decode().map_err(|e| {
                    Failure::from(outlast_core::store::Error::Corrupt {
                        what: format!("item {} of run {run}: {e}", row.key),
                    })
                })?),
                None => None,
            };
            Ok::<_, Failure>((row, kept))
        };
        page.into_iter().map(read).collect::<Result<Vec<_>, Failure>>()
    })?;
    let mut rows = Vec::with_capacity(page.len());
    for (row, kept) in page {
        let kept = match kept {
            Some(kept) => Some(PyBytes::new(py, &kept)),
            // Too large to come with its item.
            None if row.closed_at.is_some() => {
                let whole = py.detach(|| value(core.store.as_ref(), RunNo(run), row.seq))?;
                Some(PyBytes::new(py, &whole))
            }
            None => None,
        };
        let d = &row.detail;
        rows.push((
            row.seq.0,
            row.key.clone(),
            row.attempt.0,
            row.closed_at.map(|t| t.0),
            row.spent[Unit::CostNanoUsd],
            d.index,
            d.content.map(|d| d.to_string()),
            d.version.map(|d| d.to_string()),
            d.standing.name(),
            kept,
        ));
    }
    Ok(rows)
}

/// A claim as Python sees it.
pub fn claimed(claim: &ItemClaim) -> (&'static str, i64, i64, i64) {
    match claim {
        ItemClaim::Run(run) => ("run", run.seq.0, run.tries, run.deaths),
        ItemClaim::Ended { seq, standing } => (standing.name(), seq.0, 0, 0),
        ItemClaim::Held { seq } => ("held", seq.0, 0, 0),
        ItemClaim::Suspect { seq, deaths } => ("suspect", seq.0, 0, *deaths),
        ItemClaim::Changed { seq } => ("changed", seq.0, 0, 0),
    }
}
