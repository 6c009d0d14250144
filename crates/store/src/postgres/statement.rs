//! Statements with typed parameters, and the mapping of PostgreSQL's errors to the store's.
//!
//! Each is sent with the types of its parameters, which takes one round trip. Readers send unnamed statements, which
//! leave nothing behind that PgBouncer in transaction mode would not find on its next connection; the writer's have
//! names where that is safe ([`Named`]).
//!
//! On the writer's connection statements are prepared under names: parsed and planned once in a session. A pooler that gives each transaction another server's connection (PgBouncer in transaction mode) would run them where
//! they are unknown, or where another process has given their names to others. So each session leaves a token in its
//! server's connection, and each transaction reads it where it begins. Where the token is another's, the transaction is
//! rolled back, whatever it ran, and no statement has a name from then on. Names are given inside transactions only,
//! which a pooler does not part.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    mem::take,
};

use futures_util::future::join3;
use outlast_core::{store::Error, words::bad::with_causes};
use tokio_postgres::{
    Row, Statement,
    error::{Severity, SqlState},
    types::{ToSql, Type},
};

use super::{connect::Link, rows};
use crate::rows::Stored;

/// Parameter with its type.
pub type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A type that a column can hold.
pub trait Value: ToSql + Sync {
    const TYPE: Type;
}

macro_rules! types {
    ($($Value:ty: $TYPE:ident,)+) => {$(
        impl Value for $Value {
            const TYPE: Type = Type::$TYPE;
        }
    )+};
}

types! {
    i64: INT8,
    i32: INT4,
    bool: BOOL,
    &[u8]: BYTEA,
    &str: TEXT,
    String: TEXT,
    Vec<i64>: INT8_ARRAY,
    Vec<i32>: INT4_ARRAY,
    Vec<&str>: TEXT_ARRAY,
    Vec<&[u8]>: BYTEA_ARRAY,
    Vec<Vec<u8>>: BYTEA_ARRAY,
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
        join3(client.batch_execute(BEGIN), client.query(sql, params), client.batch_execute("COMMIT")).await;
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

/// Returns the text of the error and of all its causes.
pub fn chain(e: &tokio_postgres::Error) -> String {
    if let Some(db) = e.as_db_error() {
        let detail = db.detail().map(|d| format!(" ({d})")).unwrap_or_default();
        return format!("{}{detail}", db.message());
    }
    with_causes(e)
}

/// Maps a PostgreSQL error to the store's error.
///
/// Only the server's own trouble with its files becomes `Io`, which closes the store until it is reopened. All other
/// errors are over by themselves, or guarantee that nothing was changed.
pub fn failure(e: tokio_postgres::Error) -> Error {
    let why = chain(&e);
    let Some(code) = e.code() else {
        return Error::Unavailable { why: format!("the connection to the database was lost: {why}") };
    };
    match code {
        &SqlState::DISK_FULL => Error::Full { why },
        &SqlState::LOCK_NOT_AVAILABLE => {
            Error::Unavailable { why: "another server holds the store's lock for too long".into() }
        }
        // `Same` tells of which store.
        &SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME => {
            Error::Vanished { place: String::new(), file: "its schema".into() }
        }
        code => match &code.code()[..2] {
            // Data exceptions, violated constraints, missing tables and columns, broken pages: the database does
            // not hold what Outlast wrote.
            "22" | "23" | "42" | "3F" | "XX" if *code != SqlState::INSUFFICIENT_PRIVILEGE => {
                Error::Corrupt { what: why }
            }
            "58" => Error::Io { why },
            _ => Error::Unavailable { why },
        },
    }
}

/// Returns whether a failed COMMIT, or a write before it, is known to have changed nothing.
///
/// That is so if the connection survives the error: the transaction was aborted. The commit may have happened if the
/// session ends (FATAL, PANIC, a cut connection), or if a proxy in between reports that it does not know.
pub fn rolled_back(e: &tokio_postgres::Error) -> bool {
    e.as_db_error().is_some_and(|db| {
        // A transaction that stood still was ended before its COMMIT came.
        *db.code() == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
            || db.parsed_severity() == Some(Severity::Error)
                && !db.code().code().starts_with("08")
                && *db.code() != SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN
    })
}

/// Largest number of prepared statements. The server keeps the plan of each, some ten kilobytes.
pub const MOST: usize = 512;

/// Connection of the writer, on which statements are prepared under names.
pub struct Named {
    pub client: Link,
    /// Token of this session in its server's connection. `None` if no statement may have a name.
    pub token: Option<String>,
    /// Prepared statements by their text; `None` for a text until its statement is prepared.
    statements: RefCell<HashMap<String, Option<Statement>>>,
    /// Statements that have been sent without a name, to be prepared with the next commit.
    wanted: RefCell<Vec<(String, Vec<Type>)>>,
    /// Whether a statement could not be prepared.
    is_refused: Cell<bool>,
}

impl Named {
    pub fn new(client: Link, token: Option<String>) -> Named {
        Named {
            client,
            token,
            statements: RefCell::default(),
            wanted: RefCell::default(),
            is_refused: Cell::new(false),
        }
    }

    /// Returns whether the server refused to prepare a statement, as it does if another session has given that name to
    /// a statement.
    pub fn is_refused(&self) -> bool {
        self.is_refused.get()
    }

    /// Returns the prepared statement for `sql`; `None` if none is prepared yet, which is noted, or if
    /// statements may have no names here.
    fn find(&self, sql: &str, params: &[Param<'_>]) -> Option<Statement> {
        self.token.as_ref()?;
        let mut statements = self.statements.borrow_mut();
        if let Some(found) = statements.get(sql) {
            return found.clone();
        }
        if statements.len() >= MOST {
            return None;
        }
        statements.insert(sql.to_owned(), None);
        let types = params.iter().map(|(_, of)| of.clone()).collect();
        self.wanted.borrow_mut().push((sql.to_owned(), types));
        None
    }

    /// Returns the futures that prepare the statements sent without a name so far. To be awaited within a transaction.
    pub fn preparing(&self) -> impl Iterator<Item = impl Future<Output = Result<(), tokio_postgres::Error>>> {
        take(&mut *self.wanted.borrow_mut()).into_iter().map(|(sql, types)| self.prepare(sql, types))
    }

    async fn prepare(&self, sql: String, types: Vec<Type>) -> Result<(), tokio_postgres::Error> {
        let prepared = self.client.prepare_typed(&sql, &types).await;
        if let Err(e) = &prepared
            && e.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION)
        {
            // Another statement of the transaction had failed: this one is prepared with a later commit.
            self.statements.borrow_mut().remove(&sql);
            return Ok(());
        }
        self.is_refused.set(self.is_refused.get() || prepared.is_err());
        self.statements.borrow_mut().insert(sql, Some(prepared?));
        Ok(())
    }
}

impl Ask for Named {
    async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, tokio_postgres::Error> {
        match self.find(sql, params) {
            Some(statement) => self.client.query_prepared(&statement, &values(params)).await,
            None => self.client.query(sql, params).await,
        }
    }

    async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, tokio_postgres::Error> {
        match self.find(sql, params) {
            Some(statement) => self.client.execute_prepared(&statement, &values(params)).await,
            None => self.client.execute(sql, params).await,
        }
    }
}

fn values<'a>(params: &[Param<'a>]) -> Vec<&'a (dyn ToSql + Sync)> {
    params.iter().map(|(value, _)| *value).collect()
}
