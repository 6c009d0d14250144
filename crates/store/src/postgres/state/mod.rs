//! State in PostgreSQL: the rows that operations load and write.

pub mod schema;

use super::{
    rows::{self, get},
    statement::{Ask, all, maybe, params},
    write::{ONE_ROW, Statement, Values},
};
use crate::{
    query::state::{self as query, Head},
    rows::Dialect,
    state::changes,
};
use outlast_core::{
    state::{
        Committed, Name, Position,
        outcome::AT_ONCE,
        rows::{Compactable, Current, Rows},
    },
    store::Error,
};

type Result<T> = std::result::Result<T, Error>;

/// Query for a namespace, and for the commit $2 after the first whose transaction id is kept.
const HEAD: &str = "SELECT n.name, n.commit_no, n.at, n.keep, n.forgotten, o.commit_no, o.at \
    FROM outlast.namespaces n LEFT JOIN LATERAL (SELECT c.commit_no, c.at FROM outlast.commits c \
    WHERE c.namespace_no = n.no AND c.commit_no > n.forgotten ORDER BY c.commit_no LIMIT 1 OFFSET $2) o ON true \
    WHERE sha256(n.name) = sha256($1)";

pub async fn position(client: &impl Ask) -> Result<Position> {
    let sql = "SELECT coalesce(max(position), 0) FROM outlast.items";
    Ok(maybe(client, sql, params![], rows::record).await?.unwrap_or_default())
}

/// Returns a namespace, and which of its transaction ids may be forgotten; `None` if there is no such namespace.
pub async fn head(client: &impl Ask, name: &str) -> Result<Option<Head>> {
    maybe(client, HEAD, params![name.as_bytes(), AT_ONCE as i64 - 1], rows::record).await
}

pub async fn current(client: &impl Ask, name: &Name) -> Result<Option<Current>> {
    let names = [&name.namespace, &name.agent, &name.key].map(|n| n.as_bytes());
    let sql = query::current(Dialect::Postgres);
    maybe(client, &sql, params![names[0], names[1], names[2]], rows::record).await
}

pub async fn compactable(
    client: &impl Ask,
    namespace: &str,
    before: Option<i64>,
    after: i64,
    limit: usize,
) -> Result<Vec<Compactable>> {
    let sql = "SELECT k.no, k.oldest, k.version, coalesce((SELECT i.version FROM outlast.items i \
               WHERE i.key_no = k.no AND i.position <= coalesce((SELECT c.position FROM outlast.commits c \
               WHERE c.namespace_no = n.no AND c.commit_no <= $2 ORDER BY c.commit_no DESC LIMIT 1), 0) \
               ORDER BY i.position DESC LIMIT 1), k.oldest) \
               FROM outlast.namespaces n JOIN outlast.keys k ON k.namespace_no = n.no AND k.replaced \
               WHERE sha256(n.name) = sha256($1) AND k.no > $3 ORDER BY k.no LIMIT $4";
    let (namespace, before, limit) = (namespace.as_bytes(), before.unwrap_or(0), count(limit));
    all(client, sql, params![namespace, before, after, limit], |r| {
        Ok(Compactable { no: get(r, 0)?, oldest: get(r, 1)?, version: get(r, 2)?, at_commit: get(r, 3)? })
    })
    .await
}

pub async fn outcome(client: &impl Ask, id: &str) -> Result<Option<Committed>> {
    let sql = "SELECT commit_no, at FROM outlast.commits \
               WHERE txn IS NOT NULL AND sha256(txn) = sha256($1) LIMIT 1";
    maybe(client, sql, params![id.as_bytes()], rows::record).await
}

/// Adds the statements that write the rows touched by a decision, in order.
pub fn statements<'a>(rows: &'a Rows, all: &mut Vec<Statement<'a>>) {
    all.extend(changes(Dialect::PostgresRow, rows).into_iter().map(|change| Statement {
        sql: change.sql.into(),
        writes: change.writes_one.then_some(ONE_ROW),
        joins: false,
        values: Values::One(change.cells),
        row: None,
    }));
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
