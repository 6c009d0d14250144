//! Decisions that panic: a defect of one operation, which must not become a defect of the store.

use outlast_core::{
    engine::op::Op,
    store::{Durability, Store, Ticket},
};

use crate::{
    beds::{Opened, open_at, place},
    stage::Stage,
};

/// Bug: a decision that panicked left the writer's queue busy, or ended the writer thread.
/// Consequence: every later operation of the process waited for ever, of whatever run; or all were answered as closed.
/// Cause: the queue was freed by the line after the turn, which a panic skips.
fn check(submit: impl Fn(&dyn Store, Op) -> Ticket) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outlast.db");
    let s = Stage::on(Opened(open_at(place(&path), true).unwrap()));
    let process = s.process("p");
    let [broken, whole] = ["broken", "whole"].map(|id| process.claim(s.run(id).create()));
    let damage = format!("UPDATE runs SET next_seq = {} WHERE no = {}", i64::MAX, broken.run.0);
    rusqlite::Connection::open(&path).unwrap().execute_batch(&damage).unwrap();
    for _ in 0..2 {
        let failed = submit(&*s.store(), broken.step("fetch").into()).wait().unwrap_err();
        assert_eq!(failed.code(), "internal", "{failed}");
    }
    whole.ask(whole.step("fetch")).unwrap();
    assert!(submit(&*s.store(), whole.step("next").into()).wait().is_ok());
}

#[test]
fn a_decision_that_panics_on_its_callers_thread_fails_alone() {
    check(|store, op| store.submit_here(op, Durability::Committed));
}

#[test]
fn a_decision_that_panics_on_the_writer_thread_fails_alone() {
    check(|store, op| store.submit(op, Durability::Committed));
}

#[test]
fn a_decision_that_panics_ahead_of_its_commit_fails_alone() {
    check(|store, op| {
        store.ahead(op).map_or_else(|op| store.submit(op, Durability::Committed), Ticket::ready)
    });
}
