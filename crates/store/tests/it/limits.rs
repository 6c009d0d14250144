//! Admission: what each limit refuses, and in which order a call fits, inherits, waits, is clamped or refused.

use outlast_core::{
    engine::{
        run::{
            claim::{Claim, Claimed},
            end_attempt::Then,
            process::Renew,
        },
        step::Turn,
    },
    envelope::unit::Unit,
    run::status::Status,
    words::id::Micros,
};

use crate::{agent::*, bed::BEGINNING, stage::Stage};

fn agent(s: &Stage, unit: Unit, limit: i64) -> Agent {
    s.process("p").claim(s.run("r").limit(unit, limit).create())
}

#[track_caller]
fn halts(s: &Stage, a: &Agent, code: &str) {
    assert_eq!((s.status(a.run), s.halt(a.run).as_deref()), (Status::Halted, Some(code)));
}

pub fn the_last_nano_dollar_and_the_last_token_can_be_used(s: &Stage) {
    for unit in [Unit::CostNanoUsd, Unit::Tokens] {
        let a = s.process("p").claim(s.run(unit.name()).limit(unit, FULL).create());
        let seq = a.call("x");
        a.done(seq, FULL);
        let refusal = a.request("y").bound(bound(1, 0)).refused();
        assert_eq!((refusal.unit, refusal.needs, refusal.free, refusal.limit), (Some(unit), 1, 0, FULL));
        halts(s, &a, unit.refusal_code());
    }
}

pub fn a_call_whose_floor_does_not_fit_is_refused_and_halts_the_run(s: &Stage) {
    for unit in [Unit::CostNanoUsd, Unit::Tokens] {
        let a = s.process("p").claim(s.run(unit.name()).limit(unit, FLOOR - 1).create());
        let refusal = a.request("x").refused();
        assert_eq!((refusal.unit, refusal.needs, refusal.free), (Some(unit), FLOOR, FLOOR - 1));
        halts(s, &a, unit.refusal_code());
        assert_eq!(s.journal(a.run), []);
    }
}

pub fn a_call_is_clamped_to_what_fits(s: &Stage) {
    for (limit, cap) in [(FLOOR, 256), (500, 400), (FULL - 1, 899)] {
        for unit in [Unit::CostNanoUsd, Unit::Tokens] {
            let a =
                s.process("p").claim(s.run(&format!("{}{limit}", unit.name())).limit(unit, limit).create());
            let (seq, had) = a.request("x").goes_clamped();
            let entry = s.entry(a.run, seq);
            assert_eq!((had, entry.held[unit]), (cap, limit));
            assert_eq!(entry.call.unwrap().clamped_to, Some(cap));
        }
    }
}

/// Bug: calls that named no output cap went one at a time near the end of a budget, six times slower than before.
/// Cause: each held the model's largest answer, and the others waited for it.
pub fn calls_without_a_cap_share_what_is_left_by_the_usual_one(s: &Stage) {
    for unit in [Unit::CostNanoUsd, Unit::Tokens] {
        let run = s.run(unit.name()).limit(unit, FULL + 2 * 450).create();
        let a = s.process("p").claim(run);
        a.request("fits whole").usually(350).goes();
        for key in ["second", "third"] {
            let (seq, cap) = a.request(key).usually(350).goes_clamped();
            assert_eq!((cap, s.entry(a.run, seq).held[unit]), (350, 450));
        }
        a.request("fourth").usually(350).waits();
    }
}

pub fn a_usual_cap_is_neither_below_the_floor_nor_above_the_calls_own(s: &Stage) {
    let a = agent(s, Unit::CostNanoUsd, FULL - 1);
    let (seq, cap) = a.request("x").usually(10).goes_clamped();
    assert_eq!(cap, 256);
    a.done(seq, FLOOR);
    let b = s.process("p").claim(s.run("b").cost(FULL - 1).create());
    assert_eq!(b.request("x").usually(2_000).goes_clamped().1, 899, "what fits is less");
}

