//! Runs under a parent's budget.

use outlast_core::{
    envelope::unit::Unit,
    run::{InDoubt, Own, status::Status},
    words::id::RunNo,
};

use crate::{agent::*, stage::Stage};

/// A parent with a limit, and the driver of a child without one.
fn family(s: &Stage, unit: Unit, limit: i64) -> (RunNo, Agent) {
    let parent = s.run("parent").limit(unit, limit).create();
    let child = s.run("child").under(parent).create();
    (parent, s.process("p").claim(child))
}

pub fn a_childs_cost_tokens_and_calls_are_its_ancestors_too(s: &Stage) {
    let top = s.run("top").create();
    let middle = s.run("middle").under(top).create();
    let child = s.process("p").claim(s.run("child").under(middle).create());
    child.call("in flight");
    child.buys("paid", 70);
    for run in [top, middle, child.run] {
        let e = s.envelope(run);
        for (unit, reserved, spent) in
            [(Unit::CostNanoUsd, FULL, 70), (Unit::Tokens, FULL, 70), (Unit::Calls, 1, 1)]
        {
            assert_eq!((e.reserved[unit], e.spent[unit]), (reserved, spent), "{} of {run}", unit.name());
        }
    }
}

pub fn loops_restarts_and_time_are_the_childs_own(s: &Stage) {
    let (parent, child) = family(s, Unit::Loops, 0);
    child.buys("one", 1);
    child.pulse(500);
    child.process.claim_by(outlast_core::engine::run::claim::Claim {
        restart: true,
        ..child.process.claiming(child.run)
    });
    for unit in [Unit::Loops, Unit::ActiveMs, Unit::Restarts] {
        assert!(s.spent(child.run, unit) > 0, "{}", unit.name());
        assert_eq!(s.spent(parent, unit), 0, "{}", unit.name());
    }
}

pub fn a_refusal_by_a_parent_makes_the_child_wait(s: &Stage) {
    for unit in [Unit::CostNanoUsd, Unit::Tokens, Unit::Calls] {
        let parent = s.run(&format!("parent-{}", unit.name())).limit(unit, 0).create();
        let child = s.process("p").claim(s.run(&format!("child-{}", unit.name())).under(parent).create());
        assert_eq!(child.request("x").waits().unit, Some(unit));
        assert_eq!(s.status(child.run), Status::Waiting);
        assert_eq!(
            s.halt(child.run).as_deref(),
            Some(unit.refusal_code()),
            "what it waits for is remembered"
        );
        assert_eq!(s.status(parent), Status::Interrupted);
        let mut raise = crate::runs::raising(parent);
        raise.add[unit] = Some(FULL);
        s.ask(raise).unwrap();
        child.call("x");
        assert_eq!((s.status(child.run), s.halt(child.run)), (Status::Running, None));
    }
}

pub fn a_childs_own_limit_halts_it_whatever_its_parent_says(s: &Stage) {
    let parent = s.run("parent").cost(0).create();
    let child = s.process("p").claim(s.run("child").cost(0).under(parent).create());
    child.request("x").refused();
    assert_eq!(s.status(child.run), Status::Halted);
}

pub fn a_call_is_clamped_to_what_its_parent_has_left(s: &Stage) {
    let (parent, child) = family(s, Unit::CostNanoUsd, 500);
    assert_eq!(child.request("x").goes_clamped().1, 400);
    assert_eq!(s.money(parent), (500, 0, 0));
}

pub fn a_child_waits_for_its_siblings_calls_in_flight(s: &Stage) {
    let (parent, one) = family(s, Unit::CostNanoUsd, FULL);
    let two = s.process("q").claim(s.run("sibling").under(parent).create());
    let first = one.call("x");
    two.request("x").waits();
    assert_eq!(s.status(two.run), Status::Running, "room may come back by itself");
    one.done(first, 100);
    assert_eq!(two.request("x").goes_clamped().1, 800);
}

