//! State in PostgreSQL: the rows that operations load and write.

mod read;
pub mod schema;

use std::collections::HashMap;

use outlast_core::{
    state::{
        Committed, Keep, Name, Namespace, Position, Progress, StepKey,
        outcome::AT_ONCE,
        rows::{Compactable, Current, Forgetting, NewCommit, NewVersion, Removal, Rows, Trimmed},
    },
    store::Error,
    words::{id::Micros, row::Touch},
};
use tokio_postgres::Client;

use super::{
    error::failure,
    rows::{get, name as text, number},
    statement::{Param, all, maybe, params, write_one},
};

type Result<T> = std::result::Result<T, Error>;

/// Query for a namespace, and the commit $2 places behind the first whose id is kept.
const HEAD: &str = "SELECT n.name, n.commit_no, n.at, n.keep, n.forgotten, o.commit_no, o.at \
    FROM outlast.namespaces n LEFT JOIN LATERAL (SELECT c.commit_no, c.at FROM outlast.commits c \
    WHERE c.namespace_no = n.no AND c.commit_no > n.forgotten ORDER BY c.commit_no LIMIT 1 OFFSET $2) o ON true \
    WHERE sha256(n.name) = sha256($1)";

pub async fn position(client: &Client) -> Result<Position> {
    let sql = "SELECT coalesce(max(position), 0) FROM outlast.items";
    Ok(Position(maybe(client, sql, params![], number).await?.unwrap_or(0)))
}

type Head = (Namespace, Option<(i64, Micros)>);

/// Returns a namespace, and which of its ids may be forgotten: see `Rows::old_ids`.
pub async fn head(client: &Client, name: &str) -> Result<Option<Head>> {
    let behind = AT_ONCE as i64 - 1;
    maybe(client, HEAD, params![name.as_bytes(), behind], |r| {
        let old = get::<Option<i64>>(r, 5)?.zip(get::<Option<i64>>(r, 6)?.map(Micros));
        Ok((namespace(r)?, old))
    })
    .await
}

pub async fn current(client: &Client, name: &Name) -> Result<Option<Current>> {
    let sql = "SELECT k.version, k.live, k.position, k.commit_no, k.at, k.first, k.oldest, k.progress, k.no \
               FROM outlast.namespaces n JOIN outlast.agents a ON a.namespace_no = n.no AND sha256(a.name) = sha256($2) \
               JOIN outlast.keys k ON k.agent_no = a.no AND sha256(k.key) = sha256($3) \
               WHERE sha256(n.name) = sha256($1)";
    let names = [&name.namespace, &name.agent, &name.key].map(|n| n.as_bytes());
    maybe(client, sql, params![names[0], names[1], names[2]], |r| {
        Ok(Current {
            version: get(r, 0)?,
            live: get(r, 1)?,
            position: Position(get(r, 2)?),
            commit: get(r, 3)?,
            at: Micros(get(r, 4)?),
            first: Position(get(r, 5)?),
            oldest: get(r, 6)?,
            progress: get::<Option<i64>>(r, 7)?.and_then(Progress::from_code),
            moved: false,
            no: get(r, 8)?,
        })
    })
    .await
}

