//! Writes the rows touched by a decision.

use std::sync::LazyLock;

use outlast_core::{
    engine::Loaded,
    journal::{Entry, LedgerLine, Payload},
    run::Run,
    words::{EnvelopeNo, Row, RunNo, Touch},
};
use rusqlite::{CachedStatement, Connection, Result, params, params_from_iter};

use super::{
    payloads,
    pending::Cache,
    rows::{execute, no_json, to_json},
};
use crate::{
    query::state::forget as forget_state,
    rows::{Dialect, Stored, Write},
    state::changes,
    tables::adding,
};

const SQLITE: Dialect = Dialect::Sqlite;

/// Writes the touched rows with statements prepared once per connection. `before` has the rows as loaded.
pub fn apply(conn: &Connection, before: &Cache, l: &Loaded) -> Result<()> {
    write_all(conn, &l.instances)?;
    write_all(conn, &l.envelopes)?;
    for row in &l.runs {
        if row.touch == Touch::Update {
            move_run(conn, &row.value, before.runs.get(&row.value.no))?;
        }
        write(conn, row)?;
    }
    touched(&l.budgets).try_for_each(|row| put(conn, &row.value))?;
    for (no, spec) in &l.specs {
        let sql = "INSERT OR REPLACE INTO specs (run_no, spec) VALUES (?1, ?2)";
        execute(conn, sql, params![no.0, to_json(spec)?])?;
        let amended = touched(&l.runs).find(|row| row.value.no == *no && row.touch == Touch::Update);
        if let Some(run) = amended {
            execute(
                conn,
                "UPDATE runs SET policy = ?2, command_key = ?3 WHERE no = ?1",
                params![no.0, to_json(&run.value.policy)?, run.value.command_key],
            )?;
        }
    }
    write_all(conn, &l.attempts)?;
    touched(&l.leases).try_for_each(|row| put(conn, &row.value))?;
    for row in &l.entries {
        match row.touch {
            Touch::Insert => insert_entry(conn, &row.value, None)?,
            _ => write(conn, row)?,
        }
    }
    l.payloads.iter().try_for_each(|p| payloads::put(conn, p))?;
    for change in changes(SQLITE, &l.state) {
        execute(conn, &change.sql, params_from_iter(&change.cells))?;
    }
    if let Some(d) = &l.new_delivery {
        put(conn, d)?;
    }
    for line in &l.posted {
        static TEXT: LazyLock<String> =
            LazyLock::new(|| format!("{} {}", SQLITE.texts::<LedgerLine>().insert, adding(SQLITE)));
        bind(conn, &TEXT, line, |_| true)?;
    }
    for e in &l.events {
        let sql = "INSERT INTO events (at, run_no, seq, kind, about) VALUES (?1, ?2, ?3, ?4, ?5)";
        let (run, seq) = (e.run.map(|no| no.0), e.seq.map(|seq| seq.0));
        execute(conn, sql, params![e.at.0, run, seq, e.kind.name(), e.about.to_string()])?;
    }
    l.forgotten.iter().try_for_each(|(run, envelope, namespace)| forget(conn, *run, *envelope, namespace))
}

fn touched<T>(rows: &[Row<T>]) -> impl Iterator<Item = &Row<T>> {
    rows.iter().filter(|row| row.touch != Touch::Read)
}

fn write_all<T: Stored>(conn: &Connection, rows: &[Row<T>]) -> Result<()> {
    rows.iter().try_for_each(|row| write(conn, row))
}

fn write<T: Stored>(conn: &Connection, row: &Row<T>) -> Result<()> {
    match row.touch {
        Touch::Read => Ok(()),
        Touch::Insert => bind(conn, &SQLITE.texts::<T>().insert, &row.value, |_| true),
        Touch::Update => update(conn, &row.value),
    }
}

pub fn update<T: Stored>(conn: &Connection, row: &T) -> Result<()> {
    #[cfg(debug_assertions)]
    keeps_what_is_written_once(conn, row)?;
    let wanted = |write| write == Write::Key || SQLITE.rewrites(write);
    bind(conn, &SQLITE.texts::<T>().update, row, wanted)
}

