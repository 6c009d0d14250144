//! Rows of Outlast's own tables in the state, as values and as the writes that store them.

use serde::{Serialize, de::DeserializeOwned};

use super::places;
use crate::{
    engine::PutRow,
    state::{At, Item, Table, Value},
    store::{Error, Store},
};

/// Returns a row as it is stored; `None` if it was never written.
pub fn find(store: &dyn Store, table: Table, key: &str) -> Result<Option<Item>, Error> {
    store.state(table.namespace(), table.agent(), key)
}

/// A decoded row, and the version of its key: 0 if none was ever stored. Whoever writes it anew expects this version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept<T> {
    pub row: T,
    pub version: i64,
}

/// Returns a row with its version. Errors: `Corrupt`.
pub fn kept<T: DeserializeOwned + Default>(
    store: &dyn Store,
    table: Table,
    key: &str,
) -> Result<Kept<T>, Error> {
    let Some(item) = find(store, table, key)? else { return Ok(Kept::default()) };
    Ok(Kept { row: decode(&item)?.unwrap_or_default(), version: item.version })
}

/// Returns all rows of a table, by key, as they are stored.
pub fn list(store: &dyn Store, table: Table) -> Result<Vec<Item>, Error> {
    places::keys(store, table.namespace(), table.agent(), At::default())
}

/// Decodes a row; `None` for a deleted one. Errors: `Corrupt`.
pub fn decode<T: DeserializeOwned>(item: &Item) -> Result<Option<T>, Error> {
    let corrupt =
        |e| Error::Corrupt { what: format!("the {} {:?} in {}: {e}", item.agent, item.key, item.namespace) };
    item.value.as_deref().map(serde_json::from_slice).transpose().map_err(corrupt)
}

/// Builds the write of a row, over `expected` if that is set.
pub fn put(
    table: Table,
    key: &str,
    row: &impl Serialize,
    expected: impl Into<Option<i64>>,
) -> Result<PutRow, Error> {
    let value = serde_json::to_vec(row).map_err(|e| Error::Corrupt { what: e.to_string() })?;
    Ok(PutRow { table, key: key.into(), value: Value::encode(&value), expected: expected.into() })
}
