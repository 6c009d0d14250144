//! Recorded items of a job, read once in pages and found by key.

use std::{collections::HashMap, sync::Arc};

use outlast_core::{
    envelope::Unit,
    journal::{ItemRow, Payload, job::Standing},
    reads::runs,
    store::{Error, Page, RunFilter, Store},
    words::{Digest, RunNo, Seq},
};
use parking_lot::Mutex;
use pyo3::{prelude::*, types::PyBytes};
use serde_json::json;

use crate::{
    engine::Engine,
    error::Failure,
    shared::Shared,
    values::{decoded, value},
};

/// Number of items read at once.
const PAGE: usize = 2048;

/// Stored bytes of results kept in memory. Further results are read by page when they are asked for.
const KEPT: u64 = 64 << 20;

/// Items of a job as earlier attempts left them.
///
/// Memory: about 150 bytes an item, plus at most `KEPT` bytes of results.
#[pyclass(frozen, module = "outlast._native")]
pub struct Items {
    shared: Arc<Shared>,
    run: RunNo,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    by_key: HashMap<String, Known>,
    values: HashMap<Seq, Payload>,
    /// Page of results read around the last result that was not in memory.
    page: HashMap<Seq, Payload>,
    /// Number of results of that page that were asked for. If few are, single reads are cheaper.
    hits: usize,
}

struct Known {
    seq: Seq,
    standing: Standing,
    content: Option<Digest>,
    version: Option<Digest>,
    closed_us: i64,
    cost_nano: i64,
    tries: i64,
    /// Whether the input of this attempt contains the item.
    wanted: bool,
}

impl Items {
    pub fn read(shared: Arc<Shared>, run: RunNo, store: &dyn Store) -> Result<Items, Error> {
        let mut memory = Memory::default();
        let (mut after, mut kept) = (Seq(0), 0);
        loop {
            let page: Vec<(ItemRow, Option<Payload>)> = if kept < KEPT {
                store.items(run, &Page::new(after, PAGE).with_values())?
            } else {
                store.items(run, &Page::new(after, PAGE))?
            };
            let Some((last, _)) = page.last() else { break };
            after = last.seq;
            let whole = page.len() == PAGE;
            for (row, recorded) in page {
                if let Some(recorded) = recorded.filter(|_| kept < KEPT) {
                    kept += recorded.bytes.len() as u64;
                    memory.values.insert(row.seq, recorded);
                }
                memory.by_key.insert(row.key.clone(), Known::of(&row));
            }
            if !whole {
                break;
            }
        }
        Ok(Items { shared, run, memory: Mutex::new(memory) })
    }
}

impl Known {
    fn of(row: &ItemRow) -> Known {
        Known {
            seq: row.seq,
            standing: row.detail.standing,
            content: row.detail.content,
            version: row.detail.version,
            closed_us: row.closed_at.map_or(0, |t| t.0),
            cost_nano: row.spent.cost(),
            tries: row.detail.tries(),
            wanted: false,
        }
    }
}

#[pymethods]
impl Items {
    /// Returns what is recorded for `key`: (seq, standing, tries, nano-USD, closed at in microseconds, content changed,
    /// code changed), or None. The item counts as wanted from now on.
    fn find(
        &self,
        key: &str,
        content: Option<[u8; 32]>,
        version: Option<[u8; 32]>,
    ) -> Option<(i64, &'static str, i64, i64, i64, bool, bool)> {
        let mut memory = self.memory.lock();
        let known = memory.by_key.get_mut(key)?;
        known.wanted = true;
        let differs = |now: Option<[u8; 32]>, then: Option<Digest>| {
            now.zip(then).is_some_and(|(now, Digest(then))| now != then)
        };
        Some((
            known.seq.0,
            known.standing.name(),
            known.tries,
            known.cost_nano,
            known.closed_us,
            differs(content, known.content),
            differs(version, known.version),
        ))
    }