/// Panics if a column that is written once differs from the stored one: the change would be lost with this process.
#[cfg(debug_assertions)]
fn keeps_what_is_written_once<T: Stored>(conn: &Connection, row: &T) -> Result<()> {
    let kept = |write| write == Write::Key || write == Write::Once;
    let columns = T::COLUMNS.iter().filter(|column| kept(column.write));
    let same: Vec<String> = columns.map(|column| format!("{} IS ?", column.name)).collect();
    let sql = format!("SELECT 1 FROM {} WHERE {}", T::TABLE, same.join(" AND "));
    let mut statement = conn.prepare_cached(&sql)?;
    bind_cells(&mut statement, row, kept)?;
    assert!(statement.raw_query().next()?.is_some(), "an update would lose one of: {sql}");
    Ok(())
}

/// Inserts the row, or replaces the one with the same key.
fn put<T: Stored>(conn: &Connection, row: &T) -> Result<()> {
    bind(conn, &SQLITE.texts::<T>().upsert, row, |_| true)
}

/// Updates the rarely changing columns of a run that differ from `before`.
fn move_run(conn: &Connection, run: &Run, before: Option<&Run>) -> Result<()> {
    for column in Run::COLUMNS.iter().filter(|column| column.write == Write::Seldom) {
        let cell = (column.cell)(run).map_err(no_json)?;
        let old = before.map(|old| (column.cell)(old)).transpose().map_err(no_json)?;
        if old.as_ref() != Some(&cell) {
            execute(conn, &SQLITE.update(Run::TABLE, &["no"], &[column.name]), params![run.no.0, cell])?;
        }
    }
    Ok(())
}

/// Inserts the entry. A short value that is already known is stored in the same row.
pub fn insert_entry(conn: &Connection, e: &Entry, value: Option<&Payload>) -> Result<()> {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let names: Vec<&str> = Entry::COLUMNS.iter().map(|column| column.name).chain(["value"]).collect();
        SQLITE.insert(Entry::TABLE, &names)
    });
    let mut statement = conn.prepare_cached(&TEXT)?;
    let last = bind_cells(&mut statement, e, |_| true)?;
    if let Some(value) = value {
        statement.raw_bind_parameter(last + 1, value.to_bytes())?;
    }
    statement.raw_execute().map(drop)
}

fn bind<T: Stored>(conn: &Connection, sql: &str, row: &T, wanted: impl Fn(Write) -> bool) -> Result<()> {
    let mut statement = conn.prepare_cached(sql)?;
    bind_cells(&mut statement, row, wanted)?;
    statement.raw_execute().map(drop)
}

/// Binds the cells of `row` whose rule is wanted, and returns the number of the last.
fn bind_cells<T: Stored>(
    statement: &mut CachedStatement<'_>,
    row: &T,
    wanted: impl Fn(Write) -> bool,
) -> Result<usize> {
    let mut last = 0;
    for column in T::COLUMNS.iter().filter(|column| wanted(column.write)) {
        last += 1;
        let cell = (column.cell)(row).map_err(no_json)?;
        // A cached statement comes without bindings, which are NULL.
        if !cell.is_null() {
            statement.raw_bind_parameter(last, cell)?;
        }
    }
    Ok(last)
}

/// Deletes all rows that belong to a run.
fn forget(conn: &Connection, run: RunNo, envelope: EnvelopeNo, namespace: &str) -> Result<()> {
    payloads::forget(conn, run)?;
    for table in ["entries", "attempts", "leases", "specs", "sums"] {
        execute(conn, &format!("DELETE FROM {table} WHERE run_no = ?1"), (run.0,))?;
    }
    for sql in forget_state(SQLITE) {
        execute(conn, &sql, (namespace.as_bytes(),))?;
    }
    execute(conn, "DELETE FROM events WHERE run_no = ?1 AND kind <> 'run_removed'", (run.0,))?;
    execute(conn, "DELETE FROM runs WHERE no = ?1", (run.0,))?;
    execute(conn, "DELETE FROM envelopes WHERE no = ?1", (envelope.0,))
}
