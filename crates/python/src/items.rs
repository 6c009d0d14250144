//! Jobs of a store by name, and their results by page.

use outlast_core::{
    envelope::unit::Unit,
    journal::{job::ItemRow, payload::Payload},
    reads::runs,
    store::{Page, RunFilter},
    words::id::{RunNo, Seq},
};
use pyo3::{prelude::*, types::PyBytes};
use serde_json::json;

use crate::{
    engine::Engine,
    error::Failure,
    values::{decoded, value},
};

/// Returns the jobs of this name as JSON, newest first: number, id, parent, status, and counts of items by standing.
#[pyfunction]
pub fn jobs(py: Python<'_>, engine: &Engine, name: &str) -> PyResult<String> {
    let core = engine.core()?;
    let mut found = Vec::new();
    py.detach(|| {
        for view in runs::each(&*core.store, RunFilter { jobs: true, ..RunFilter::default() }) {
            let view = view?;
            let Some(job) = view.run.job.filter(|job| job.name == name) else { continue };
            found.push(json!({
                "no": view.run.no.0,
                "id": view.run.id.as_str(),
                "parent": view.run.parent.map(|no| no.0),
                "status": view.run.status.name(),
                "counts": job.counts,
            }));
        }
        Ok::<_, Failure>(())
    })?;
    Ok(serde_json::Value::Array(found).to_string())
}

/// Row of an item: seq, key, attempt, closed at (microseconds since the Unix epoch), nano-USD, index, content,
/// version (digests in hex), standing, and the recorded value.
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

/// Returns the newest entry of each item whose entry number is above `after`, in order, at most `limit`.
#[pyfunction]
pub fn results<'py>(
    py: Python<'py>,
    engine: &Engine,
    run: i64,
    after: i64,
    limit: usize,
) -> PyResult<Vec<Row<'py>>> {
    let core = engine.core()?;
    let page = py.detach(|| {
        let page = core.store.items(RunNo(run), &Page::new(Seq(after), limit).with_values())?;
        let read = |(row, kept): (ItemRow, Option<Payload>)| {
            let seq = row.seq;
            let kept = kept.map(|kept| decoded(&kept, RunNo(run), seq)).transpose()?;
            Ok::<_, Failure>((row, kept))
        };
        page.into_iter().map(read).collect::<Result<Vec<_>, Failure>>()
    })?;
    let mut rows = Vec::with_capacity(page.len());
    for (row, kept) in page {
        let kept = match kept {
            Some(kept) => Some(PyBytes::new(py, &kept)),
            // Too large to be read together with its item.
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
