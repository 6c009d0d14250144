//! Writes the rows that a group has changed: one statement for each kind of row.

use std::{borrow::Cow, sync::OnceLock};

use outlast_core::{engine::loaded::NewPayload, journal::LedgerLine};
use tokio_postgres::error::SqlState;

use super::{
    locks,
    memory::Remembered,
    rows::{no_json, to_json},
    statement::{Ask as _, params},
    write::{ONE_ROW, ROW_OF_EACH},
};
use crate::{
    postgres::prelude::*,
    query::state::forget as forget_state,
    rows::{
        Dialect::{Postgres, PostgresRow},
        Write, cells, replacing,
    },
    state::changes,
    tables::{PAYLOAD, adding},
};

/// Statements that write all changed rows of a group, in order. Events come last, behind their lock.
pub fn statements<'a>(known: &'a Known, schema: &SchemaName) -> Result<Vec<Statement<'a>>, Error> {
    let mut all = Vec::new();
    write::<Instance>(known, &mut all)?;
    write::<Envelope>(known, &mut all)?;
    write::<Run>(known, &mut all)?;
    put::<Budget>(known, &mut all)?;
    let specs = known.specs.iter().filter(|(_, row)| row.touch != Touch::Read);
    many(&mut all, spec_sql, specs, |(run, row)| {
        Ok(vec![Cell::Int(Some(run.0)), Cell::Text(Some(to_json(&row.value)?.into()))])
    })?;
    for run in known.runs.values().filter(|row| row.touch == Touch::Update).map(|row| &row.value) {
        if known.specs.get(&run.no).is_some_and(|spec| spec.touch != Touch::Read) {
            let policy = Cell::Text(Some(to_json(&run.policy)?.into()));
            let key = Cell::Name(run.command_key.as_deref());
            let values = Values::One(vec![Cell::Int(Some(run.no.0)), policy, key]);
            let sql = PostgresRow.update(Run::TABLE, &["no"], &["policy", "command_key"]).into();
            // The row is written twice, one after the other.
            all.push(Statement { sql, writes: Some(ONE_ROW), joins: false, values, row: None });
        }
    }
    write::<Attempt>(known, &mut all)?;
    put::<Lease>(known, &mut all)?;
    write::<Entry>(known, &mut all)?;
    let are_new = known
        .payloads
        .keys()
        .all(|(run, seq, ..)| known.entries.get(&(*run, *seq)).is_some_and(|row| row.touch == Touch::Insert));
    many(&mut all, |dialect| payload_sql(dialect, are_new), known.payloads.values(), payload)?;
    for change in known.state.changes.iter().flat_map(|rows| changes(PostgresRow, rows)) {
        let writes = change.writes_one.then_some(ONE_ROW);
        all.push(Statement {
            writes,
            joins: false,
            ..Statement::new(change.sql.into(), Values::One(change.cells))
        });
    }
    let deliveries = known.deliveries.values().filter(|row| row.touch != Touch::Read);
    put_rows(deliveries, &mut all)?;
    many(&mut all, posting, known.posted.iter(), every)?;
    let names = ["at", "run_no", "seq", "kind", "about"];
    if !known.events.is_empty() {
        all.push(locks::in_order_of_events(schema));
    }
    many(
        &mut all,
        |dialect| dialect.insert("events", &names).into(),
        known.events.iter(),
        |e| {
            let (run, seq) = (Cell::Int(e.run.map(|no| no.0)), Cell::Int(e.seq.map(|seq| seq.0)));
            let (kind, about) = (e.kind.name().into(), e.about.to_string().into());
            Ok(vec![Cell::Int(Some(e.at.0)), run, seq, Cell::Text(Some(kind)), Cell::Text(Some(about))])
        },
    )?;
    Ok(all)
}

/// Statement that writes the highest operation number of the group into its process's row.
pub fn counting<'a>(known: &Known, instance: InstanceNo, counter: i64) -> Statement<'a> {
    // A row that is written otherwise too is written twice, one after the other.
    let joins = known.instances.values().all(|row| row.touch == Touch::Read);
    let sql = "UPDATE outlast.instances SET op_counter = $2 WHERE no = $1".into();
    let values = Values::One(vec![Cell::Int(Some(instance.0)), Cell::Int(Some(counter))]);
    Statement { sql, writes: Some(ONE_ROW), joins, values, row: Some(Instance::place(instance)) }
}

/// Deletes all rows that belong to a run.
pub async fn forget(
    client: &Link,
    run: RunNo,
    envelope: EnvelopeNo,
    namespace: &str,
) -> Result<(), tokio_postgres::Error> {
    for table in ["payloads", "entries", "attempts", "leases", "specs", "sums"] {
        let sql = format!("DELETE FROM outlast.{table} WHERE run_no = $1");
        client.execute(&sql, params![run.0]).await?;
    }
    for sql in forget_state(Postgres) {
        client.execute(&sql, params![namespace.as_bytes()]).await?;
    }
    let sql = "DELETE FROM outlast.events WHERE run_no = $1 AND kind <> 'run_removed'";
    client.execute(sql, params![run.0]).await?;
    client.execute("DELETE FROM outlast.runs WHERE no = $1", params![run.0]).await?;
    client.execute("DELETE FROM outlast.envelopes WHERE no = $1", params![envelope.0]).await.map(drop)
}