pub fn a_lost_calls_retry_and_a_call_of_a_job_get_no_usual_cap(s: &Stage) {
    let a = agent(s, Unit::CostNanoUsd, FULL + 500);
    let lost = a.call("x");
    a.lost(lost);
    assert_eq!(a.request("x").retry(1).usually(300).goes(), outlast_core::words::id::Seq(2), "it inherits");
    let job = s.process("p").works(s.run("job").job().cost(FULL + 500).create());
    let (first, second) = (job.item("a"), job.item("b"));
    job.in_item("a", &first).request("x").goes();
    job.in_item("b", &second).request("y").usually(300).waits();
}

pub fn a_call_of_a_job_is_never_clamped(s: &Stage) {
    for (limit, fits) in [(FULL - 1, false), (FULL, true)] {
        let a = s.process("p").works(s.run(&format!("{limit}")).job().cost(limit).create());
        let item = a.item("a");
        let inside = a.in_item("a", &item);
        let request = inside.request("x");
        if fits {
            request.goes();
        } else {
            assert_eq!(request.refused().needs, FULL);
        }
    }
}

pub fn a_small_request_is_never_clamped_below_its_own_cap(s: &Stage) {
    let a = agent(s, Unit::CostNanoUsd, 149);
    assert_eq!(a.request("x").bound(bound(100, 50)).refused().needs, 150);
}

pub fn the_tightest_limit_decides_the_clamp(s: &Stage) {
    let run = s.run("r").cost(700).limit(Unit::Tokens, 600).create();
    assert_eq!(s.process("p").claim(run).request("x").goes_clamped().1, 500);
}

pub fn the_call_limit_counts_tries_and_not_what_never_left(s: &Stage) {
    let a = agent(s, Unit::Calls, 2);
    let void = a.call("x");
    a.void(void);
    let lost = a.call("x");
    a.lost(lost);
    let retry = a.request("x").retry(1).goes();
    a.done(retry, 1);
    assert_eq!(a.request("y").refused().code, "call_budget_exceeded");
    halts(s, &a, "call_budget_exceeded");
}

pub fn the_loop_limit_counts_new_calls_of_a_run_without_loops(s: &Stage) {
    let a = agent(s, Unit::Loops, 2);
    a.buys("one", 1);
    a.buys("two", 1);
    assert_eq!(a.request("three").refused().code, "loop_budget_exceeded");
    halts(s, &a, "loop_budget_exceeded");
}

pub fn the_restart_limit_refuses_the_next_restart(s: &Stage) {
    let process = s.process("p");
    let run = s.run("r").limit(Unit::Restarts, 1).create();
    let restart = Claim { restart: true, ..process.claiming(run) };
    process.claim(run).ends(Then::Restart);
    process.claim_by(restart.clone()).ends(Then::Restart);
    assert_eq!(s.spent(run, Unit::Restarts), 1);
    let Claimed::Refused(refusal) = s.ask(restart.clone()).unwrap() else { panic!("claimed") };
    assert_eq!((refusal.code.as_str(), refusal.limit), ("restart_budget_exceeded", 1));
    assert_eq!(s.status(run), Status::Halted);
    let mut raise = crate::runs::raising(run);
    raise.add[Unit::Restarts] = Some(1);
    assert_eq!(s.ask(raise).unwrap(), Status::Interrupted);
    process.claim_by(restart);
}

pub fn a_call_waits_for_what_calls_in_flight_may_give_back(s: &Stage) {
    let a = agent(s, Unit::CostNanoUsd, FULL);
    let first = a.call("one");
    let refusal = a.request("two").waits();
    assert_eq!((refusal.unit, refusal.needs, refusal.free), (Some(Unit::CostNanoUsd), FULL, 0));
    assert_eq!((s.status(a.run), s.journal(a.run).len()), (Status::Running, 1));
    a.done(first, 100);
    assert_eq!(a.request("two").goes_clamped().1, 800);
}

pub fn a_call_that_would_not_fit_after_them_does_not_wait(s: &Stage) {
    let a = agent(s, Unit::CostNanoUsd, FULL);
    a.buys("paid", 500);
    a.request("in flight").bound(bound(10, 10)).goes();
    assert_eq!(a.request("large").bound(bound(600, 10)).refused().code, "dollar_budget_exceeded");
}

