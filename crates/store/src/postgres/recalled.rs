//! Commit of a group that was decided on remembered rows: its locks, the check of all versions, its writes and the
//! commit in one round trip.
//!
//! Each statement costs the server as much as a row or two. So the group of one step is one statement, which is a
//! transaction by itself. It sees the rows of the moment at which it began, before it waited for its locks. So it locks
//! each row whose version it checks: that finds the newest version, whoever committed it in between. A lease that was
//! absent may come unseen in between. That of an adopter refuses nobody; any other has a new fence, and with it changes
//! the row of its run, which is checked.
//!
//! A larger group, one with other absent rows, and a session that may be behind a pooler, take a transaction of several
//! statements.

use std::{cell::Cell as Noted, collections::BTreeMap};

use outlast_core::words::Micros;
use tokio_postgres::error::SqlState;

use super::{
    memory::{ABSENT, Arrays, Basis, Place, Table, by_table},
    named::Named,
    session::{First, NUMBER, Session, Terms},
    statement::{Ask as _, Param, params},
    time::NOW,
    write::{self, Failed, Request, Statement, Values},
};
use crate::rows::Cell;

/// Largest difference between the database's clock and the time that was decided at, in microseconds.
const TOLERANCE_US: i64 = 1_000_000;

/// Largest number of rows that one statement checks: its text grows with them, and each text is planned.
const MOST_ROWS: usize = 8;

/// Largest number of bytes of one statement's values. They reach the server in one piece with the end of the statement,
/// so that no server stops with one half of its message sent, in a transaction that nothing ends.
const MOST_BYTES: usize = 16 << 10;

/// Expressions that fail a statement where they are reached: a row is not as remembered, and the server's connection is
/// another session's. They are of no constants, which would be computed as the statement is planned.
const STALE: &str = "(txid_current() / 0)";
const ELSEWHERE: &str = "sqrt(-txid_current()::float8)::bigint";

/// Reason why a transaction of one round trip was not committed.
pub enum AtOnce {
    /// A row is not as it was remembered, or the clock is elsewhere. Nothing was written.
    Stale,
    /// It was begun on a server's connection that holds another session's token. Nothing was written.
    Elsewhere,
    Failed(Failed),
}

