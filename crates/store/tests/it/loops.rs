//! Loops: what a turn counts.

use outlast_core::{
    engine::{
        run::{claim::Claim, end_attempt::Then},
        step::Turn,
    },
    envelope::unit::Unit,
    run::status::Status,
};

use crate::{agent::*, stage::Stage};

fn counted(a: &Agent, key: Option<&str>) -> i64 {
    match a.ask(a.turn(key)).unwrap() {
        Turn::Counted { loops } => loops,
        Turn::Refused(refusal) => panic!("refused: {}", refusal.message()),
    }
}

fn agent(s: &Stage) -> Agent {
    s.process("p").claim(s.run("r").limit(Unit::Loops, 3).create())
}

pub fn a_key_is_counted_once_over_an_iterations_attempts(s: &Stage) {
    let old = agent(s);
    assert_eq!([counted(&old, Some("a")), counted(&old, Some("b")), counted(&old, Some("a"))], [1, 2, 2]);
    old.process.dies();
    s.reopen();
    let new = s.process("next").claim(old.run);
    assert_eq!([counted(&new, Some("a")), counted(&new, Some("c"))], [2, 3]);
}

pub fn a_fresh_iteration_counts_its_keys_anew(s: &Stage) {
    let old = agent(s);
    counted(&old, Some("a"));
    old.ends(Then::Restart);
    let fresh = old.process.claim_by(Claim { fresh: true, ..old.process.claiming(old.run) });
    assert_eq!(counted(&fresh, Some("a")), 2);
}

pub fn a_turn_without_a_key_always_counts(s: &Stage) {
    let a = agent(s);
    assert_eq!([counted(&a, None), counted(&a, None)], [1, 2]);
}

pub fn the_turn_beyond_the_limit_halts_the_run(s: &Stage) {
    let a = agent(s);
    for key in ["a", "b", "c"] {
        counted(&a, Some(key));
    }
    let Turn::Refused(refusal) = a.ask(a.turn(Some("d"))).unwrap() else { panic!("counted") };
    assert_eq!((refusal.code.as_str(), refusal.limit), ("loop_budget_exceeded", 3));
    assert_eq!((s.status(a.run), s.spent(a.run, Unit::Loops)), (Status::Halted, 3));
    assert_eq!(counted(&a, Some("a")), 3, "a turn that was counted goes on");
}

pub fn calls_are_no_loops_once_a_run_has_its_own(s: &Stage) {
    let a = agent(s);
    a.buys("one", 1);
    assert_eq!(s.spent(a.run, Unit::Loops), 1);
    assert_eq!(counted(&a, Some("a")), 2);
    for i in 0..5 {
        a.buys(&format!("call {i}"), 1);
    }
    assert_eq!(s.spent(a.run, Unit::Loops), 2);
}

pub fn only_new_calls_are_implicit_loops(s: &Stage) {
    let a = agent(s);
    let seq = a.call("x");
    a.free(seq);
    a.request("x").joins();
    a.lost(seq);
    a.call("x");
    assert_eq!(s.spent(a.run, Unit::Loops), 1);
}

pub fn a_call_that_never_left_is_no_loop(s: &Stage) {
    let a = agent(s);
    let seq = a.call("x");
    a.void(seq);
    assert_eq!(s.spent(a.run, Unit::Loops), 0);
}

/// Bug: the marked retry of a call that never left was counted as no loop at all.
/// Consequence: behind a flaky connection a run passed its loop limit.
/// Cause: a retry adds no loop because the first try did, and a void try had given its loop back.
pub fn the_retry_of_a_call_that_never_left_is_a_loop(s: &Stage) {
    let a = agent(s);
    let void = a.call("x");
    a.void(void);
    let failed = a.request("x").retry(1).goes();
    assert_eq!(s.spent(a.run, Unit::Loops), 1);
    a.failed(failed);
    let void = a.request("x").retry(2).goes();
    a.void(void);
    a.request("x").retry(3).goes();
    assert_eq!(s.spent(a.run, Unit::Loops), 1, "one request is one loop, however often it was tried");
}