pub fn nobody_waits_for_what_is_in_doubt(s: &Stage) {
    let a = agent(s, Unit::CostNanoUsd, FULL);
    let lost = a.call("one");
    a.lost(lost);
    assert_eq!(a.request("two").refused().doubt, FULL);
}

pub fn a_call_is_clamped_beside_what_is_in_doubt(s: &Stage) {
    let a = agent(s, Unit::CostNanoUsd, FULL + 500);
    let lost = a.call("one");
    a.lost(lost);
    assert_eq!(a.request("two").goes_clamped().1, 400);
}

pub fn a_call_waits_rather_than_be_clamped_beside_a_live_one(s: &Stage) {
    let a = agent(s, Unit::CostNanoUsd, FULL + 500);
    let first = a.call("one");
    a.request("two").waits();
    a.void(first);
    a.call("two");
}

pub fn a_call_waits_in_the_call_limit_for_one_that_may_never_leave(s: &Stage) {
    let a = agent(s, Unit::Calls, 1);
    let first = a.call("one");
    assert_eq!(a.request("two").waits().code, "call_budget_exceeded");
    a.void(first);
    a.call("two");
}

pub fn a_new_call_queues_behind_one_that_waits(s: &Stage) {
    let a = agent(s, Unit::CostNanoUsd, 10 * FULL);
    let seq = a.call("done");
    a.done(seq, 1);
    a.free(seq);
    assert_eq!(a.request("small").bound(bound(1, 1)).behind().waits().code, "queued");
    assert_eq!(a.request("done").behind().replays(), seq);
    assert_eq!(s.journal(a.run).len(), 1);
}

/// Bug: a call behind a waiting one was refused when it could not fit.
/// Consequence: the run halted, and the one before it, which would have fitted in a moment, was refused too.
/// Cause: the queue was asked only of calls that could go.
pub fn a_call_behind_one_that_waits_does_not_halt_the_run(s: &Stage) {
    let a = agent(s, Unit::CostNanoUsd, FULL);
    let first = a.call("one");
    a.request("two").waits();
    assert_eq!(a.request("huge").bound(bound(5000, 10)).behind().waits().code, "queued");
    assert_eq!(s.status(a.run), Status::Running);
    a.void(first);
    a.call("two");
}

pub fn a_retry_inherits_rather_than_wait(s: &Stage) {
    let a = agent(s, Unit::CostNanoUsd, 2 * FULL);
    let lost = a.call("x");
    a.lost(lost);
    a.call("in flight");
    a.request("other").waits();
    a.call("x");
    assert_eq!(s.money(a.run), (2 * FULL, 0, 0));
}

/// Bug: the reference store called what `observe` accepts an inconsistency.
/// Consequence: no simulation could drive an observed run.
/// Cause: its accounts knew one reason to be over a limit, the overrun.
pub fn observed_calls_are_admitted_until_the_limit_is_spent(s: &Stage) {
    let a = s.process("p").claim(s.run("r").cost(100).observe().create());
    let calls = [a.call("one"), a.call("two")];
    for seq in calls {
        a.done(seq, 60);
    }
    assert_eq!(a.request("three").refused().code, "dollar_budget_exceeded");
    assert_eq!(s.money(a.run), (0, 0, 120));
    halts(s, &a, "dollar_budget_exceeded");
}

pub fn a_limit_of_zero_admits_nothing(s: &Stage) {
    for unit in [Unit::CostNanoUsd, Unit::Tokens, Unit::Calls, Unit::Loops] {
        let a = s.process("p").claim(s.run(unit.name()).limit(unit, 0).create());
        assert_eq!(a.request("x").refused().unit, Some(unit));
    }
}

pub fn after_the_wall_time_nothing_is_admitted_and_downtime_counts(s: &Stage) {
    let process = s.process("p");
    let run = s.run("r").limit(Unit::WallMs, 1000).create();
    s.advance_ms(5000);
    let a = process.claim(run);
    a.ends(Then::Restart);
    s.advance_ms(999);
    let b = process.claim(run);
    let paid = b.call("in time");
    s.advance_ms(1);
    assert_eq!(b.request("late").refused().code, "time_budget_exceeded");
    halts(s, &b, "time_budget_exceeded");
    b.done(paid, 10);
    assert_eq!(s.spent(run, Unit::CostNanoUsd), 10);
}