impl Session {
    /// Begins a transaction, takes its locks, checks that the rows of `basis` are as they are remembered, writes and
    /// commits, in one round trip. `now` is the time that was decided at, by the database's clock. Returns the number of
    /// the transaction.
    pub fn commit_at_once(
        &self,
        terms: &Terms<'_>,
        basis: (&Basis, Micros),
        statements: &[Statement<'_>],
    ) -> Result<i64, AtOnce> {
        let Some(token) = &self.client.token else { return Err(AtOnce::Stale) };
        let told = Told::default();
        let done = match self.is_alone && is_small(basis.0, statements) {
            true => self.run(self.as_one_statement(terms, basis, statements, token, &told)),
            false => self.run(self.as_several(terms, basis, statements, token, &told)),
        };
        match done {
            Ok(()) => Ok(told.number.get()),
            Err(_) if told.is_elsewhere.get() => Err(AtOnce::Elsewhere),
            Err(_) if told.is_stale.get() => Err(AtOnce::Stale),
            Err(failed) => Err(AtOnce::Failed(failed)),
        }
    }

    async fn as_one_statement(
        &self,
        terms: &Terms<'_>,
        (basis, now): (&Basis, Micros),
        statements: &[Statement<'_>],
        token: &str,
        told: &Told,
    ) -> Result<(), Failed> {
        let schema = &self.client.client.schema;
        let mut bound = Bound(vec![Cell::Text(Some(token.into()))]);
        let is_ours = "coalesce(current_setting('outlast_session.token', true), '') = $1".to_owned();
        // As `SETTINGS` have it. What else they set, this session began with.
        let is_synced = match terms.synced {
            true => {
                "current_setting('synchronous_commit') <> 'off' OR set_config('synchronous_commit', 'on', true) <> ''"
            }
            false => "set_config('synchronous_commit', 'off', true) <> ''",
        };
        let mut steps = vec![(is_ours, ELSEWHERE), (is_synced.to_owned(), STALE)];
        // Locks come first of all and in their order, as in `Locks`.
        if let Some(locks) = terms.locks {
            steps.push((locks.store_taken(schema), STALE));
            for (class, part) in locks.keys(schema) {
                let (class, part) = (bound.int(class.into()), bound.int(part.into()));
                steps.push((format!("pg_advisory_xact_lock({class}::int, {part}::int) IS NOT NULL"), STALE));
            }
        }
        let (now, tolerance) = (bound.int(now.0), bound.int(TOLERANCE_US));
        steps.push((format!("abs({NOW} - {now}) <= {tolerance}"), STALE));
        for (Place(table, a, b), version) in basis {
            let a = bound.int(*a);
            let found = table.version(a, || bound.int(*b));
            steps.push(match *version {
                ABSENT => (format!("({found}) IS NULL"), STALE),
                version => (format!("({found} FOR NO KEY UPDATE) = {}", bound.int(version)), STALE),
            });
        }
        let mut params: Vec<Param<'_>> = bound.0.iter().map(Cell::param).collect();
        let (parts, counts) = write::joined(statements, &mut params);
        let counts = if counts.is_empty() { "true" } else { &counts };
        // A CASE takes its conditions in order, and a query of the WITH runs when its rows are counted, or at the end.
        let whole =
            steps.iter().rev().fold(format!("{NUMBER} / ({counts})::int"), |rest, (step, otherwise)| {
                format!("CASE WHEN {step} THEN {rest} ELSE {otherwise} END")
            });
        let sql = format!("WITH {parts} SELECT {whole}");
        write::run_alone(&self.client, Box::pin(told.number_of(&self.client, &sql, &params))).await
    }

    async fn as_several(
        &self,
        terms: &Terms<'_>,
        (basis, now): (&Basis, Micros),
        statements: &[Statement<'_>],
        token: &str,
        told: &Told,
    ) -> Result<(), Failed> {
        // Not READ WRITE, which a server that only reads would refuse, and then take the statements without a transaction.
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; \
             SELECT 1 / (coalesce(current_setting('outlast_session.token', true), '') = '{token}')::int"
        );
        let first = First::of(terms, &self.client.client.schema, "NULL::text");
        let locking = first.params();
        let tables = by_table(basis);
        let (sql, checking) = check(&tables, &now);
        let before: Vec<Request<'_>> = vec![
            Box::pin(async {
                let begun = self.client.client.batch_execute(&begin).await;
                begun.inspect_err(|e| told.is_elsewhere.set(e.code() == Some(&SqlState::DIVISION_BY_ZERO)))
            }),
            Box::pin(async { self.client.query(&first.sql, &locking).await.map(drop) }),
            Box::pin(told.number_of(&self.client, &sql, &checking)),
        ];
        write::run(&self.client, before, statements, "COMMIT").await
    }
}

/// Answer of the database to a group.
#[derive(Default)]
struct Told {
    /// Number of the transaction, the version of what it writes.
    number: Noted<i64>,
    is_elsewhere: Noted<bool>,
    is_stale: Noted<bool>,
}

impl Told {
    /// Runs the statement that checks, and notes what it tells.
    async fn number_of(
        &self,
        client: &Named,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<(), tokio_postgres::Error> {
        let rows = client.query(sql, params).await.inspect_err(|e| {
            self.is_stale.set(e.code() == Some(&SqlState::DIVISION_BY_ZERO));
            self.is_elsewhere.set(e.code() == Some(&SqlState::INVALID_ARGUMENT_FOR_POWER_FUNCTION));
        })?;
        self.number.set(rows.first().and_then(|row| row.try_get(0).ok()).unwrap_or(ABSENT));
        Ok(())
    }
}

/// Values that a statement binds, in order.
struct Bound<'a>(Vec<Cell<'a>>);

impl Bound<'_> {
    /// Binds a number and returns its parameter.
    fn int(&mut self, value: i64) -> String {
        self.0.push(Cell::Int(Some(value)));
        format!("${}", self.0.len())
    }
}

/// Returns whether a group is committed by one statement.
fn is_small(basis: &Basis, statements: &[Statement<'_>]) -> bool {
    let is_checked =
        |(Place(table, ..), version): (&Place, &i64)| *version != ABSENT || *table == Table::Leases;
    let bytes = |cell: &Cell<'_>| match cell {
        Cell::Text(text) => text.as_ref().map_or(0, |text| text.len()),
        Cell::Name(name) => name.map_or(0, str::len),
        Cell::Blob(blob) => blob.map_or(0, <[u8]>::len),
        Cell::Int(_) | Cell::Bool(_) => 0,
    };
    let size = |statement: &Statement<'_>| match &statement.values {
        Values::One(cells) if statement.joins => Some(cells.iter().map(bytes).sum::<usize>()),
        _ => None,
    };
    let sizes: Option<Vec<usize>> = statements.iter().map(size).collect();
    basis.len() <= MOST_ROWS
        && basis.iter().all(is_checked)
        && sizes.is_some_and(|sizes| sizes.iter().sum::<usize>() <= MOST_BYTES)
}

/// Returns the statement that checks within a transaction, under its locks, that all rows have these versions, and that
/// the database's clock is about where `now` is: the transaction's number.
///
/// A row of another version fails the statement, by a division by zero, and with it the transaction.
fn check<'a>(tables: &'a BTreeMap<Table, Arrays>, now: &'a Micros) -> (String, Vec<Param<'a>>) {
    let mut params: Vec<Param<'a>> = params![now.0, TOLERANCE_US].to_vec();
    let mut conditions = format!("abs({NOW} - $1) <= $2");
    for (table, arrays) in tables {
        let n = params.len();
        let (a, b, v) = (n + 1, n + 2, n + 3);
        let version = table.version("a".into(), || "b".into());
        conditions += &format!(
            " AND (SELECT bool_and(coalesce(({version}), {ABSENT}) = v) FROM unnest(${a}, ${b}, ${v}) AS s (a, b, v))"
        );
        params.extend_from_slice(params![arrays.0, arrays.1, arrays.2]);
    }
    (format!("SELECT {NUMBER} / ({conditions})::int"), params)
}
