//! Shares of upstreams' limits over the servers of a store, in a table of Outlast's own.

use crate::{
    call::shares::Shares,
    engine::PutRow,
    reads::rows,
    state::Table,
    store::{Error, Store},
};

/// Shares of an upstream, and the version of their key: 0 if none were ever stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub shares: Shares,
    pub version: i64,
}

/// Returns the shares of an upstream.
pub fn find(store: &dyn Store, upstream: &str) -> Result<Kept, Error> {
    let Some(item) = rows::find(store, Table::Shares, upstream)? else { return Ok(Kept::default()) };
    Ok(Kept { shares: rows::decode(&item)?.unwrap_or_default(), version: item.version })
}

/// Builds the write of shares over the version that they were read at.
pub fn put(upstream: &str, shares: &Shares, version: i64) -> Result<PutRow, Error> {
    rows::put(Table::Shares, upstream, shares, version)
}
