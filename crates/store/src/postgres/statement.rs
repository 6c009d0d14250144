//! Statements with typed parameters.
//!
//! Each is sent with the types of its parameters, which takes one round trip. Readers send unnamed statements, which
//! leave nothing behind that PgBouncer in transaction mode would not find on its next connection; the writer's have
//! names where that is safe (`named`).

use futures_util::future::join3;
use outlast_core::store::Error;
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use super::{error::failure, link::Link, rows};
use crate::rows::Stored;

/// Parameter with its type.
pub type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A type that a column can hold.
pub trait Value: ToSql + Sync {
    const TYPE: Type;
}

impl Value for i64 {
    const TYPE: Type = Type::INT8;
}
impl Value for i32 {
    const TYPE: Type = Type::INT4;
}
impl Value for bool {
    const TYPE: Type = Type::BOOL;
}
impl Value for &[u8] {
    const TYPE: Type = Type::BYTEA;
}
impl Value for &str {
    const TYPE: Type = Type::TEXT;
}
impl Value for String {
    const TYPE: Type = Type::TEXT;
}
impl Value for Vec<i64> {
    const TYPE: Type = Type::INT8_ARRAY;
}
impl Value for Vec<i32> {
    const TYPE: Type = Type::INT4_ARRAY;
}
impl Value for Vec<&str> {
    const TYPE: Type = Type::TEXT_ARRAY;
}
impl Value for Vec<&[u8]> {
    const TYPE: Type = Type::BYTEA_ARRAY;
}
impl Value for Vec<Vec<u8>> {
    const TYPE: Type = Type::BYTEA_ARRAY;
}
impl<T: Value> Value for Option<T> {
    const TYPE: Type = T::TYPE;
}

pub fn param<T: Value>(value: &T) -> Param<'_> {
    (value, T::TYPE)
}

/// Builds the parameters of a statement, in order.
macro_rules! params {
    ($($value:expr),* $(,)?) => { &[$($crate::postgres::statement::param(&$value)),*] };
}
pub(super) use params;

/// Connection on which statements are sent.
pub trait Ask {
    async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, tokio_postgres::Error>;
    async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, tokio_postgres::Error>;
}

impl Ask for Link {
    async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.query_typed(sql, params).await
    }

    async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, tokio_postgres::Error> {
        self.execute_typed(sql, params).await
    }
}

/// Returns the first row that a query finds; `None` if it finds none.
pub async fn maybe<T>(
    client: &impl Ask,
    sql: &str,
    params: &[Param<'_>],
    map: fn(&Row) -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let rows = client.query(sql, params).await.map_err(failure)?;
    rows.first().map(map).transpose()
}

pub async fn all<T>(
    client: &impl Ask,
    sql: &str,
    params: &[Param<'_>],
    map: fn(&Row) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    client.query(sql, params).await.map_err(failure)?.iter().map(map).collect()
}

/// Returns the rows of a page: a query with an ORDER BY and a LIMIT over a large table, all of it behind one index.
///
/// The planner may not sort here. While it believes a table to be short, as it does until the database has analysed it,
/// it would read and sort all that is left for each page.
pub async fn page<T>(
    client: &Link,
    sql: &str,
    params: &[Param<'_>],
    map: fn(&Row) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    const BEGIN: &str = "BEGIN READ ONLY; SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off";
    // Sent in this order, in one go. After a failure COMMIT rolls back.
    let (begun, rows, ended) =
        join3(client.batch_execute(BEGIN), client.query_typed(sql, params), client.batch_execute("COMMIT"))
            .await;
    let rows = begun.and(rows).map_err(failure)?;
    ended.map_err(failure)?;
    rows.iter().map(map).collect()
}

/// Returns all rows of a table that `rest`, which follows its name in the SQL, selects.
pub async fn many<T: Stored>(client: &impl Ask, rest: &str, params: &[Param<'_>]) -> Result<Vec<T>, Error> {
    all(client, &rows::select::<T>(rest), params, rows::record).await
}

/// Writes exactly one row. An update that matches none is an error, since the row was loaded before.
pub async fn write_one(client: &impl Ask, sql: &str, params: &[Param<'_>]) -> Result<(), Error> {
    match client.execute(sql, params).await.map_err(failure)? {
        1 => Ok(()),
        n => Err(Error::Corrupt { what: format!("wanted to write one row, wrote {n}: {sql}") }),
    }
}