pub async fn compactable(
    client: &Client,
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

pub async fn outcome(client: &Client, id: &str) -> Result<Option<Committed>> {
    let sql = "SELECT commit_no, at FROM outlast.commits \
               WHERE txn IS NOT NULL AND sha256(txn) = sha256($1) LIMIT 1";
    maybe(client, sql, params![id.as_bytes()], |r| {
        Ok(Committed { commit: get(r, 0)?, at: Micros(get(r, 1)?), versions: Vec::new() })
    })
    .await
}

/// Statements that delete the namespace $1. The store's newest version is kept: its position would be given again.
pub const FORGET: [&str; 5] = [
    "DELETE FROM outlast.items WHERE agent_no IN (SELECT a.no FROM outlast.agents a \
     JOIN outlast.namespaces n ON n.no = a.namespace_no WHERE sha256(n.name) = sha256($1)) \
     AND position < (SELECT max(position) FROM outlast.items)",
    "DELETE FROM outlast.keys WHERE namespace_no = (SELECT no FROM outlast.namespaces WHERE sha256(name) = sha256($1))",
    "DELETE FROM outlast.agents WHERE namespace_no = (SELECT no FROM outlast.namespaces WHERE sha256(name) = sha256($1))",
    "DELETE FROM outlast.commits WHERE namespace_no = (SELECT no FROM outlast.namespaces WHERE sha256(name) = sha256($1))",
    "DELETE FROM outlast.namespaces WHERE sha256(name) = sha256($1)",
];

/// Writes the state rows touched by a decision.
pub async fn apply(client: &Client, rows: &Rows) -> Result<()> {
    for row in rows.namespaces.values().filter(|r| r.touch != Touch::Read) {
        let n = &row.value;
        let sql = "INSERT INTO outlast.namespaces (name, commit_no, at, keep, forgotten) \
                   VALUES ($1, $2, $3, $4, $5) ON CONFLICT (sha256(name)) DO UPDATE SET \
                   commit_no = excluded.commit_no, at = excluded.at, keep = excluded.keep, \
                   forgotten = excluded.forgotten";
        let keep = match n.keep {
            Keep::All => None,
            Keep::Last(n) => Some(n),
        };
        write_one(client, sql, params![n.name.as_bytes(), n.commit, n.at.0, keep, n.forgotten]).await?;
    }
    let mut numbers: HashMap<&Name, i64> = HashMap::new();
    for (name, row) in &rows.keys {
        let no = match row.touch {
            Touch::Read => continue,
            Touch::Insert => insert_key(client, name, &row.value).await?,
            Touch::Update => update_key(client, name, &row.value).await?,
        };
        numbers.insert(&**name, no);
    }
    for v in &rows.versions {
        let key = numbers.get(&*v.name).copied();
        insert_version(client, v, key).await?;
    }
    for c in &rows.commits {
        insert_commit(client, c).await?;
    }
    for r in &rows.removals {
        let no = match &r.key {
            Trimmed::No(no) => Some(no),
            Trimmed::Changed(name) => numbers.get(&**name),
        };
        if let Some(no) = no {
            remove(client, *no, r).await?;
        }
    }
    for f in &rows.forgettings {
        forget_ids(client, f).await?;
    }
    Ok(())
}

/// Returns the columns that find a resume point, for keys whose newest value is a step's record.
fn step<'a>(name: &'a Name, c: &Current) -> (Option<&'a [u8]>, Option<i64>) {
    let step = c.progress.and_then(|_| StepKey::of(&name.key));
    (step.map(|s| s.stem.as_bytes()), step.map(|s| s.n))
}

/// Inserts a key and returns its number.
async fn insert_key(client: &Client, name: &Name, c: &Current) -> Result<i64> {
    let names = [&name.namespace, &name.agent, &name.key].map(|n| n.as_bytes());
    let sql = "INSERT INTO outlast.agents (namespace_no, name, removed_to) SELECT n.no, $2, 0 \
               FROM outlast.namespaces n WHERE sha256(n.name) = sha256($1) AND NOT EXISTS (SELECT 1 \
               FROM outlast.agents a WHERE a.namespace_no = n.no AND sha256(a.name) = sha256($2))";
    client.execute_typed(sql, params![names[0], names[1]]).await.map_err(failure)?;
    let (stem, n) = step(name, c);
    let sql = "INSERT INTO outlast.keys (namespace_no, agent_no, key, version, live, replaced, position, commit_no, \
               at, first, oldest, progress, stem, n) \
               SELECT n.no, a.no, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14 FROM outlast.namespaces n \
               JOIN outlast.agents a ON a.namespace_no = n.no AND sha256(a.name) = sha256($2) \
               WHERE sha256(n.name) = sha256($1) RETURNING no";
    let (replaced, progress) = (c.oldest < c.version, c.progress.map(Progress::code));
    let made = maybe(
        client,
        sql,
        params![
            names[0],
            names[1],
            names[2],
            c.version,
            c.live,
            replaced,
            c.position.0,
            c.commit,
            c.at.0,
            c.first.0,
            c.oldest,
            progress,
            stem,
            n
        ],
        number,
    )
    .await?;
    made.ok_or_else(|| Error::Corrupt { what: format!("the agent of {name:?} is missing") })
}

