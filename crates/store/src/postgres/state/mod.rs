//! State in PostgreSQL: the rows that operations load and write.

pub mod schema;

use super::{
    rows::{self, get},
    statement::{Ask, all, maybe, params},
    write::{ONE_ROW, Statement, Values},
};
use crate::rows::{Cell, Cursor, Record as _};
use outlast_core::{
    state::{
        Committed, Name, Namespace, Position, Progress, Retention, StepKey,
        outcome::AT_ONCE,
        rows::{Compactable, Current, Rows, Trimmed},
    },
    store::Error,
    words::{id::Micros, row::Touch},
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

type Head = (Namespace, Option<(i64, Micros)>);

/// Returns a namespace, and which of its transaction ids may be forgotten (see `Rows::old_ids`); `None` if there is no
/// such namespace.
pub async fn head(client: &impl Ask, name: &str) -> Result<Option<Head>> {
    let behind = AT_ONCE as i64 - 1;
    maybe(client, HEAD, params![name.as_bytes(), behind], |r| {
        let mut row = Cursor::new(r);
        let head = Namespace::of_row(&mut row)?;
        Ok((head, row.maybe_int()?.zip(row.maybe_int()?.map(Micros))))
    })
    .await
}

pub async fn current(client: &impl Ask, name: &Name) -> Result<Option<Current>> {
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

/// Statements that delete the namespace $1. If the store's newest version is in it, that version is kept: its position
/// would be given again.
pub const FORGET: [&str; 5] = [
    "DELETE FROM outlast.items WHERE agent_no IN (SELECT a.no FROM outlast.agents a \
     JOIN outlast.namespaces n ON n.no = a.namespace_no WHERE sha256(n.name) = sha256($1)) \
     AND position < (SELECT max(position) FROM outlast.items)",
    "DELETE FROM outlast.keys WHERE namespace_no = (SELECT no FROM outlast.namespaces WHERE sha256(name) = sha256($1))",
    "DELETE FROM outlast.agents WHERE namespace_no = (SELECT no FROM outlast.namespaces WHERE sha256(name) = sha256($1))",
    "DELETE FROM outlast.commits WHERE namespace_no = (SELECT no FROM outlast.namespaces WHERE sha256(name) = sha256($1))",
    "DELETE FROM outlast.namespaces WHERE sha256(name) = sha256($1)",
];

/// Number of a key: $1, or that of the key named $2, $3 and $4 if $1 is 0, which an operation of the same transaction
/// has inserted.
const KEY_NO: &str = "coalesce(nullif($1, 0), (SELECT k.no FROM outlast.namespaces n \
    JOIN outlast.agents a ON a.namespace_no = n.no AND sha256(a.name) = sha256($3) \
    JOIN outlast.keys k ON k.agent_no = a.no AND sha256(k.key) = sha256($4) WHERE sha256(n.name) = sha256($2)))";

/// Adds the statements that write the rows touched by a decision, in order.
pub fn statements<'a>(rows: &'a Rows, all: &mut Vec<Statement<'a>>) {
    // One after the other: they find by name what those before them have inserted.
    let mut push = |writes: Option<&'static str>, sql: String, cells| {
        all.push(Statement { sql, writes, joins: false, values: Values::One(cells) });
    };
    for row in rows.namespaces.values().filter(|r| r.touch != Touch::Read) {
        let n = &row.value;
        let sql = "INSERT INTO outlast.namespaces (name, commit_no, at, keep, forgotten) \
                   VALUES ($1, $2, $3, $4, $5) ON CONFLICT (sha256(name)) DO UPDATE SET \
                   commit_no = excluded.commit_no, at = excluded.at, keep = excluded.keep, \
                   forgotten = excluded.forgotten";
        let keep = match n.keep {
            Retention::All => None,
            Retention::Last(n) => Some(n),
        };
        let cells = vec![bytes(&n.name), int(n.commit), int(n.at.0), Cell::Int(keep), int(n.forgotten)];
        push(None, sql.into(), cells);
    }
    for (name, row) in &rows.keys {
        match row.touch {
            Touch::Read => {}
            Touch::Insert => {
                push(None, INSERT_AGENT.into(), vec![bytes(&name.namespace), bytes(&name.agent)]);
                push(Some(ONE_ROW), INSERT_KEY.into(), insert_key(name, &row.value));
            }
            Touch::Update => push(Some(ONE_ROW), update_key_sql(), update_key(name, &row.value)),
        }
    }
    // The number of a key, where it has one, spares a search by name.
    let key = |name: &'a Name| {
        let no = rows.keys.get(name).map_or(0, |row| row.value.no);
        vec![int(no), bytes(&name.namespace), bytes(&name.agent), bytes(&name.key)]
    };
    for v in &rows.versions {
        let sql = format!(
            "INSERT INTO outlast.items (position, agent_no, key_no, version, commit_no, at, run_no, attempt, value) \
             SELECT $5, agent_no, no, $6, $7, $8, $9, $10, $11 FROM outlast.keys WHERE no = {KEY_NO}"
        );
        let mut cells = key(&v.name);
        cells.extend([int(v.position.0), int(v.version), int(v.commit), int(v.at.0)]);
        cells.extend([Cell::Int(v.run.map(|n| n.0)), Cell::Int(v.attempt.map(|n| n.0))]);
        cells.push(Cell::Blob(v.value.as_ref().map(|v| &v.stored()[..])));
        push(Some(ONE_ROW), sql, cells);
    }
    for c in &rows.commits {
        let sql = "INSERT INTO outlast.commits (namespace_no, commit_no, at, position, txn) \
                   SELECT no, $2, $3, $4, $5 FROM outlast.namespaces WHERE sha256(name) = sha256($1)";
        let id = Cell::Name(c.transaction.as_deref());
        let cells = vec![bytes(&c.namespace), int(c.commit), int(c.at.0), int(c.position.0), id];
        push(Some(ONE_ROW), sql.into(), cells);
    }
    for r in &rows.removals {
        let cells = || {
            let mut cells = match &r.key {
                Trimmed::No(no) => vec![int(*no), Cell::Name(None), Cell::Name(None), Cell::Name(None)],
                Trimmed::Changed(name) => key(name),
            };
            cells.push(int(r.below));
            cells
        };
        removal().into_iter().for_each(|(writes, sql)| push(writes, sql, cells()));
    }
    for f in &rows.forgettings {
        let sql = "UPDATE outlast.commits SET txn = NULL WHERE namespace_no = (SELECT no FROM outlast.namespaces \
                   WHERE sha256(name) = sha256($1)) AND commit_no > $2 AND commit_no <= $3 AND txn IS NOT NULL";
        push(None, sql.into(), vec![bytes(&f.namespace), int(f.above), int(f.to)]);
    }
}

