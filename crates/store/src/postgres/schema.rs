//! Tables of the PostgreSQL store, and their creation in a new database.

use outlast_core::{run::Instance, store::Error, words::Micros};

use super::{
    error::failure,
    link::Link,
    rows, state,
    statement::{many, maybe, params, write_one},
    time::NOW,
};
use crate::{
    format::{FORMAT, readable},
    migration::{CREATED, added_since, is_idle},
    schema,
    tables::LIVE,
};

// The same tables as in SQLite, with composite primary keys. Names are bytea (they may hold NUL) and indexed by their
// hash (they may be long). JSON escapes NUL and is text. Text that is searched for is collated "C", so that a new
// version of the system's collations cannot break an index. Payloads arrive already compressed.
/// Tables of events and of their deliveries. Some stores of format 4 and older have none.
///
/// Numbers are drawn under a lock, so their order is that of the commits ([`super::locks::in_order_of_events`]). Until
/// format 4 it was not, and each row had its transaction: events are ordered by that first ([`IN_ORDER`]).
const EVENTS: &str = "
CREATE TABLE IF NOT EXISTS outlast.events (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, transaction bigint NOT NULL DEFAULT 0,
    at bigint NOT NULL, run_no bigint, seq bigint, kind text COLLATE \"C\" NOT NULL, about text NOT NULL);
CREATE INDEX IF NOT EXISTS events_in_order ON outlast.events (transaction, no);
CREATE INDEX IF NOT EXISTS events_of_runs ON outlast.events (run_no, transaction, no) WHERE run_no IS NOT NULL;
CREATE TABLE IF NOT EXISTS outlast.deliveries (name bytea PRIMARY KEY, version bigint NOT NULL, delivery text NOT NULL);
";

/// Table of the objects of runs' files. Stores of format 4 and older have none.
const OBJECTS: &str = "
CREATE TABLE IF NOT EXISTS outlast.objects (
    name bytea PRIMARY KEY, used_at bigint NOT NULL, length bigint NOT NULL, bytes bytea NOT NULL);
ALTER TABLE outlast.objects ALTER COLUMN bytes SET STORAGE EXTERNAL;
";

/// Puts all later events behind those of format 4: no server counts its transactions up to 2^52.
const IN_ORDER: &str = "ALTER TABLE outlast.events ALTER COLUMN transaction SET DEFAULT 4503599627370496";

fn tables_of_runs() -> String {
    let [tables, indexes] =
        schema::alike("outlast.", ["bigint", "boolean", "text COLLATE \"C\"", "bytea", "text"]);
    format!(
        "
CREATE TABLE outlast.meta (key text COLLATE \"C\" PRIMARY KEY, value bytea NOT NULL);

{tables}
CREATE INDEX runs_by_command ON outlast.runs (sha256(command_key), no) WHERE command_key IS NOT NULL;

CREATE TABLE outlast.attempts (
    run_no bigint NOT NULL, no bigint NOT NULL, slot bigint NOT NULL, label bytea,
    instance bigint, fence bigint, iteration bigint NOT NULL, started_at bigint NOT NULL, ended_at bigint,
    exit text, active_ms bigint NOT NULL, untaken bigint NOT NULL, diverged bigint,
    diverged_untaken bigint NOT NULL, closed_before bigint NOT NULL, PRIMARY KEY (run_no, no));
CREATE INDEX attempts_open ON outlast.attempts (run_no) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX attempts_by_label ON outlast.attempts (run_no, sha256(label)) WHERE label IS NOT NULL;

CREATE TABLE outlast.leases (
    run_no bigint NOT NULL, slot bigint NOT NULL, instance bigint NOT NULL, fence bigint NOT NULL,
    PRIMARY KEY (run_no, slot));

CREATE TABLE outlast.entries (
    run_no bigint NOT NULL, seq bigint NOT NULL, kind bigint NOT NULL,
    state bigint NOT NULL, attempt bigint NOT NULL, instance bigint, scope bytea NOT NULL, key bytea,
    match_key bytea, opened_at bigint NOT NULL, closed_at bigint,
    held_cost bigint NOT NULL, held_tokens bigint NOT NULL, held_calls bigint NOT NULL,
    spent_cost bigint NOT NULL, spent_tokens bigint NOT NULL, spent_calls bigint NOT NULL,
    delivered_to bigint, delivered_count bigint NOT NULL, retried_by bigint, replayable boolean NOT NULL,
    detail text, model bytea, upstream bytea, opened_by bigint NOT NULL DEFAULT 0, PRIMARY KEY (run_no, seq));
{indexes}
CREATE INDEX entries_by_key ON outlast.entries (run_no, kind, sha256(key), sha256(scope), seq)
    WHERE key IS NOT NULL;

{EVENTS}{OBJECTS}
CREATE TABLE outlast.payloads (
    run_no bigint NOT NULL, seq bigint NOT NULL, role bigint NOT NULL, part bigint NOT NULL,
    codec bigint NOT NULL, key_id bigint NOT NULL, len bigint NOT NULL,
    sha256 bytea NOT NULL, bytes bytea NOT NULL, PRIMARY KEY (run_no, seq, role, part));
ALTER TABLE outlast.payloads ALTER COLUMN bytes SET STORAGE EXTERNAL;
"
    )
}

/// Oldest server version supported, the first with `sha256(bytea)`.
const OLDEST_SERVER: i64 = 110_000;

/// Content of the database before anything is changed.
#[derive(PartialEq, Eq)]
enum Found {
    /// No schema, or an empty one that was created for Outlast.
    Nothing,
    /// A store of this program's format.
    Store,
    /// A store of an older format, which can be migrated.
    Older(i64),
}

/// Checks the format, and creates the tables or brings them to this program's format, in one transaction.
///
/// Errors: `Newer` and `Older` name both numbers; `Corrupt` if the schema belongs to something else;
/// `Absent` if there is none and `create` is false; `Open` if the server is unsuitable.
pub async fn make(
    client: &Link,
    place: &str,
    create: bool,
    fresh_meta: Vec<(String, Vec<u8>)>,
) -> Result<(), Error> {
    suits(client, place).await?;
    if found(client, place).await? == Found::Store {
        return Ok(());
    }
    client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await.map_err(failure)?;
    let done = tables(client, place, create, fresh_meta).await;
    let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = client.batch_execute(end).await.map_err(failure);
    done.and(ended)
}

async fn suits(client: &Link, place: &str) -> Result<(), Error> {
    let sql = "SELECT current_setting('server_version_num')::bigint, \
               current_setting('server_version'), current_setting('server_encoding')";
    let row = client.query_typed_one(sql, &[]).await.map_err(failure)?;
    let (number, version, encoding): (i64, &str, &str) =
        (rows::get(&row, 0)?, rows::get(&row, 1)?, rows::get(&row, 2)?);
    let open_error = |why| Err(Error::Open { place: place.into(), why });
    if number < OLDEST_SERVER {
        return open_error(format!("it is PostgreSQL {version}, and outlast needs 11 or newer"));
    }
    if encoding != "UTF8" {
        return open_error(format!("its encoding is {encoding}, and outlast needs UTF8"));
    }
    Ok(())
}

async fn found(client: &Link, place: &str) -> Result<Found, Error> {
    let sql = "SELECT to_regclass('outlast.meta') IS NOT NULL, EXISTS (SELECT 1 FROM pg_catalog.pg_class c \
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1)";
    let schema = client.schema.as_str();
    let row = client.query_typed_one(sql, params![schema]).await.map_err(failure)?;
    let (meta, anything): (bool, bool) = (rows::get(&row, 0)?, rows::get(&row, 1)?);
    if !anything {
        return Ok(Found::Nothing);
    }
    let foreign = || Error::Corrupt {
        what: format!("the schema {schema} of {place} is there, and not an outlast store"),
    };
    if !meta {
        return Err(foreign());
    }
    let sql = "SELECT value FROM outlast.meta WHERE key = 'format'";
    let format = maybe(client, sql, params![], |row| rows::name(row, 0)).await?.ok_or_else(foreign)?;
    let format = format.parse().map_err(|_| foreign())?;
    readable(format, place)?;
    Ok(if format == FORMAT { Found::Store } else { Found::Older(format) })
}

async fn tables(
    client: &Link,
    place: &str,
    create: bool,
    fresh_meta: Vec<(String, Vec<u8>)>,
) -> Result<(), Error> {
    client.batch_execute(&format!("SELECT {}", client.schema.lock())).await.map_err(failure)?;
    // Read again under the lock: another process may have created them meanwhile.
    match found(client, place).await? {
        Found::Store => return Ok(()),
        Found::Older(format) => return migrate(client, place, format).await,
        Found::Nothing => {}
    }
    if !create {
        return Err(Error::Absent { place: place.into(), within: stead(client) });
    }
    let make = format!("CREATE SCHEMA IF NOT EXISTS \"{}\"", client.schema.as_str());
    client.batch_execute(&make).await.map_err(failure)?;
    for sql in [&tables_of_runs(), state::schema::TABLES, &added_since(CREATED, "outlast.", "bigint")] {
        client.batch_execute(sql).await.map_err(failure)?;
    }
    let format = ("format".to_owned(), FORMAT.to_string().into_bytes());
    for (key, value) in fresh_meta.into_iter().chain([format]) {
        let sql = "INSERT INTO outlast.meta (key, value) VALUES ($1, $2)";
        write_one(client, sql, params![key, value.as_slice()]).await?;
    }
    Ok(())
}

/// Returns the place of the tables, for messages.
fn stead(client: &Link) -> String {
    match client.schema.is_usual() {
        true => "this database".to_owned(),
        false => format!("the schema {} of this database", client.schema.as_str()),
    }
}

/// Brings the tables to this program's format, under the lock of all writers. Errors: `Open` while a process of the
/// older version uses the store.
async fn migrate(client: &Link, place: &str, found: i64) -> Result<(), Error> {
    let live = many::<Instance>(client, &format!("WHERE life = {LIVE}"), params![]).await?;
    let now = rows::get(&client.query_typed_one(&format!("SELECT {NOW}"), &[]).await.map_err(failure)?, 0)?;
    is_idle(&live, Micros(now), place)?;
    for sql in [&added_since(found, "outlast.", "bigint"), EVENTS, IN_ORDER, OBJECTS] {
        client.batch_execute(sql).await.map_err(failure)?;
    }
    let sql = "UPDATE outlast.meta SET value = $1 WHERE key = 'format'";
    write_one(client, sql, params![FORMAT.to_string().as_bytes()]).await
}
