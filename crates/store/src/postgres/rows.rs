//! Conversion of rows and cells to PostgreSQL's types.
//!
//! Names chosen by people or agents are `bytea`: PostgreSQL's text cannot hold a NUL, and a name may.

use bytes::BytesMut;
use outlast_core::store::Error;
use serde::{Serialize, de::DeserializeOwned};
use tokio_postgres::{
    Row,
    types::{FromSql, IsNull, ToSql, Type, to_sql_checked},
};

use super::statement::Param;
use crate::rows::{Cell, Columns, Cursor, Dialect, Record, Stored};

type Result<T> = std::result::Result<T, Error>;

/// Makes the error for a value that is not one that Outlast writes.
fn bad(row: &Row, i: usize, why: impl std::fmt::Display) -> Error {
    let column = row.columns().get(i).map_or("?", |c| c.name());
    Error::Corrupt { what: format!("column {column}: {why}") }
}

pub fn get<'a, T: FromSql<'a>>(row: &'a Row, i: usize) -> Result<T> {
    row.try_get(i).map_err(|e| bad(row, i, e))
}

impl Columns for Row {
    type Error = Error;

    fn maybe_int(&self, i: usize) -> Result<Option<i64>> {
        get(self, i)
    }
    fn maybe_bool(&self, i: usize) -> Result<Option<bool>> {
        get(self, i)
    }
    fn maybe_text(&self, i: usize) -> Result<Option<&str>> {
        get(self, i)
    }
    fn maybe_name(&self, i: usize) -> Result<Option<&str>> {
        self.maybe_blob(i)?.map(std::str::from_utf8).transpose().map_err(|e| bad(self, i, e))
    }
    fn maybe_blob(&self, i: usize) -> Result<Option<&[u8]>> {
        get(self, i)
    }
    fn bad(&self, i: usize, why: String) -> Error {
        bad(self, i, why)
    }
}

impl Cell<'_> {
    fn column_type(&self) -> Type {
        match self {
            Cell::Int(_) => Type::INT8,
            Cell::Bool(_) => Type::BOOL,
            Cell::Text(_) => Type::TEXT,
            Cell::Name(_) | Cell::Blob(_) => Type::BYTEA,
        }
    }

    pub fn param(&self) -> Param<'_> {
        (self, self.column_type())
    }

    /// Returns the type of an array of such cells.
    pub fn array_type(&self) -> Type {
        match self {
            Cell::Int(_) => Type::INT8_ARRAY,
            Cell::Bool(_) => Type::BOOL_ARRAY,
            Cell::Text(_) => Type::TEXT_ARRAY,
            Cell::Name(_) | Cell::Blob(_) => Type::BYTEA_ARRAY,
        }
    }
}

impl std::fmt::Debug for Cell<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Messages never show content.
        write!(f, "a cell of {}", self.column_type())
    }
}

impl ToSql for Cell<'_> {
    fn to_sql(
        &self,
        of: &Type,
        out: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Cell::Int(value) => value.to_sql(of, out),
            Cell::Bool(value) => value.to_sql(of, out),
            Cell::Text(value) => value.as_deref().to_sql(of, out),
            Cell::Name(value) => value.map(str::as_bytes).to_sql(of, out),
            Cell::Blob(value) => value.to_sql(of, out),
        }
    }

    fn accepts(of: &Type) -> bool {
        [Type::INT8, Type::BOOL, Type::TEXT, Type::BYTEA].contains(of)
    }

    to_sql_checked!();
}

pub fn to_json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(no_json)
}

pub fn no_json(e: serde_json::Error) -> Error {
    Error::Corrupt { what: format!("a value is no JSON: {e}") }
}

/// Returns `SELECT columns of T FROM outlast.table rest`.
pub fn select<T: Stored>(rest: &str) -> String {
    Dialect::Postgres.select::<T>(rest)
}

pub fn name(row: &Row, i: usize) -> Result<String> {
    Cursor::at(row, i).name().map(str::to_owned)
}

pub fn json<T: DeserializeOwned>(row: &Row, i: usize) -> Result<T> {
    Cursor::at(row, i).json()
}

pub fn record<T: Record>(row: &Row) -> Result<T> {
    T::of_row(&mut Cursor::new(row))
}
