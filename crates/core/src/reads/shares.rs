//! Shares of upstreams' limits over the servers of a store, in a state namespace that no run may write.

use crate::{
    call::shares::Shares,
    engine::state::put::{Change, Put},
    state::Name,
    store::{Error, Store},
};

/// Namespace of the shares of all upstreams.
pub const NAMESPACE: &str = "outlast:shares";
const AGENT: &str = "upstream";

/// Shares of an upstream, and the version of their key: 0 if none were ever stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub shares: Shares,
    pub version: i64,
}

/// Returns the shares of an upstream.
pub fn find(store: &dyn Store, upstream: &str) -> Result<Kept, Error> {
    let Some(item) = store.state(NAMESPACE, AGENT, upstream)? else { return Ok(Kept::default()) };
    let corrupt = |e| Error::Corrupt { what: format!("the shares of {upstream:?}: {e}") };
    let shares = item.value.as_deref().map(serde_json::from_slice).transpose().map_err(corrupt)?;
    Ok(Kept { shares: shares.unwrap_or_default(), version: item.version })
}

/// Builds the write of shares over the version that they were read at.
pub fn put(upstream: &str, shares: &Shares, version: i64) -> Result<Put, Error> {
    let value = serde_json::to_vec(shares).map_err(|e| Error::Corrupt { what: e.to_string() })?;
    let change = Change::set(Name::new(NAMESPACE, AGENT, upstream), &value).expecting(version);
    Ok(Put { actor: None, changes: vec![change], transaction: None })
}