/// Bug: a clock that jumped a day ahead, and was set right, ended every run with a wall time.
/// Consequence: the night's runs were halted, and `resume` refused them, with hours of their time left.
/// Cause: a halt by the wall time was never looked at again.
pub fn a_clock_that_jumped_ahead_ends_no_run_for_good(s: &Stage) {
    let process = s.process("p");
    let run = |id: &str| s.run(id).limit(Unit::WallMs, 1000).create();
    let [renews, asks, begins] = ["renews", "asks", "begins"].map(|id| process.claim(run(id)));
    begins.ends(Then::Restart);
    s.advance_ms(86_400_000);
    assert_eq!(renews.pulse(0).status, Status::Halted);
    asks.request("late").refused();
    let Claimed::Refused(_) = s.ask(process.claiming(begins.run)).unwrap() else { panic!("claimed") };
    s.set_clock(BEGINNING);
    assert_eq!(renews.pulse(0).status, Status::Running);
    asks.call("in time");
    process.claim(begins.run).call("in time");
    // The run's time still ends.
    s.advance_ms(1000);
    assert_eq!(renews.pulse(0).status, Status::Halted);
    asks.request("late").refused();
}

pub fn after_the_wall_time_no_attempt_and_no_loop_begins(s: &Stage) {
    let process = s.process("p");
    let a = process.claim(s.run("loops").limit(Unit::WallMs, 1000).create());
    let b = process.claim(s.run("attempts").limit(Unit::WallMs, 1000).create());
    b.ends(Then::Restart);
    s.advance_ms(1000);
    let Turn::Refused(refusal) = a.ask(a.turn(None)).unwrap() else { panic!("counted") };
    assert_eq!(refusal.code, "time_budget_exceeded");
    let Claimed::Refused(refusal) = s.ask(process.claiming(b.run)).unwrap() else { panic!("claimed") };
    assert_eq!(refusal.code, "time_budget_exceeded");
    assert_eq!(s.status(b.run), Status::Halted);
}

pub fn a_heartbeat_halts_a_run_whose_wall_time_is_over(s: &Stage) {
    let a = agent(s, Unit::WallMs, 1000);
    s.advance_ms(999);
    assert_eq!(a.pulse(0).status, Status::Running);
    s.advance_ms(1);
    let pulse = a.pulse(0);
    assert_eq!(
        (pulse.status, pulse.halt.map(|h| h.code)),
        (Status::Halted, Some("time_budget_exceeded".into()))
    );
}

/// Bug: a clock set back a day gave a run a day more.
/// Consequence: an agent went on unattended, long after `--wall`.
/// Cause: the time that has passed was taken from the two ends of it alone.
pub fn a_clock_set_back_gives_no_wall_time_again(s: &Stage) {
    let a = agent(s, Unit::WallMs, 1000);
    s.advance_ms(400);
    assert_eq!(a.pulse(400).status, Status::Running);
    let now = s.store().now().unwrap();
    s.set_clock(Micros(now.0 - 86_400_000_000));
    assert_eq!(a.pulse(0).status, Status::Running);
    s.advance_ms(700);
    assert_eq!(a.pulse(700).status, Status::Halted);
}

/// Bug: a clock that went back a day, and came right again, halted a run for good.
/// Consequence: a night's run ended with hours of its wall time left.
/// Cause: the run's times moved back with the clock, and not ahead again: a step ahead was taken for time that passed.
pub fn a_clock_that_is_set_while_its_process_lives_takes_no_wall_time(s: &Stage) {
    const DAY_US: i64 = 86_400_000_000;
    let a = agent(s, Unit::WallMs, 1000);
    let pulse = |elapsed_ms: u64| {
        let renewal = a.renewal(elapsed_ms as i64);
        a.ask(Renew { since_own_ms: Some((elapsed_ms, elapsed_ms)), ..renewal }).unwrap().remove(0).status
    };
    for by_us in [-DAY_US, DAY_US, DAY_US, -DAY_US] {
        s.advance_ms(200);
        s.set_clock(Micros(s.store().now().unwrap().0 + by_us));
        // A call that asks before the renewal is refused by the clock that is ahead; the renewal takes that back.
        let _ = a.request("x").ask();
        assert_eq!(pulse(200), Status::Running, "{by_us}");
    }
    s.advance_ms(200);
    assert_eq!(pulse(200), Status::Halted, "its time is over");
}