pub fn a_parents_own_calls_count_beside_its_childrens(s: &Stage) {
    let (parent, child) = family(s, Unit::CostNanoUsd, 2 * FULL);
    let driver = s.process("driver").claim(parent);
    driver.call("x");
    child.call("x");
    driver.request("y").waits();
    child.request("y").waits();
}

pub fn a_runs_own_sums_are_those_of_its_own_calls(s: &Stage) {
    let (parent, child) = family(s, Unit::CostNanoUsd, 9 * FULL);
    let driver = s.process("driver").claim(parent);
    driver.buys("own", 70);
    let failed = driver.call("failed");
    driver.failed(failed);
    let lost = driver.call("lost");
    driver.lost(lost);
    child.buys("child's", 30);
    let own = Own {
        cost_nano_usd: 70,
        tokens: 70,
        calls: 3,
        unpaid_calls: 1,
        doubt_nano_usd: FULL,
        ..Own::default()
    };
    assert_eq!(s.row(parent).own, own);
    assert_eq!((s.money(parent).2, s.spent(parent, Unit::Calls)), (100, 4));
    assert_eq!(s.row(child.run).own.cost_nano_usd, 30);
    driver.buys("lost", 40);
    assert_eq!(
        s.row(parent).own,
        Own { cost_nano_usd: 150, tokens: 150, calls: 4, doubt_nano_usd: 0, ..own }
    );
}

pub fn the_tightest_of_all_ancestors_decides(s: &Stage) {
    let top = s.run("top").cost(450).create();
    let middle = s.run("middle").cost(600).under(top).create();
    let child = s.process("p").claim(s.run("child").cost(800).under(middle).create());
    assert_eq!(child.request("x").goes_clamped().1, 350);
}

pub fn a_childs_lost_call_is_charged_in_its_parent(s: &Stage) {
    for policy in [InDoubt::AsRetry, InDoubt::Keep, InDoubt::Refund] {
        let parent = s.run(&format!("parent-{policy:?}")).create();
        let new = s.run(&format!("child-{policy:?}")).under(parent).in_doubt(policy);
        let child = s.process("p").claim(new.create());
        let lost = child.call("x");
        child.lost(lost);
        let held = if policy == InDoubt::Refund { 0 } else { FULL };
        assert_eq!(s.money(parent), (held, held, 0), "{policy:?}");
        assert_eq!(s.spent(parent, Unit::Calls), 1);
    }
}

pub fn a_childs_overrun_is_recorded_in_its_parent(s: &Stage) {
    let (parent, child) = family(s, Unit::CostNanoUsd, FULL);
    let seq = child.call("x");
    child.done(seq, FULL + 50);
    assert_eq!(s.money(parent), (0, 0, FULL + 50));
    child.request("y").waits();
}

pub fn an_observed_child_waits_when_its_parents_limit_is_spent(s: &Stage) {
    let parent = s.run("parent").cost(100).create();
    let child = s.process("p").claim(s.run("child").observe().under(parent).create());
    child.buys("x", 100);
    child.request("y").waits();
    assert_eq!(s.status(child.run), Status::Waiting);
}

pub fn a_replay_is_served_while_the_run_waits(s: &Stage) {
    let (parent, child) = family(s, Unit::Calls, 1);
    let seq = child.call("x");
    child.done(seq, 10);
    child.free(seq);
    child.request("y").waits();
    assert_eq!(s.status(child.run), Status::Waiting);
    assert_eq!(child.request("x").replays(), seq);
    assert_eq!(s.spent(parent, Unit::Calls), 1);
}

pub fn a_waiting_run_whose_driver_dies_is_interrupted(s: &Stage) {
    let (_, child) = family(s, Unit::Calls, 0);
    child.request("x").waits();
    child.process.dies();
    assert_eq!(s.status(child.run), Status::Interrupted);
}
