//! State in SQLite: the rows that operations load and write.

pub mod schema;

use std::{collections::HashMap, sync::Arc};

use outlast_core::{
    engine::loaded::Loaded,
    state::{
        Committed, Name, Namespace, Position, Progress, Retention, StepKey,
        outcome::AT_ONCE,
        rows::{Compactable, Current, Forgetting, NewCommit, NewVersion, Removal, Rows, Trimmed},
    },
    store::Error,
    words::{
        id::Micros,
        row::{Row, Touch},
    },
};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{
    query::{all, execute, maybe},
    rows,
};
use crate::rows::{Cursor, Record as _};
use schema::{BY_TRANSACTION, COMPACTABLE, HEAD};

type Result<T> = std::result::Result<T, Error>;

pub fn position(conn: &Connection) -> Result<Position> {
    let sql = "SELECT coalesce(max(position), 0) FROM items";
    Ok(maybe(conn, sql, [], rows::record)?.unwrap_or_default())
}

pub fn load_key(conn: &Connection, l: &mut Loaded, name: &Arc<Name>) -> Result<()> {
    let sql = "SELECT k.version, k.live, k.position, k.commit_no, k.at, k.first, k.oldest, k.progress, k.no \
               FROM namespaces n JOIN agents a ON a.namespace_no = n.no AND a.name = ?2 \
               JOIN keys k ON k.agent_no = a.no AND k.key = ?3 WHERE n.name = ?1";
    let found = maybe(conn, sql, named(name), current)?;
    l.state.keys.extend(found.map(|c| (name.clone(), Row::read(c))));
    Ok(())
}

pub fn load_namespace(conn: &Connection, l: &mut Loaded, name: &str) -> Result<()> {
    let found = maybe(conn, HEAD, (name.as_bytes(), AT_ONCE as i64 - 1), |r| {
        let mut row = Cursor::new(r);
        let head = Namespace::of_row(&mut row)?;
        Ok((head, row.maybe_int()?.zip(row.maybe_int()?.map(Micros))))
    })?;
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

/// Deletes a namespace. If the store's newest version is in it, that version is kept: its position would be given
/// again.
pub fn forget(conn: &Connection, namespace: &str) -> rusqlite::Result<()> {
    let own = "(SELECT no FROM namespaces WHERE name = ?1)";
    for sql in [
        format!(
            "DELETE FROM items WHERE agent_no IN (SELECT no FROM agents WHERE namespace_no = {own}) \
             AND position < (SELECT max(position) FROM items)"
        ),
        format!("DELETE FROM keys WHERE namespace_no = {own}"),
        format!("DELETE FROM agents WHERE namespace_no = {own}"),
        format!("DELETE FROM commits WHERE namespace_no = {own}"),
        "DELETE FROM namespaces WHERE name = ?1".to_owned(),
    ] {
        execute(conn, &sql, (namespace.as_bytes(),))?;
    }
    Ok(())
}

/// Writes the state rows touched by a decision.
pub fn apply(conn: &Connection, rows: &Rows) -> rusqlite::Result<()> {
    for row in rows.namespaces.values().filter(|r| r.touch != Touch::Read) {
        let n = &row.value;
        execute(
            conn,
            "INSERT INTO namespaces (name, commit_no, at, keep, forgotten) VALUES (?1, ?2, ?3, ?4, ?5) \
             ON CONFLICT (name) DO UPDATE SET commit_no = excluded.commit_no, at = excluded.at, \
             keep = excluded.keep, forgotten = excluded.forgotten",
            params![n.name.as_bytes(), n.commit, n.at.0, kept(n.keep), n.forgotten],
        )?;
    }
    let mut numbers: HashMap<&Name, i64> = HashMap::new();
    for (name, row) in &rows.keys {
        match row.touch {
            Touch::Read => {}
            Touch::Insert => {
                insert_key(conn, name, &row.value)?;
                numbers.insert(&**name, conn.last_insert_rowid());
            }
            Touch::Update => {
                update_key(conn, name, &row.value)?;
                numbers.insert(&**name, row.value.no);
            }
        }
    }
    for v in &rows.versions {
        insert_version(conn, v, numbers.get(&*v.name).copied())?;
    }
    rows.commits.iter().try_for_each(|c| insert_commit(conn, c))?;
    rows.removals.iter().try_for_each(|r| match &r.key {
        Trimmed::No(no) => remove(conn, *no, r),
        Trimmed::Changed(name) => numbers.get(&**name).map_or(Ok(()), |no| remove(conn, *no, r)),
    })?;
    rows.forgettings.iter().try_for_each(|f| forget_ids(conn, f))
}

/// Returns the columns that find a resume point, for keys whose newest value is a step's record.
fn step<'a>(name: &'a Name, c: &Current) -> (Option<&'a [u8]>, Option<i64>) {
    let step = c.progress.and_then(|_| StepKey::of(&name.key));
    (step.map(|s| s.stem.as_bytes()), step.map(|s| s.n))
}

