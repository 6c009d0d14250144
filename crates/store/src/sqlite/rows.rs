//! Conversion of rows and cells to SQLite's types.

use bytes::Bytes;
use outlast_core::{
    journal::{job::ItemRow, payload::Payload},
    run::status::Status,
    store::StepRow,
};
use rusqlite::{
    Result, Row, ToSql,
    types::{FromSqlError, ToSqlOutput, Type},
};
use serde::Serialize;

use crate::{
    rows::{Cell, Columns, Cursor, Dialect, Stored},
    tables,
};

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

pub fn row<T: Stored>(row: &Row<'_>) -> Result<T> {
    T::read(&mut Cursor::new(row))
}

pub fn json<T: serde::de::DeserializeOwned>(row: &Row<'_>) -> Result<T> {
    Cursor::new(row).json()
}

pub fn payload(row: &Row<'_>) -> Result<Payload> {
    tables::payload(&mut Cursor::new(row))
}

/// Reads a value that is kept in its entry's row; `None` if the row has none.
pub fn short_value<R: Columns<Error = rusqlite::Error>>(row: &mut Cursor<'_, R>) -> Result<Option<Payload>> {
    let Some(blob) = row.maybe_blob()? else { return Ok(None) };
    Payload::from_bytes(Bytes::copy_from_slice(blob)).map(Some).map_err(|e| row.bad(e))
}

/// Reads an optional value, from the entry's own row or joined to it.
fn value(row: &mut Cursor<'_, Row<'_>>) -> Result<Option<Payload>> {
    match short_value(row)? {
        Some(value) => Ok(Some(value)),
        None => tables::maybe_payload(row),
    }
}

pub fn item_row(row: &Row<'_>) -> Result<(ItemRow, Option<Payload>)> {
    Ok((tables::item_row(&mut Cursor::new(row))?, None))
}

pub fn result_row(row: &Row<'_>) -> Result<(ItemRow, Option<Payload>)> {
    let mut row = Cursor::new(row);
    Ok((tables::item_row(&mut row)?, value(&mut row)?))
}

pub fn status_count(row: &Row<'_>) -> Result<(Status, i64)> {
    tables::status_count(&mut Cursor::new(row))
}

pub fn step_row(row: &Row<'_>) -> Result<(StepRow, Option<Payload>)> {
    let mut row = Cursor::new(row);
    Ok((tables::step_row(&mut row)?, value(&mut row)?))
}