async fn update_key(client: &Client, name: &Name, c: &Current) -> Result<i64> {
    let (stem, n) = step(name, c);
    let sql = "UPDATE outlast.keys SET version = $2, live = $3, replaced = $4, position = $5, commit_no = $6, \
               at = $7, progress = $8, stem = $9, n = $10 WHERE no = $1";
    let progress = c.progress.map(Progress::code);
    let replaced = c.oldest < c.version;
    let params: &[Param<'_>] =
        params![c.no, c.version, c.live, replaced, c.position.0, c.commit, c.at.0, progress, stem, n];
    write_one(client, sql, params).await?;
    Ok(c.no)
}

async fn insert_version(client: &Client, v: &NewVersion, key: Option<i64>) -> Result<()> {
    let sql = "INSERT INTO outlast.items (position, agent_no, key_no, version, commit_no, at, run_no, attempt, value) \
               SELECT $1, agent_no, no, $3, $4, $5, $6, $7, $8 FROM outlast.keys WHERE no = $2";
    let stored = v.value.as_ref().map(|v| &v.stored()[..]);
    let (run, attempt) = (v.run.map(|n| n.0), v.attempt.map(|n| n.0));
    let params = params![v.position.0, key, v.version, v.commit, v.at.0, run, attempt, stored];
    write_one(client, sql, params).await
}

async fn insert_commit(client: &Client, c: &NewCommit) -> Result<()> {
    let sql = "INSERT INTO outlast.commits (namespace_no, commit_no, at, position, txn) \
               SELECT no, $2, $3, $4, $5 FROM outlast.namespaces WHERE sha256(name) = sha256($1)";
    let id = c.transaction.as_deref().map(str::as_bytes);
    write_one(client, sql, params![c.namespace.as_bytes(), c.commit, c.at.0, c.position.0, id]).await
}

async fn forget_ids(client: &Client, f: &Forgetting) -> Result<()> {
    let sql = "UPDATE outlast.commits SET txn = NULL WHERE namespace_no = (SELECT no FROM outlast.namespaces \
               WHERE sha256(name) = sha256($1)) AND commit_no > $2 AND commit_no <= $3 AND txn IS NOT NULL";
    let namespace = f.namespace.as_bytes();
    let params = params![namespace, f.above, f.to];
    client.execute_typed(sql, params).await.map_err(failure).map(drop)
}

async fn remove(client: &Client, no: i64, r: &Removal) -> Result<()> {
    // Positions grow with versions: the last one removed is that of the highest version.
    let sql = "UPDATE outlast.agents SET removed_to = greatest(removed_to, (SELECT position FROM outlast.items \
               WHERE key_no = $1 AND version < $2 ORDER BY version DESC LIMIT 1)) \
               WHERE no = (SELECT agent_no FROM outlast.keys WHERE no = $1)";
    write_one(client, sql, params![no, r.below]).await?;
    let sql = "DELETE FROM outlast.items WHERE key_no = $1 AND version < $2";
    client.execute_typed(sql, params![no, r.below]).await.map_err(failure)?;
    let sql = "UPDATE outlast.keys SET oldest = $2, replaced = version > $2 WHERE no = $1";
    write_one(client, sql, params![no, r.below]).await
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Reads a namespace from column 0 on.
fn namespace(r: &tokio_postgres::Row) -> Result<Namespace> {
    Ok(Namespace {
        name: text(r, 0)?,
        commit: get(r, 1)?,
        at: Micros(get(r, 2)?),
        keep: get::<Option<i64>>(r, 3)?.map_or(Keep::All, Keep::Last),
        forgotten: get(r, 4)?,
    })
}
