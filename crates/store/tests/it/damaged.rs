//! Rows that a store must not lack: a missing one is damage, reported the same by every store, never worked around.

use std::{path::PathBuf, sync::Arc};

use outlast_core::{
    engine::run::start::Start,
    envelope::{Owner, unit::MOST_PER_CALL},
    journal::{Kind, State},
    memory::MemoryStore,
    store::{Ask, Durability, Error, Store},
    words::{
        clock::ManualClock,
        id::{EnvelopeNo, Micros, RunId, RunNo},
    },
};

use crate::{
    bed::BEGINNING,
    beds::{open_at, place},
    private_postgres::Database,
};

/// Starts a parent and its child, whose envelopes are 1 and 2.
fn family(store: &dyn Store) -> RunNo {
    let parent = store.run_verb(Start::new(RunId::new("parent").unwrap()), Durability::Synced).unwrap();
    let child = Start { parent: Some(parent.run), ..Start::new(RunId::new("child").unwrap()) };
    store.run_verb(child, Durability::Synced).unwrap().run
}

/// A grandchild would be charged to what is gone.
fn refused(store: &dyn Store, child: RunNo, what: &str) {
    let grandchild = Start { parent: Some(child), ..Start::new(RunId::new("grandchild").unwrap()) };
    let error = store.run_verb(grandchild, Durability::Synced).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { what: had } if had.contains(what)), "{error}");
    assert_eq!(store.run_no(&RunId::new("grandchild").unwrap()).unwrap(), None);
}

// Bug: a run whose ancestor's envelope is gone was charged to fewer. Consequence: a story could pass in memory on
// rows that both databases refuse. Cause: each store had a loader of its own, and the memory store's left out what
// it did not find.
#[test]
fn a_missing_envelope_is_told_by_the_memory_store() {
    let store = MemoryStore::new(Arc::new(ManualClock::new(BEGINNING)));
    let child = family(&store);
    let gone = store.tamper(|tables| tables.envelopes.remove(&EnvelopeNo(1)));
    assert_eq!(gone.unwrap().owner, Owner::Run(RunNo(1)));
    refused(&store, child, "envelope 1 is missing");
}

#[test]
fn a_missing_envelope_is_told_by_sqlite() {
    sqlite("DELETE FROM envelopes WHERE no = 1", "envelope 1 is missing");
}

#[test]
fn a_missing_envelope_is_told_by_postgres() {
    postgres("DELETE FROM outlast.envelopes WHERE no = 1", "envelope 1 is missing");
}

// Bug: a run's row without any envelope ended the writer thread. Consequence: all that was queued was answered as
// closed, and nothing said that the file is damaged. Cause: only one of two readers of the row looked.
#[test]
fn a_run_without_envelopes_is_told_by_sqlite() {
    sqlite("UPDATE runs SET charges = '[]' WHERE no = 2", "charges");
}

#[test]
fn a_run_without_envelopes_is_told_by_postgres() {
    postgres("UPDATE outlast.runs SET charges = '[]' WHERE no = 2", "charges");
}

/// Two calls of the first run, as an older version charged them for a provider's report beyond reason.
fn charged_beyond_reason(table: &str) -> String {
    let call = |seq| {
        format!(
            "INSERT INTO {table} (run_no, seq, kind, state, attempt, scope, opened_at, held_cost, held_tokens, \
             held_calls, spent_cost, spent_tokens, spent_calls, delivered_count, replayable, model, upstream) \
             VALUES (1, {seq}, {}, {}, 1, 'i0', 0, 0, 0, 0, {}, {}, 1, 0, false, 'm', 'u');",
            Kind::Call.code(),
            State::Done.code(),
            i64::MAX,
            i64::MAX
        )
    };
    call(1) + &call(2)
}

/// Less than a day, whose calls are summed one by one.
const HOUR: Micros = Micros(3_600_000_000);

/// The ledger has each of the two at the most that a call is charged now.
fn still_adds_up(store: &dyn Store) {
    let lines = store.ledger(Micros(0), HOUR).unwrap();
    let sums: Vec<_> = lines.iter().map(|l| (l.calls, l.spent_nano_usd, l.tokens)).collect();
    assert_eq!(sums, [(2, 2 * MOST_PER_CALL, 2 * MOST_PER_CALL)]);
    // Of whole days no call is read, but what commits have summed: of these none.
    assert_eq!(store.ledger(Micros(0), Micros(i64::MAX)).unwrap(), []);
}

// Bug: a store with two calls that were charged 2^63 - 1 could not be asked what was spent. Consequence: `spend` failed
// for every run. Cause: a sum of 64 bits overflowed.
#[test]
fn a_sqlite_ledger_with_charges_beyond_reason_still_adds_up() {
    let (_directory, path, _) = sqlite_with(&charged_beyond_reason("entries"));
    still_adds_up(&*open_at(place(&path), false).unwrap());
}

// Bug: `outlast spend` of 10^6 calls held a row for each. Cause: SQLite sorts what it groups, in memory. It is summed by
// spans of time now: here of moments with one call each, of one with all, and with a span's end among calls of one moment.
#[test]
fn a_sqlite_ledger_adds_up_over_spans_of_time() {
    const CALLS: i64 = 2 * 65_536 + 1;
    for moment in ["i", "0", "i / 40000"] {
        let calls = format!(
            "INSERT INTO entries (run_no, seq, kind, state, attempt, scope, opened_at, held_cost, held_tokens, \
             held_calls, spent_cost, spent_tokens, spent_calls, delivered_count, replayable, model, upstream) \
             WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {CALLS}) \
             SELECT 1, i, {}, {}, 1, 'i0', {moment}, 0, 0, 0, 2, 3, 1, 0, false, 'm', 'u' FROM n",
            Kind::Call.code(),
            State::Done.code(),
        );
        let (_directory, path, _) = sqlite_with(&calls);
        let lines = open_at(place(&path), false).unwrap().ledger(Micros(0), HOUR).unwrap();
        let sums: Vec<_> = lines.iter().map(|l| (l.calls, l.spent_nano_usd, l.tokens)).collect();
        assert_eq!(sums, [(CALLS, 2 * CALLS, 3 * CALLS)], "{moment}");
    }
}

#[test]
fn a_postgres_ledger_with_charges_beyond_reason_still_adds_up() {
    let (_database, store, _) = postgres_with(&charged_beyond_reason("outlast.entries"));
    still_adds_up(&*store);
}

fn sqlite(damage: &str, what: &str) {
    let (_directory, path, child) = sqlite_with(damage);
    refused(&*open_at(place(&path), false).unwrap(), child, what);
}

fn postgres(damage: &str, what: &str) {
    let (_database, store, child) = postgres_with(damage);
    refused(&*store, child, what);
}

/// A file with a family in which `change` was executed.
fn sqlite_with(change: &str) -> (tempfile::TempDir, PathBuf, RunNo) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outlast.db");
    let store = open_at(place(&path), true).unwrap();
    let child = family(&*store);
    drop(store);
    rusqlite::Connection::open(&path).unwrap().execute_batch(change).unwrap();
    (directory, path, child)
}

/// A database with a family in which `change` was executed.
fn postgres_with(change: &str) -> (Database, Arc<dyn Store>, RunNo) {
    let database = Database::new();
    let store = open_at(&database.url(), true).unwrap();
    let child = family(&*store);
    database.execute(change);
    (database, store, child)
}
