//! Keys of an agent's state, all of them.

use crate::{
    state::{At, Item},
    store::{Error, Store, state::Scan},
};

/// Number of keys that are read at a time.
const PAGE: usize = 500;

/// Returns all live keys of an agent with their values as of `at`, in the order of their UTF-8 bytes.
pub fn all(store: &dyn Store, namespace: &str, agent: &str, at: At) -> Result<Vec<Item>, Error> {
    let (namespace, agent) = (namespace.to_owned(), agent.to_owned());
    let mut scan = Scan { namespace, agent, at, limit: PAGE, ..Scan::default() };
    let mut found = Vec::new();
    loop {
        let page = store.state_scan(&scan)?;
        let last = page.len() < PAGE;
        scan.after = page.last().map(|item| item.key.clone());
        found.extend(page);
        if last {
            return Ok(found);
        }
    }
}