/// Maps the failure of a write to the store's error: `Corrupt` if a row that was read could not be written back.
pub fn write_failure(e: tokio_postgres::Error) -> Error {
    // So a statement fails that does not write the rows that it must.
    if e.code() == Some(&SqlState::DIVISION_BY_ZERO) {
        return Error::Corrupt { what: "a row that was read could not be written back".into() };
    }
    failure(e)
}

/// Inserts and updates the touched rows.
fn write<'a, T: Remembered + Stored>(known: &'a Known, all: &mut Vec<Statement<'a>>) -> Result<(), Error> {
    let of = |touch| T::held(known).values().filter(move |row: &&Row<T>| row.touch == touch);
    let insert = |dialect: Dialect| dialect.texts::<T>().insert.as_str().into();
    many(all, insert, of(Touch::Insert), |row| every(&row.value))?;
    let inserted = all.len();
    let wanted = |write| write == Write::Key || Postgres.rewrites(write);
    let changed = |row: &'a Row<T>| cells(&row.value, wanted).map_err(no_json);
    many(all, |dialect| dialect.texts::<T>().update.as_str().into(), of(Touch::Update), changed)?;
    let first = of(Touch::Update).next().map(|row| T::place(row.value.id()));
    for update in &mut all[inserted..] {
        // Each row was read: an update that misses one would lose what was decided.
        (update.writes, update.row) = match update.values {
            Values::One(_) => (Some(ONE_ROW), first),
            Values::Many(_) => (Some(ROW_OF_EACH), None),
        };
    }
    Ok(())
}

/// Inserts the touched rows, or replaces those with the same keys.
fn put<'a, T: Hold + Stored>(known: &'a Known, all: &mut Vec<Statement<'a>>) -> Result<(), Error> {
    put_rows(T::held(known).values().filter(|row| row.touch != Touch::Read), all)
}

fn put_rows<'a, T: Stored>(
    rows: impl Iterator<Item = &'a Row<T>>,
    all: &mut Vec<Statement<'a>>,
) -> Result<(), Error> {
    many(all, |dialect| dialect.texts::<T>().upsert.as_str().into(), rows, |row| every(&row.value))
}

fn every<T: Stored>(row: &T) -> Result<Vec<Cell<'_>>, Error> {
    cells(row, |_| true).map_err(no_json)
}

/// Adds the statement that writes `rows`, unless there are none.
fn many<'a, R>(
    all: &mut Vec<Statement<'a>>,
    sql: impl Fn(Dialect) -> Cow<'static, str>,
    mut rows: impl Iterator<Item = R>,
    cells: impl Fn(R) -> Result<Vec<Cell<'a>>, Error>,
) -> Result<(), Error> {
    let Some(first) = rows.next() else { return Ok(()) };
    let first = cells(first)?;
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        all.push(Statement::new(sql(PostgresRow), Values::One(first)));
        return Ok(());
    }
    let mut arrays: Vec<Vec<Cell<'a>>> = first.into_iter().map(|cell| vec![cell]).collect();
    for row in rows {
        arrays.iter_mut().zip(cells(row)?).for_each(|(array, cell)| array.push(cell));
    }
    all.push(Statement::new(sql(Postgres), Values::Many(arrays)));
    Ok(())
}

fn spec_sql(dialect: Dialect) -> Cow<'static, str> {
    let insert = dialect.insert("specs", &["run_no", "spec"]);
    format!("{insert} {}", replacing(&["run_no"], &["spec"])).into()
}

fn posting(dialect: Dialect) -> Cow<'static, str> {
    format!("{} {}", dialect.texts::<LedgerLine>().insert, adding(dialect)).into()
}

/// Returns the statement that writes payloads. Where the transaction inserts their entries, there are none to replace.
fn payload_sql(dialect: Dialect, are_new: bool) -> Cow<'static, str> {
    static TEXTS: [OnceLock<String>; 4] = [const { OnceLock::new() }; 4];
    let text = &TEXTS[usize::from(dialect == PostgresRow) * 2 + usize::from(are_new)];
    let text = text.get_or_init(|| {
        let keys = ["run_no", "seq", "role", "part"];
        let columns: Vec<&str> = PAYLOAD.split(", ").collect();
        let insert = dialect.insert("payloads", &[&keys[..], &columns].concat());
        if are_new { insert } else { format!("{insert} {}", replacing(&keys, &columns)) }
    });
    text.as_str().into()
}

fn payload(p: &NewPayload) -> Result<Vec<Cell<'_>>, Error> {
    let len = i64::try_from(p.payload.len)
        .map_err(|_| Error::Corrupt { what: format!("a payload of {} bytes", p.payload.len) })?;
    let int = |value: i64| Cell::Int(Some(value));
    Ok(vec![
        int(p.run.0),
        int(p.seq.0),
        int(p.role.code()),
        int(i64::from(p.payload.part)),
        int(p.payload.codec as i64),
        int(i64::from(p.payload.key_id)),
        int(len),
        Cell::Blob(Some(&p.payload.sha256[..])),
        Cell::Blob(Some(&p.payload.bytes[..])),
    ])
}
