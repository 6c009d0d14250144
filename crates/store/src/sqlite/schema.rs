//! Tables of the SQLite store, their creation in a new file, and the migration of an older store's file, once and
//! durably; a copy of the file as it was stays beside it.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use outlast_core::{run::Instance, store::Error, words::Micros};
use rusqlite::{Connection, Transaction};

use super::{connect, failure, rows};
use crate::{
    migration::{CREATED, FORMAT, added_since, is_idle, readable},
    rows::Dialect,
    tables::{self, LIVE},
};

/// `PRAGMA application_id` that distinguishes an Outlast store from any other SQLite file ("OUTL").
pub const APPLICATION_ID: i64 = 0x4f55_544c;

// Layout, from measurements: `id INTEGER PRIMARY KEY` with UNIQUE(run_no, seq) appends at the end of the tree; a
// clustered (run, seq) key is 2.7 times slower with many callers. A run's text id is stored once. Indexes end in the
// order that queries ask for, and queries name their index: otherwise the planner scans a whole run by (run_no, seq)
// to save a sort. A payload's id is derived from its entry's (see `payloads.rs`), so it needs no index, which saves
// each commit one page. A short value in its entry's row saves another. Indexes on open rows are partial, so that a
// sweep costs only what is open.
/// Tables of events and of their deliveries. Some stores of format 4 and older have none. A number is never given out twice,
/// because the newest row is never removed.
pub const EVENTS: &str = "
CREATE TABLE IF NOT EXISTS events (
    no INTEGER PRIMARY KEY, at INTEGER NOT NULL, run_no INTEGER, seq INTEGER, kind TEXT NOT NULL, about TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_of_runs ON events (run_no, no) WHERE run_no IS NOT NULL;
CREATE TABLE IF NOT EXISTS deliveries (name TEXT PRIMARY KEY, version INTEGER NOT NULL, delivery TEXT NOT NULL) WITHOUT ROWID;
";

// A namespace, an agent and a key are stored once, under a number; versions refer to the key's number. Names are
// blobs, compared by their UTF-8 bytes, NUL included. `position` is the order of all writes; every index on `items`
// ends in it, as it is the table's key. `keys` holds the newest version of each key, so that listing reads no
// versions. Its `replaced` says that older versions exist, so that most new versions change no index of `keys`. Its
// `stem` and `n` are set while the value records a step's progress.
pub const STATE: &str = "
CREATE TABLE namespaces (
    no INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, commit_no INTEGER NOT NULL, at INTEGER NOT NULL,
    keep INTEGER, forgotten INTEGER NOT NULL);

CREATE TABLE agents (
    no INTEGER PRIMARY KEY, namespace_no INTEGER NOT NULL, name BLOB NOT NULL, removed_to INTEGER NOT NULL,
    UNIQUE (namespace_no, name));

CREATE TABLE keys (
    no INTEGER PRIMARY KEY, namespace_no INTEGER NOT NULL, agent_no INTEGER NOT NULL, key BLOB NOT NULL,
    version INTEGER NOT NULL, live INTEGER NOT NULL, replaced INTEGER NOT NULL, position INTEGER NOT NULL, commit_no INTEGER NOT NULL,
    at INTEGER NOT NULL, first INTEGER NOT NULL, oldest INTEGER NOT NULL, progress INTEGER, stem BLOB, n INTEGER,
    UNIQUE (agent_no, key));
CREATE INDEX keys_live ON keys (agent_no, key) WHERE live = 1;
CREATE INDEX keys_steps ON keys (agent_no, stem, progress, n) WHERE stem IS NOT NULL;
CREATE INDEX keys_with_history ON keys (namespace_no, no) WHERE replaced = 1;

CREATE TABLE items (
    position INTEGER PRIMARY KEY, agent_no INTEGER NOT NULL, key_no INTEGER NOT NULL, version INTEGER NOT NULL,
    commit_no INTEGER NOT NULL, at INTEGER NOT NULL, run_no INTEGER, attempt INTEGER, value BLOB);
CREATE UNIQUE INDEX items_by_version ON items (key_no, version);
CREATE INDEX items_by_key ON items (key_no);
CREATE INDEX items_by_agent ON items (agent_no);

CREATE TABLE commits (
    namespace_no INTEGER NOT NULL, commit_no INTEGER NOT NULL, at INTEGER NOT NULL, position INTEGER NOT NULL,
    txn BLOB, PRIMARY KEY (namespace_no, commit_no)) WITHOUT ROWID;
CREATE INDEX commits_by_time ON commits (namespace_no, at, commit_no);
CREATE INDEX commits_by_transaction ON commits (txn) WHERE txn IS NOT NULL;
";

fn tables_of_runs() -> String {
    let [tables, indexes] = tables::alike("", ["INTEGER", "INTEGER", "TEXT", "TEXT", "TEXT"]);
    format!(
        "
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;

{tables}
CREATE INDEX runs_by_command ON runs (command_key) WHERE command_key IS NOT NULL;

CREATE TABLE attempts (
    id INTEGER PRIMARY KEY, run_no INTEGER NOT NULL, no INTEGER NOT NULL, slot INTEGER NOT NULL, label TEXT,
    instance INTEGER, fence INTEGER, iteration INTEGER NOT NULL, started_at INTEGER NOT NULL, ended_at INTEGER,
    exit TEXT, active_ms INTEGER NOT NULL, untaken INTEGER NOT NULL, diverged INTEGER,
    diverged_untaken INTEGER NOT NULL, closed_before INTEGER NOT NULL, UNIQUE (run_no, no));
CREATE INDEX attempts_open ON attempts (run_no, no) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX attempts_by_label ON attempts (run_no, label) WHERE label IS NOT NULL;

CREATE TABLE leases (
    run_no INTEGER NOT NULL, slot INTEGER NOT NULL, instance INTEGER NOT NULL, fence INTEGER NOT NULL,
    PRIMARY KEY (run_no, slot)) WITHOUT ROWID;

CREATE TABLE entries (
    id INTEGER PRIMARY KEY, run_no INTEGER NOT NULL, seq INTEGER NOT NULL, kind INTEGER NOT NULL,
    state INTEGER NOT NULL, attempt INTEGER NOT NULL, instance INTEGER, scope TEXT NOT NULL, key TEXT,
    match_key BLOB, opened_at INTEGER NOT NULL, closed_at INTEGER,
    held_cost INTEGER NOT NULL, held_tokens INTEGER NOT NULL, held_calls INTEGER NOT NULL,
    spent_cost INTEGER NOT NULL, spent_tokens INTEGER NOT NULL, spent_calls INTEGER NOT NULL,
    delivered_to INTEGER, delivered_count INTEGER NOT NULL, retried_by INTEGER, replayable INTEGER NOT NULL,
    model TEXT, detail TEXT, upstream TEXT, value BLOB, opened_by INTEGER NOT NULL DEFAULT 0,
    UNIQUE (run_no, seq));
{indexes}
CREATE INDEX entries_by_key ON entries (run_no, kind, key, scope, seq) WHERE key IS NOT NULL;

{EVENTS}
CREATE TABLE payloads (
    id INTEGER PRIMARY KEY, codec INTEGER NOT NULL, key_id INTEGER NOT NULL, len INTEGER NOT NULL,
    sha256 BLOB NOT NULL, bytes BLOB NOT NULL);
"
    )
}

/// Returns the format of the store in the file, 0 if there is none yet. Changes nothing.
///
/// Errors: `Newer` and `Older` name both numbers; `Corrupt` if the file is another application's database.
pub fn found(conn: &mut Connection, place: &str) -> Result<i64, Error> {
    // One snapshot: another process may create the store between two reads.
    found_in(&conn.transaction().map_err(failure)?, place)
}

pub(super) fn found_in(tx: &Transaction<'_>, place: &str) -> Result<i64, Error> {
    let pragma = |name: &str| -> Result<i64, Error> {
        tx.pragma_query_value(None, name, |r| r.get(0)).map_err(failure)
    };
    let found = pragma("user_version")?;
    if pragma("application_id")? != APPLICATION_ID {
        let tables: i64 =
            tx.query_row("SELECT count(*) FROM sqlite_master", [], |r| r.get(0)).map_err(failure)?;
        if tables > 0 || found != 0 {
            return Err(Error::Corrupt {
                what: format!("{place} is a SQLite file, and not an outlast store"),
            });
        }
    }
    if found != 0 {
        readable(found, place)?;
    }
    Ok(found)
}

/// Creates the tables if there are none, in one transaction, and returns the format of the store. Errors: those of
/// `found`.
pub fn make(
    conn: &mut Connection,
    place: &str,
    fresh_meta: impl FnOnce() -> Vec<(String, Vec<u8>)>,
) -> Result<i64, Error> {
    match found(conn, place)? {
        0 => {}
        format => return Ok(format),
    }
    let tx = Transaction::new(conn, rusqlite::TransactionBehavior::Immediate).map_err(failure)?;
    // Read again under the lock: another process may have created them meanwhile.
    match found_in(&tx, place)? {
        0 => {}
        format => return Ok(format),
    }
    tx.execute_batch(&tables_of_runs()).map_err(failure)?;
    tx.execute_batch(STATE).map_err(failure)?;
    tx.execute_batch(&added_since(Dialect::Sqlite, CREATED)).map_err(failure)?;
    tx.pragma_update(None, "user_version", FORMAT).map_err(failure)?;
    tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(failure)?;
    for (key, value) in fresh_meta() {
        tx.execute("INSERT INTO meta (key, value) VALUES (?1, ?2)", (key, value)).map_err(failure)?;
    }
    tx.commit().map_err(failure)?;
    Ok(FORMAT)
}

/// Brings the store to this program's format. Does nothing if another process has done so.
///
/// A copy of the store as it was is complete and on disk beside it before anything changes.
/// Errors: `Open` while a process of the older version uses the store; `Full` and `Io`, with the store as it was.
pub fn migrate(conn: &mut Connection, path: &Path, now: Micros) -> Result<(), Error> {
    let place = path.display().to_string();
    let tx = Transaction::new(conn, rusqlite::TransactionBehavior::Immediate).map_err(failure)?;
    // Read again under the lock: another process may have migrated it meanwhile.
    let found = found_in(&tx, &place)?;
    if found == FORMAT {
        return Ok(());
    }
    is_idle(&rows::many::<Instance>(&tx, &format!("WHERE life = {LIVE}"), [])?, now, &place)?;
    let copy = copy(path, found)?;
    tx.execute_batch(&added_since(Dialect::Sqlite, found)).map_err(failure)?;
    tx.execute_batch(EVENTS).map_err(failure)?;
    tx.pragma_update(None, "user_version", FORMAT).map_err(failure)?;
    tx.commit().map_err(failure)?;
    tracing::warn!(
        "{place} was brought from format {found} to {FORMAT}; as it was, it is in {}",
        copy.display()
    );
    Ok(())
}

/// Copies the store's committed content to `<store>.format-<n>`, mode 0600, and syncs it.
fn copy(path: &Path, format: i64) -> Result<PathBuf, Error> {
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".format-{format}{suffix}"));
        PathBuf::from(name)
    };
    let failed = |e: std::io::Error| match e.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Error::Full { why: e.to_string() },
        _ => Error::Io { why: format!("{}: {e}", path.display()) },
    };
    let (unfinished, done) = (beside("-unfinished"), beside(""));
    match fs::remove_file(&unfinished) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    // A reader's connection: it sees what is committed, the log included, while the writer's lock is held.
    let reader = connect::reader(path)?;
    reader.pragma_update(None, "query_only", false).map_err(failure)?;
    reader.execute("VACUUM INTO ?1", [unfinished.to_string_lossy()]).map_err(failure)?;
    let file = File::open(&unfinished).map_err(failed)?;
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    fs::rename(&unfinished, &done).map_err(failed)?;
    let directory = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory).and_then(|d| d.sync_all()).map_err(failed)?;
    Ok(done)
}
