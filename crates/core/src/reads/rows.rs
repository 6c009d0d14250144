//! Rows of Outlast's own tables in the state, as values and as the writes that store them.

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    engine::PutRow,
    state::{Item, Table, Value},
    store::{Error, Store},
};

/// Returns a row as it is stored; `None` if it was never written.
pub fn find(store: &dyn Store, table: Table, key: &str) -> Result<Option<Item>, Error> {
    store.state(table.namespace(), table.agent(), key)
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