/// Bug: an outage of the store took its length from a run's wall time twice. Cause: the heartbeat that was written after the
/// outage counted from its first submission, so that the store's clock looked as if it was set back since.
pub fn an_outage_of_the_store_is_no_step_of_its_clock(s: &Stage) {
    let a = agent(s, Unit::WallMs, 1_000_000);
    let pulse = |least, most| {
        let renewal = a.renewal(0);
        a.ask(Renew { since_own_ms: Some((least, most)), ..renewal }).unwrap().remove(0).status
    };
    s.advance_ms(605_000);
    // Submitted when the outage began, decided at its end.
    assert_eq!(pulse(604_000, 605_000), Status::Running);
    s.advance_ms(1000);
    assert_eq!(pulse(1000, 606_000), Status::Running);
    s.advance_ms(393_000);
    assert_eq!(pulse(393_000, 393_000), Status::Running, "999 s of 1,000 have passed");
    s.advance_ms(2000);
    assert_eq!(pulse(2000, 2000), Status::Halted);
}

pub fn raising_the_wall_time_lets_the_run_go_on(s: &Stage) {
    let a = agent(s, Unit::WallMs, 1000);
    s.advance_ms(1500);
    a.request("late").refused();
    let mut raise = crate::runs::raising(a.run);
    raise.add[Unit::WallMs] = Some(500);
    assert_eq!(s.ask(raise.clone()).unwrap(), Status::Halted);
    assert_eq!(s.ask(raise).unwrap(), Status::Running);
    a.call("in time again");
}

pub fn renewals_post_active_time_and_halt_at_its_limit(s: &Stage) {
    let a = agent(s, Unit::ActiveMs, 1000);
    assert_eq!(a.pulse(600).status, Status::Running);
    assert_eq!(s.spent(a.run, Unit::ActiveMs), 600);
    let pulse = a.pulse(400);
    assert_eq!((pulse.status, s.halt(a.run).as_deref()), (Status::Halted, Some("time_budget_exceeded")));
    assert_eq!(s.store().attempts(a.run).unwrap()[0].active_ms, 1000);
    assert_eq!(a.request("x").refused().code, "time_budget_exceeded");
}

pub fn active_time_not_yet_posted_counts_at_admission(s: &Stage) {
    let a = agent(s, Unit::ActiveMs, 1000);
    a.pulse(600);
    let mut request = a.request("x");
    request.admit.active_ms = 400;
    assert_eq!(request.refused().code, "time_budget_exceeded");
    assert_eq!(s.spent(a.run, Unit::ActiveMs), 600);
}

pub fn an_attempts_last_active_time_is_posted_at_its_end(s: &Stage) {
    let a = agent(s, Unit::ActiveMs, 1000);
    let mut end = a.ending(Then::Restart);
    end.active_ms = 700;
    a.ask(end.clone()).unwrap();
    a.ask(end).unwrap();
    assert_eq!(s.spent(a.run, Unit::ActiveMs), 700);
    a.pulse(100);
    assert_eq!(s.spent(a.run, Unit::ActiveMs), 700, "an ended attempt is not active");
}

pub fn header_attempts_are_active_while_a_call_is_in_flight(s: &Stage) {
    let run = s.run("r").create();
    let a = s.process("outlast serve").enter(run, Some("a"));
    let seq = a.call("x");
    let mut settle = a.settle(seq, outlast_core::engine::call::settle::Close::Done(bill(5)));
    settle.active_ms = 250;
    a.ask(settle).unwrap();
    assert_eq!(s.spent(run, Unit::ActiveMs), 250);
    assert_eq!(s.store().attempts(run).unwrap()[0].active_ms, 250);
}
