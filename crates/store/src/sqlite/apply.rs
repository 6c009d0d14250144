//! Writes the rows touched by a decision.

use std::sync::LazyLock;

use outlast_core::{
    engine::loaded::Loaded,
    journal::{Entry, payload::Payload},
    run::Run,
    words::{
        id::{EnvelopeNo, RunNo},
        row::{Row, Touch},
    },
};
use rusqlite::{Connection, Result, params, params_from_iter};

use super::{
    cache::Cache,
    payloads,
    query::execute,
    rows::{no_json, to_json},
    state,
};
use crate::rows::{Cell, Dialect, Stored, Write, cells};

const SQLITE: Dialect = Dialect::Sqlite;

/// Writes the touched rows with statements prepared once per connection. `before` holds the rows as loaded.
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
    state::apply(conn, &l.state)?;
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
        Touch::Insert => bind(conn, &SQLITE.texts::<T>().insert, cells(&row.value, |_| true)),
        Touch::Update => update(conn, &row.value),
    }
}

pub fn update<T: Stored>(conn: &Connection, row: &T) -> Result<()> {
    let wanted = |write| write == Write::Key || SQLITE.rewrites(write);
    bind(conn, &SQLITE.texts::<T>().update, cells(row, wanted))
}

/// Inserts the row, or replaces the one with the same key.
fn put<T: Stored>(conn: &Connection, row: &T) -> Result<()> {
    bind(conn, &SQLITE.texts::<T>().upsert, cells(row, |_| true))
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
    let value = value.map(Payload::to_bytes);
    let mut cells = cells(e, |_| true).map_err(no_json)?;
    cells.push(Cell::Blob(value.as_deref()));
    bind(conn, &TEXT, Ok(cells))
}

fn bind(conn: &Connection, sql: &str, cells: serde_json::Result<Vec<Cell<'_>>>) -> Result<()> {
    execute(conn, sql, params_from_iter(cells.map_err(no_json)?))
}

/// Deletes all rows that belong to a run.
fn forget(conn: &Connection, run: RunNo, envelope: EnvelopeNo, namespace: &str) -> Result<()> {
    payloads::forget(conn, run)?;
    for table in ["entries", "attempts", "leases", "specs"] {
        execute(conn, &format!("DELETE FROM {table} WHERE run_no = ?1"), (run.0,))?;
    }
    state::forget(conn, namespace)?;
    execute(conn, "DELETE FROM runs WHERE no = ?1", (run.0,))?;
    execute(conn, "DELETE FROM envelopes WHERE no = ?1", (envelope.0,))
}
