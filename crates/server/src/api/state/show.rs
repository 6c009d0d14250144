//! JSON shapes of the state: versions, commits, keys, resume points.

use std::collections::HashMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use outlast_core::{
    state::{Item, Listed, Namespace, ResumePoint, Retention},
    store::{self, Store, state::Event},
    words::{RunId, RunNo},
};
use outlast_view::{Time, shape};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};

shape! {
    /// Version of a key. The value is written as it is stored, so that no number loses a digit.
    pub Version(item: &Item; let (value, base64) = written(item.value.as_deref())) {
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String> = None;
        #[serde(skip_serializing_if = "Option::is_none")]
        agent: Option<String> = None;
        key: String = item.key.clone();
        version: i64 = item.version;
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<Box<RawValue>> = value;
        /// Value that is not JSON, in base64; `None` for a value that is JSON or deleted.
        #[serde(skip_serializing_if = "Option::is_none")]
        value_base64: Option<String> = base64;
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        deleted: bool = item.value.is_none();
        #[serde(flatten)] by: Option<By> = None;
    }
}

/// Commit of a version, with the run and attempt that wrote it; `None`: no run wrote it.
#[derive(Clone, Debug, Serialize)]
pub struct By {
    pub commit: i64,
    /// Time of the commit.
    pub at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i64>,
}

/// Commit as JSON: its operations on one agent's keys.
#[derive(Debug, Serialize)]
pub struct Commit {
    #[serde(flatten)]
    pub by: By,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<String>,
    pub operations: Vec<Version>,
}

/// Cache of run ids by run number, so that each is looked up once.
#[derive(Default)]
pub struct Runs(HashMap<RunNo, Option<RunId>>);

impl Runs {
    /// Returns the id of a run; `None` if the run is not there.
    pub fn id(&mut self, store: &dyn Store, run: RunNo) -> Result<Option<RunId>, store::Error> {
        if let Some(known) = self.0.get(&run) {
            return Ok(known.clone());
        }
        let id = store.run(run)?.map(|view| view.run.id);
        self.0.insert(run, id.clone());
        Ok(id)
    }

    /// Returns the commit of a version: its number, its time, and the run that wrote it.
    pub fn by(&mut self, store: &dyn Store, item: &Item) -> Result<By, store::Error> {
        let run = item.run.map(|run| self.id(store, run)).transpose()?.flatten();
        Ok(By { commit: item.commit, at: Time(item.at), run, attempt: item.attempt.map(|a| a.0) })
    }

    /// Converts a version of a key for JSON output, with its namespace and agent.
    pub fn item(&mut self, store: &dyn Store, item: &Item) -> Result<Version, store::Error> {
        let (namespace, agent) = (Some(item.namespace.clone()), Some(item.agent.clone()));
        Ok(Version { namespace, agent, ..self.version(store, item)? })
    }

    /// Converts a version of a key for JSON output, without its namespace and agent.
    pub fn version(&mut self, store: &dyn Store, item: &Item) -> Result<Version, store::Error> {
        Ok(Version { by: Some(self.by(store, item)?), ..Version::new(item) })
    }

    /// Returns a commit as JSON. `events` are the commit's events on one agent; `None` if there are none.
    pub fn commit(&mut self, store: &dyn Store, events: &[Event]) -> Result<Option<Commit>, store::Error> {
        let Some(first) = events.first() else { return Ok(None) };
        let by = self.by(store, &first.item)?;
        let operations = events.iter().map(|e| Version::new(&e.item)).collect();
        Ok(Some(Commit { by, transaction: first.transaction.clone(), operations }))
    }

    /// Returns a commit as JSON, and the position after which a replay goes on.
    pub fn positioned(
        &mut self,
        store: &dyn Store,
        events: &[Event],
    ) -> Result<(i64, Option<Commit>), store::Error> {
        Ok((events.last().map_or(0, |e| e.item.position.0), self.commit(store, events)?))
    }
}

/// Returns a value as it is written: as JSON, or in base64.
fn written(value: Option<&[u8]>) -> (Option<Box<RawValue>>, Option<String>) {
    match value.map(|bytes| serde_json::from_slice(bytes).map_err(|_| STANDARD.encode(bytes))) {
        None => (None, None),
        Some(Ok(raw)) => (Some(raw), None),
        Some(Err(base64)) => (None, Some(base64)),
    }
}

pub fn listed(key: &Listed) -> Value {
    json!({ "key": key.key, "version": key.version, "commit": key.commit, "at": Time(key.at) })
}

pub fn namespace(namespace: &Namespace) -> Value {
    json!({ "namespace": namespace.name, "commit": namespace.commit, "at": Time(namespace.at) })
}

shape! {
    /// Number of versions of each key that a namespace keeps, or `all`.
    pub Kept(name: &str, keep: Retention, removed: Option<i64>) {
        namespace: String = name.to_owned();
        keep: Value = match keep {
            Retention::All => "all".into(),
            Retention::Last(n) => n.into(),
        };
        /// Number of versions that are gone since; absent where none were to be removed.
        #[serde(skip_serializing_if = "Option::is_none")]
        removed: Option<i64> = removed;
    }
}

pub fn resume_point(point: &ResumePoint) -> Value {
    json!({ "done": point.done, "pending": point.pending, "pending_key": point.pending_key })
}

/// Returns the bytes to store for a value: its JSON text unchanged, without surrounding whitespace.
pub fn value_text(raw: &RawValue) -> Vec<u8> {
    raw.get().trim().as_bytes().to_vec()
}
