//! Commit of a group that was decided on remembered rows: its locks, the check of all versions, its writes and the
//! commit in one round trip.
//!
//! Each statement costs the server as much as a row or two. So the group of one step is one statement, which is a
//! transaction by itself. It sees the rows of the moment at which it began, before it waited for its locks. So it updates
//! or locks each row whose version it checks: that finds the newest version, whoever committed it in between. Leases it does
//! not check. One of a slot changes hands under a new fence, and with it changes the row of its run; one of an adopter does
//! when its holder is dead, whose own row tells that. Both rows are checked.
//!
//! A larger group, one with other absent rows, and a session that may be behind a pooler, take a transaction of several
//! statements.

use std::{cell::Cell as Noted, collections::BTreeMap};

use outlast_core::words::Micros;
use tokio_postgres::error::SqlState;

use super::{
    locks::Locks,
    memory::{ABSENT, Arrays, Basis, NUMBER, Place, Table, by_table},
    session::{First, Session, Terms},
    statement::{Ask as _, Named, Param, param, params},
    time::NOW,
    write::{self, Failed, Request, Statement, Values, Wording, Written},
};
use crate::rows::Cell;

/// Largest difference between the database's clock and the time that was decided at, in microseconds.
const TOLERANCE_US: i64 = 1_000_000;

/// Largest number of rows that one statement checks: its text grows with them, and each text is planned.
const MOST_ROWS: usize = 8;

/// Largest number of bytes of one statement's values. They reach the server in one piece with the end of the statement,
/// so that no server stops with one half of its message sent, in a transaction that nothing ends.
const MOST_BYTES: usize = 16 << 10;

/// Reason why a transaction of one round trip was not committed.
pub enum AtOnce {
    /// A row is not as it was remembered, or the clock is elsewhere. Nothing was written.
    Stale,
    /// The transaction was begun on a server's connection that holds another session's token. Nothing was written.
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
        let done = match terms.locks {
            Some(locks @ Locks::Parts(_)) if self.is_alone && is_small(basis.0, statements) => {
                self.run(self.as_one_statement((locks, terms.synced), basis, statements, token, &told))
            }
            _ => self.run(self.as_several(terms, basis, statements, token, &told)),
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
        (locks, is_synced): (&Locks, bool),
        (basis, now): (&Basis, Micros),
        statements: &[Statement<'_>],
        token: &str,
        told: &Told,
    ) -> Result<(), Failed> {
        let schema = &self.client.client.schema;
        let keys: Vec<(i32, i32)> = locks.keys(schema).collect();
        let mut params: Vec<Param<'_>> = vec![param(&token)];
        keys.iter().for_each(|(class, part)| params.extend([param(class), param(part)]));
        params.extend([param(&now.0), param(&TOLERANCE_US)]);
        // A row that is updated is checked as it is.
        let updated = |place: &Place| statements.iter().any(|statement| statement.row == Some(*place));
        let is_checked = |(place, _): &(&Place, &i64)| place.0 != Table::Leases && !updated(place);
        let mut checked = Vec::new();
        for (Place(table, a, b), version) in basis.iter().filter(is_checked) {
            params.push(param(a));
            params.extend(table.has_two_keys().then(|| param(b)));
            params.push(param(version));
            checked.push(*table);
        }
        let mut written = Vec::new();
        for Statement { sql, writes, values, row, .. } in statements {
            let (before, version) = (params.len(), row.and_then(|place| basis.get(&place)));
            params.extend(values.params());
            let values = params.len() - before;
            params.extend(version.map(param));
            written.push(Written {
                sql: sql.clone(),
                writes: *writes,
                values,
                is_checked: version.is_some(),
            });
        }
        let wording = Wording { is_synced, parts: keys.len(), checked, written };
        let sql = self.wordings.text(wording, schema);
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
