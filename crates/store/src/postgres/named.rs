//! Connection of the writer, on which statements are prepared under names: parsed and planned once in a session.
//!
//! A pooler that gives each transaction another server's connection (PgBouncer in transaction mode) would run them where
//! they are unknown, or where another process has given their names to others. So each session leaves a token in its
//! server's connection, and each transaction reads it where it begins. Where the token is another's, the transaction is
//! rolled back, whatever it ran, and no statement has a name from then on. Names are given inside transactions only,
//! which a pooler does not part.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    mem::take,
};

use tokio_postgres::{
    Error, Row, Statement,
    error::SqlState,
    types::{ToSql, Type},
};

use super::{
    link::Link,
    statement::{Ask, Param},
};

/// Largest number of prepared statements. The server keeps the plan of each, some ten kilobytes.
pub const MOST: usize = 512;

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
    pub fn preparing(&self) -> impl Iterator<Item = impl Future<Output = Result<(), Error>>> {
        take(&mut *self.wanted.borrow_mut()).into_iter().map(|(sql, types)| self.prepare(sql, types))
    }

    async fn prepare(&self, sql: String, types: Vec<Type>) -> Result<(), Error> {
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
    async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        match self.find(sql, params) {
            Some(statement) => self.client.query(&statement, &values(params)).await,
            None => self.client.query_typed(sql, params).await,
        }
    }

    async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, Error> {
        match self.find(sql, params) {
            Some(statement) => self.client.execute(&statement, &values(params)).await,
            None => self.client.execute_typed(sql, params).await,
        }
    }
}

fn values<'a>(params: &[Param<'a>]) -> Vec<&'a (dyn ToSql + Sync)> {
    params.iter().map(|(value, _)| *value).collect()
}
