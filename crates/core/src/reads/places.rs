//! Places of the state: all namespaces, and all agents of one.

use crate::{
    state::Namespace,
    store::{self, Store},
};

/// Number of names read at once.
const PAGE: usize = 1_000;

/// Returns all namespaces, in the order of their UTF-8 bytes.
pub fn namespaces(store: &dyn Store) -> Result<Vec<Namespace>, store::Error> {
    let mut all: Vec<Namespace> = Vec::new();
    loop {
        let page = store.namespaces(all.last().map(|n| n.name.clone()), PAGE)?;
        let is_last = page.len() < PAGE;
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}

/// Returns all agents of a namespace, in the order of their UTF-8 bytes. Includes agents whose keys are all deleted.
pub fn agents(store: &dyn Store, namespace: &str) -> Result<Vec<String>, store::Error> {
    let mut all: Vec<String> = Vec::new();
    loop {
        let page = store.agents(namespace, all.last().cloned(), PAGE)?;
        let is_last = page.len() < PAGE;
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}