    /// Returns the result or error recorded as entry `seq`. Reads by page if results are asked for in order.
    fn value<'py>(&self, py: Python<'py>, seq: i64) -> PyResult<Bound<'py, PyBytes>> {
        let seq = Seq(seq);
        if let Some(kept) = self.found(seq) {
            return Ok(PyBytes::new(py, &decoded(&kept, self.run, seq)?));
        }
        let core = self.shared.core()?;
        let recorded = py.detach(|| {
            if self.is_worth_a_page() {
                let page = core.store.items(self.run, &Page::new(Seq(seq.0 - 1), PAGE).with_values())?;
                let mut memory = self.memory.lock();
                memory.hits = 0;
                memory.page = page.into_iter().filter_map(|(row, v)| Some((row.seq, v?))).collect();
            }
            match self.found(seq) {
                Some(kept) => decoded(&kept, self.run, seq),
                None => value(core.store.as_ref(), self.run, seq),
            }
        })?;
        Ok(PyBytes::new(py, &recorded))
    }

    /// Returns the number of recorded items that the input of this attempt does not contain.
    fn vanished(&self) -> usize {
        self.memory.lock().by_key.values().filter(|known| !known.wanted).count()
    }

    fn __len__(&self) -> usize {
        self.memory.lock().by_key.len()
    }
}

impl Items {
    fn found(&self, seq: Seq) -> Option<Payload> {
        let mut memory = self.memory.lock();
        if let Some(kept) = memory.values.get(&seq) {
            return Some(kept.clone());
        }
        let found = memory.page.remove(&seq);
        memory.hits += usize::from(found.is_some());
        found
    }

    /// Returns whether enough results of the last page were used for another page to be worth reading, or no
    /// page was read yet.
    fn is_worth_a_page(&self) -> bool {
        let memory = self.memory.lock();
        memory.hits * 4 >= memory.page.len() + memory.hits
    }
}

/// Returns the jobs of this name as JSON, newest first: number, id, parent, status, and counts of items by standing.
#[pyfunction]
pub fn jobs(py: Python<'_>, engine: &Engine, name: &str) -> PyResult<String> {
    engine.shared().read(py, |core| {
        let mut found = Vec::new();
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
        Ok::<_, Failure>(serde_json::Value::Array(found).to_string())
    })
}

/// Row of an item for Python: (seq, key, standing, index, (tries, deaths, failed starts), attempt, nano-USD, calls,
/// opened at, closed at (both in microseconds since the Unix epoch), reason, (digests of content and version in hex,
/// recorded value if it was asked for)).
pub type RawItem<'py> = (
    i64,
    String,
    &'static str,
    i64,
    (i64, i64, i64),
    i64,
    i64,
    i64,
    i64,
    Option<i64>,
    Option<String>,
    (Option<String>, Option<String>, Option<Bound<'py, PyBytes>>),
);

/// Item with its recorded value, if that was asked for.
type Row = (ItemRow, Option<Vec<u8>>);

/// Reads a page of a job's items; `values`: with what is recorded of each that is closed.
pub fn rows(store: &dyn Store, run: RunNo, page: &Page, values: bool) -> Result<Vec<Row>, Failure> {
    let whole = |(row, kept): (ItemRow, Option<Payload>)| {
        let value = match kept {
            Some(kept) => Some(decoded(&kept, run, row.seq)?),
            // Too large to be read together with its item.
            None if values && row.closed_at.is_some() => Some(value(store, run, row.seq)?),
            None => None,
        };
        Ok((row, value))
    };
    store.items(run, page)?.into_iter().map(whole).collect()
}

pub fn raw(py: Python<'_>, (row, value): Row) -> RawItem<'_> {
    let d = row.detail;
    let tries = d.tries();
    let digest = |digest: Option<Digest>| digest.map(|digest| digest.to_string());
    (
        row.seq.0,
        row.key,
        d.standing.name(),
        d.index,
        (tries, d.deaths, d.failed_starts),
        row.attempt.0,
        row.spent.cost(),
        row.spent[Unit::Calls],
        row.opened_at.0,
        row.closed_at.map(|t| t.0),
        d.reason,
        (digest(d.content), digest(d.version), value.map(|value| PyBytes::new(py, &value))),
    )
}
