//! Conversion of rows and cells to SQLite's types.

use rusqlite::{
    Result, Row, ToSql,
    types::{FromSqlError, ToSqlOutput, Type},
};
use serde::Serialize;

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
