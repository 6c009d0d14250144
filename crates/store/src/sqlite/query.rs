//! Runs statements, prepared once per connection, that return one optional row, all rows, or none.

use outlast_core::store::Error;
use rusqlite::{Connection, OptionalExtension as _, Params, Row};

use super::{
    failure,
    rows::{self, select},
};
use crate::rows::Stored;

/// Returns at most one row of a table; `None` if there is none. `rest` follows the table's name in the SQL.
pub fn one<T: Stored>(conn: &Connection, rest: &str, params: impl Params) -> Result<Option<T>, Error> {
    maybe(conn, &select::<T>(rest), params, rows::record)
}

/// Returns all rows of a table that `rest` selects.
pub fn many<T: Stored>(conn: &Connection, rest: &str, params: impl Params) -> Result<Vec<T>, Error> {
    all(conn, &select::<T>(rest), params, rows::record)
}

pub fn maybe<T, P: Params>(
    conn: &Connection,
    sql: &str,
    params: P,
    map: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, Error> {
    conn.prepare_cached(sql).and_then(|mut s| s.query_row(params, map).optional()).map_err(failure)
}

pub fn all<T, P: Params>(
    conn: &Connection,
    sql: &str,
    params: P,
    map: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, Error> {
    let mut statement = conn.prepare_cached(sql).map_err(failure)?;
    let rows = statement.query_map(params, map).map_err(failure)?;
    rows.collect::<rusqlite::Result<_>>().map_err(failure)
}

/// Executes a statement for a writer, which rolls back on SQLite's own error.
pub fn execute(conn: &Connection, sql: &str, params: impl Params) -> rusqlite::Result<()> {
    conn.prepare_cached(sql)?.execute(params).map(drop)
}
