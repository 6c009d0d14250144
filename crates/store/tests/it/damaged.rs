//! Rows that a store must not lack: a missing one is damage, reported the same by every store, never worked around.

use std::sync::Arc;

use outlast_core::{
    engine::run::start::Start,
    envelope::Owner,
    memory::MemoryStore,
    store::{Ask, Durability, Error, Store},
    words::{
        clock::ManualClock,
        id::{EnvelopeNo, RunId, RunNo},
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

fn sqlite(damage: &str, what: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outlast.db");
    let store = open_at(place(&path), true).unwrap();
    let child = family(&*store);
    drop(store);
    rusqlite::Connection::open(&path).unwrap().execute_batch(damage).unwrap();
    refused(&*open_at(place(&path), false).unwrap(), child, what);
}

fn postgres(damage: &str, what: &str) {
    let database = Database::new();
    let store = open_at(&database.url(), true).unwrap();
    let child = family(&*store);
    database.execute(damage);
    refused(&*store, child, what);
}
