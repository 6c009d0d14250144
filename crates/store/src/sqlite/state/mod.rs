//! State in SQLite: the rows that operations load and write.

pub mod schema;

use std::sync::Arc;

use outlast_core::{
    engine::Loaded,
    state::{
        Committed, Name, Position,
        outcome::AT_ONCE,
        rows::{Compactable, Rows},
    },
    store::Error,
    words::Row,
};
use rusqlite::{Connection, params_from_iter};

use super::{
    query::{all, execute, maybe},
    rows,
};
use crate::{
    query::state::{self as query, Head},
    rows::Dialect,
    state::changes,
};
use schema::{BY_TRANSACTION, COMPACTABLE, HEAD};

type Result<T> = std::result::Result<T, Error>;

pub fn position(conn: &Connection) -> Result<Position> {
    let sql = "SELECT coalesce(max(position), 0) FROM items";
    Ok(maybe(conn, sql, [], rows::record)?.unwrap_or_default())
}

pub fn load_key(conn: &Connection, l: &mut Loaded, name: &Arc<Name>) -> Result<()> {
    let found = maybe(conn, &query::current(Dialect::Sqlite), named(name), rows::record)?;
    l.state.keys.extend(found.map(|c| (name.clone(), Row::read(c))));
    Ok(())
}

pub fn load_namespace(conn: &Connection, l: &mut Loaded, name: &str) -> Result<()> {
    let found: Option<Head> = maybe(conn, HEAD, (name.as_bytes(), AT_ONCE as i64 - 1), rows::record)?;
    if let Some((head, old)) = found {
        l.state.namespaces.insert(name.to_owned(), Row::read(head));
        l.state.old_ids.extend(old.map(|old| (name.to_owned(), old)));
    }
    Ok(())
}

pub fn load_compactable(
    conn: &Connection,
    l: &mut Loaded,
    namespace: &str,
    before: Option<i64>,
    after: i64,
    limit: usize,
) -> Result<()> {
    let Some(no) = namespace_no(conn, namespace)? else { return Ok(()) };
    let seen = bound(conn, no, before.unwrap_or(0))?;
    l.state.compactable = all(conn, COMPACTABLE, (no, after, seen.0, count(limit)), |r| {
        let (oldest, at_commit): (i64, Option<i64>) = (r.get(1)?, r.get(3)?);
        let at_commit = at_commit.unwrap_or(oldest);
        Ok(Compactable { no: r.get(0)?, oldest, version: r.get(2)?, at_commit })
    })?;
    Ok(())
}

pub fn outcome(conn: &Connection, id: &str) -> Result<Option<Committed>> {
    maybe(conn, BY_TRANSACTION, (id.as_bytes(),), rows::record)
}

/// Deletes a namespace.
pub fn forget(conn: &Connection, namespace: &str) -> rusqlite::Result<()> {
    query::forget(Dialect::Sqlite).iter().try_for_each(|sql| execute(conn, sql, (namespace.as_bytes(),)))
}

/// Writes the state rows touched by a decision.
pub fn apply(conn: &Connection, rows: &Rows) -> rusqlite::Result<()> {
    let changes = changes(Dialect::Sqlite, rows);
    changes.iter().try_for_each(|change| execute(conn, &change.sql, params_from_iter(&change.cells)))
}

/// Returns the position of the namespace's last commit up to `commit`, 0 before the first.
fn bound(conn: &Connection, namespace: i64, commit: i64) -> Result<Position> {
    let sql = "SELECT position FROM commits WHERE namespace_no = ?1 AND commit_no <= ?2 \
               ORDER BY commit_no DESC LIMIT 1";
    Ok(maybe(conn, sql, (namespace, commit), rows::record)?.unwrap_or_default())
}

fn namespace_no(conn: &Connection, name: &str) -> Result<Option<i64>> {
    maybe(conn, "SELECT no FROM namespaces WHERE name = ?1", (name.as_bytes(),), |r| r.get(0))
}

fn named(name: &Name) -> [&[u8]; 3] {
    [name.namespace.as_bytes(), name.agent.as_bytes(), name.key.as_bytes()]
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