fn insert_key(conn: &Connection, name: &Name, c: &Current) -> rusqlite::Result<()> {
    let namespace: i64 = conn
        .prepare_cached("SELECT no FROM namespaces WHERE name = ?1")?
        .query_row((name.namespace.as_bytes(),), |r| r.get(0))?;
    let agent = conn
        .prepare_cached("SELECT no FROM agents WHERE namespace_no = ?1 AND name = ?2")?
        .query_row((namespace, name.agent.as_bytes()), |r| r.get(0))
        .optional()?;
    let agent = match agent {
        Some(agent) => agent,
        None => {
            let sql = "INSERT INTO agents (namespace_no, name, removed_to) VALUES (?1, ?2, 0)";
            execute(conn, sql, (namespace, name.agent.as_bytes()))?;
            conn.last_insert_rowid()
        }
    };
    let (stem, n) = step(name, c);
    execute(
        conn,
        "INSERT INTO keys (namespace_no, agent_no, key, version, live, replaced, position, commit_no, at, first, \
         oldest, progress, stem, n) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        params![
            namespace,
            agent,
            name.key.as_bytes(),
            c.version,
            c.live,
            c.oldest < c.version,
            c.position.0,
            c.commit,
            c.at.0,
            c.first.0,
            c.oldest,
            c.progress.map(Progress::code),
            stem,
            n
        ],
    )
}

fn update_key(conn: &Connection, name: &Name, c: &Current) -> rusqlite::Result<()> {
    if !c.moved {
        // SQLite writes the index entries of every named column, changed or not.
        let sql = "UPDATE keys SET version = ?2, position = ?3, commit_no = ?4, at = ?5 WHERE no = ?1";
        return execute(conn, sql, (c.no, c.version, c.position.0, c.commit, c.at.0));
    }
    let (stem, n) = step(name, c);
    execute(
        conn,
        "UPDATE keys SET version = ?2, live = ?3, position = ?4, commit_no = ?5, at = ?6, progress = ?7, \
         stem = ?8, n = ?9, replaced = oldest < ?2 WHERE no = ?1",
        params![
            c.no,
            c.version,
            c.live,
            c.position.0,
            c.commit,
            c.at.0,
            c.progress.map(Progress::code),
            stem,
            n
        ],
    )
}

fn insert_version(conn: &Connection, v: &NewVersion, key: Option<i64>) -> rusqlite::Result<()> {
    execute(
        conn,
        "INSERT INTO items (position, agent_no, key_no, version, commit_no, at, run_no, attempt, value) VALUES \
         (?1, (SELECT agent_no FROM keys WHERE no = ?2), ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            v.position.0,
            key,
            v.version,
            v.commit,
            v.at.0,
            v.run.map(|n| n.0),
            v.attempt.map(|n| n.0),
            v.value.as_ref().map(|v| &v.stored()[..])
        ],
    )
}

fn insert_commit(conn: &Connection, c: &NewCommit) -> rusqlite::Result<()> {
    execute(
        conn,
        "INSERT INTO commits (namespace_no, commit_no, at, position, txn) VALUES \
         ((SELECT no FROM namespaces WHERE name = ?1), ?2, ?3, ?4, ?5)",
        params![
            c.namespace.as_bytes(),
            c.commit,
            c.at.0,
            c.position.0,
            c.transaction.as_deref().map(str::as_bytes)
        ],
    )
}

fn forget_ids(conn: &Connection, f: &Forgetting) -> rusqlite::Result<()> {
    execute(
        conn,
        "UPDATE commits SET txn = NULL WHERE namespace_no = (SELECT no FROM namespaces WHERE name = ?1) \
         AND commit_no > ?2 AND commit_no <= ?3 AND txn IS NOT NULL",
        (f.namespace.as_bytes(), f.above, f.to),
    )
}

fn remove(conn: &Connection, no: i64, r: &Removal) -> rusqlite::Result<()> {
    // Positions grow with versions: the last one removed is that of the highest version.
    execute(
        conn,
        "UPDATE agents SET removed_to = max(removed_to, (SELECT position FROM items \
         WHERE key_no = ?1 AND version < ?2 ORDER BY version DESC LIMIT 1)) \
         WHERE no = (SELECT agent_no FROM keys WHERE no = ?1)",
        (no, r.below),
    )?;
    execute(conn, "DELETE FROM items WHERE key_no = ?1 AND version < ?2", (no, r.below))?;
    execute(conn, "UPDATE keys SET oldest = ?2, replaced = ?2 < version WHERE no = ?1", (no, r.below))
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

fn kept(keep: Retention) -> Option<i64> {
    match keep {
        Retention::All => None,
        Retention::Last(n) => Some(n),
    }
}

fn named(name: &Name) -> [&[u8]; 3] {
    [name.namespace.as_bytes(), name.agent.as_bytes(), name.key.as_bytes()]
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn current(r: &rusqlite::Row<'_>) -> rusqlite::Result<Current> {
    Ok(Current {
        version: r.get(0)?,
        live: r.get(1)?,
        position: Position(r.get(2)?),
        commit: r.get(3)?,
        at: Micros(r.get(4)?),
        first: Position(r.get(5)?),
        oldest: r.get(6)?,
        progress: r.get::<_, Option<i64>>(7)?.and_then(Progress::from_code),
        moved: false,
        no: r.get(8)?,
    })
}
