//! Conversion of rows and cells to SQLite's types; and statements, prepared once per connection, that return one
//! optional row, all rows, or none.

use outlast_core::store::Error;
use rusqlite::{
    Connection, OptionalExtension as _, Params, Result, Row, ToSql,
    types::{FromSqlError, ToSqlOutput, Type},
};
use serde::Serialize;

use super::failure;
use crate::rows::{Cell, Columns, Cursor, Dialect, Record, Stored};

impl Columns for Row<'_> {
    type Error = rusqlite::Error;

    fn maybe_int(&self, i: usize) -> Result<Option<i64>> {
        self.get(i)
    }
    fn maybe_bool(&self, i: usize) -> Result<Option<bool>> {
        self.get(i)
    }
    fn maybe_text(&self, i: usize) -> Result<Option<&str>> {
        Ok(self.get_ref(i)?.as_str_or_null()?)
    }
    fn maybe_name(&self, i: usize) -> Result<Option<&str>> {
        self.maybe_text(i)
    }
    fn maybe_blob(&self, i: usize) -> Result<Option<&[u8]>> {
        Ok(self.get_ref(i)?.as_blob_or_null()?)
    }
    fn bad(&self, i: usize, why: String) -> rusqlite::Error {
        let column = self.as_ref().column_name(i).unwrap_or("?");
        let why = FromSqlError::Other(format!("column {column}: {why}").into());
        rusqlite::Error::FromSqlConversionFailure(i, Type::Blob, Box::new(why))
    }
}

impl ToSql for Cell<'_> {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        match self {
            Cell::Int(value) => value.to_sql(),
            Cell::Bool(value) => value.to_sql(),
            Cell::Text(value) => value.to_sql(),
            Cell::Name(value) => value.to_sql(),
            Cell::Blob(value) => value.to_sql(),
        }
    }
}

pub fn to_json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(no_json)
}

pub fn no_json(e: serde_json::Error) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(e))
}

/// Returns `SELECT columns of T FROM table rest`.
pub fn select<T: Stored>(rest: &str) -> String {
    Dialect::Sqlite.select::<T>(rest)
}

pub fn record<T: Record>(row: &Row<'_>) -> Result<T> {
    T::of_row(&mut Cursor::new(row))
}

/// Returns at most one row of a table; `None` if there is none. `rest` follows the table's name in the SQL.
pub fn one<T: Stored>(conn: &Connection, rest: &str, params: impl Params) -> Result<Option<T>, Error> {
    maybe(conn, &select::<T>(rest), params, record)
}

/// Returns all rows of a table that `rest` selects.
pub fn many<T: Stored>(conn: &Connection, rest: &str, params: impl Params) -> Result<Vec<T>, Error> {
    all(conn, &select::<T>(rest), params, record)
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