fn int<'a>(value: i64) -> Cell<'a> {
    Cell::Int(Some(value))
}

fn bytes(name: &str) -> Cell<'_> {
    Cell::Name(Some(name))
}

const INSERT_AGENT: &str = "INSERT INTO outlast.agents (namespace_no, name, removed_to) SELECT n.no, $2, 0 \
    FROM outlast.namespaces n WHERE sha256(n.name) = sha256($1) AND NOT EXISTS (SELECT 1 \
    FROM outlast.agents a WHERE a.namespace_no = n.no AND sha256(a.name) = sha256($2))";

const INSERT_KEY: &str = "INSERT INTO outlast.keys (namespace_no, agent_no, key, version, live, replaced, position, \
    commit_no, at, first, oldest, progress, stem, n) \
    SELECT n.no, a.no, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14 FROM outlast.namespaces n \
    JOIN outlast.agents a ON a.namespace_no = n.no AND sha256(a.name) = sha256($2) \
    WHERE sha256(n.name) = sha256($1)";

fn insert_key<'a>(name: &'a Name, c: &Current) -> Vec<Cell<'a>> {
    let mut cells = vec![bytes(&name.namespace), bytes(&name.agent), bytes(&name.key)];
    let (stem, n) = step(name, c);
    cells.extend([int(c.version), Cell::Bool(c.live), Cell::Bool(c.oldest < c.version)]);
    cells.extend([int(c.position.0), int(c.commit), int(c.at.0), int(c.first.0), int(c.oldest)]);
    cells.extend([Cell::Int(c.progress.map(Progress::code)), stem, n]);
    cells
}

fn update_key_sql() -> String {
    format!(
        "UPDATE outlast.keys SET version = $5, live = $6, replaced = $7, position = $8, commit_no = $9, at = $10, \
         progress = $11, stem = $12, n = $13 WHERE no = {KEY_NO}"
    )
}

fn update_key<'a>(name: &'a Name, c: &Current) -> Vec<Cell<'a>> {
    let mut cells = vec![int(c.no), bytes(&name.namespace), bytes(&name.agent), bytes(&name.key)];
    let (stem, n) = step(name, c);
    cells.extend([int(c.version), Cell::Bool(c.live), Cell::Bool(c.oldest < c.version)]);
    cells.extend([int(c.position.0), int(c.commit), int(c.at.0)]);
    cells.extend([Cell::Int(c.progress.map(Progress::code)), stem, n]);
    cells
}

/// Returns the cells that find a resume point, for keys whose newest value is a step's record.
fn step<'a>(name: &'a Name, c: &Current) -> (Cell<'a>, Cell<'a>) {
    let step = c.progress.and_then(|_| StepKey::of(&name.key));
    (Cell::Name(step.map(|s| s.stem)), Cell::Int(step.map(|s| s.n)))
}

/// Returns the statements that remove the versions of a key below $5.
fn removal() -> [(Option<&'static str>, String); 3] {
    // Positions grow with versions: the last one removed is that of the highest version.
    let agent = format!(
        "UPDATE outlast.agents SET removed_to = greatest(removed_to, (SELECT position FROM outlast.items \
         WHERE key_no = {KEY_NO} AND version < $5 ORDER BY version DESC LIMIT 1)) \
         WHERE no = (SELECT agent_no FROM outlast.keys WHERE no = {KEY_NO})"
    );
    let items = format!("DELETE FROM outlast.items WHERE key_no = {KEY_NO} AND version < $5");
    let key = format!("UPDATE outlast.keys SET oldest = $5, replaced = version > $5 WHERE no = {KEY_NO}");
    [(Some(ONE_ROW), agent), (None, items), (Some(ONE_ROW), key)]
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
