//! Places of the state, each whole: the namespaces, the agents of one, the keys of an agent; and a run's snapshots.

use super::all;
use crate::{
    run::snapshot::{AGENT, Kept, namespace},
    state::{At, Item, Namespace},
    store::{Error, Store, state::Scan},
    words::{Micros, RunId, Seq},
};

/// Number of names read at once.
const NAMES: usize = 1_000;

/// Number of keys that are read at a time.
const KEYS: usize = 500;

/// Returns all namespaces, in the order of their UTF-8 bytes.
pub fn namespaces(store: &dyn Store) -> Result<Vec<Namespace>, Error> {
    all(NAMES, |last: Option<&Namespace>| store.namespaces(last.map(|n| n.name.clone()), NAMES))
}

/// Returns all agents of a namespace, in the order of their UTF-8 bytes. Includes agents whose keys are all deleted.
pub fn agents(store: &dyn Store, namespace: &str) -> Result<Vec<String>, Error> {
    all(NAMES, |last| store.agents(namespace, last.cloned(), NAMES))
}

/// Returns all live keys of an agent with their values as of `at`, in the order of their UTF-8 bytes.
pub fn keys(store: &dyn Store, namespace: &str, agent: &str, at: At) -> Result<Vec<Item>, Error> {
    let (namespace, agent) = (namespace.to_owned(), agent.to_owned());
    let mut scan = Scan { namespace, agent, at, limit: KEYS, ..Scan::default() };
    all(KEYS, |last: Option<&Item>| {
        scan.after = last.map(|item| item.key.clone());
        store.state_scan(&scan)
    })
}

/// Returns the entry number and the time of the newest snapshot of this name; `None` if there is none.
pub fn snapshot(store: &dyn Store, run: &RunId, name: &str) -> Result<Option<(Seq, Micros)>, Error> {
    let found = store.state(&namespace(run), AGENT, name)?.and_then(|item| item.value);
    let Some(value) = found else { return Ok(None) };
    let kept: Kept = serde_json::from_slice(&value)
        .map_err(|e| Error::Corrupt { what: format!("the snapshot {name:?} of run {run}: {e}") })?;
    Ok(Some((kept.seq, kept.at)))
}
