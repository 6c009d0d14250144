//! Calls whose outcome is unknown: what they hold, what their retries take over, what is posted in the end.

use outlast_core::{
    engine::call::settle::{Bill, Close},
    envelope::unit::Unit,
    journal::{Opening, State},
    run::InDoubt,
    words::id::{Micros, Seq},
};

use crate::{
    agent::*,
    stage::{FOREVER, NewRun, Stage},
};

fn agent(s: &Stage, run: NewRun) -> Agent {
    s.process("p").claim(run.create())
}

/// A call that left and was lost.
#[track_caller]
fn loses(a: &Agent, text: &str) -> Seq {
    let seq = a.call(text);
    a.lost(seq);
    seq
}

/// (state, held, spent) of an entry in nano-USD.
fn entry(s: &Stage, a: &Agent, seq: Seq) -> (State, i64, i64) {
    let e = s.entry(a.run, seq);
    (e.state, e.held.cost(), e.spent.cost())
}

pub fn a_lost_call_stays_charged_at_its_reservation(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL + FLOOR - 1));
    let lost = loses(&a, "x");
    s.reopen();
    assert_eq!(entry(s, &a, lost), (State::Unknown, FULL, 0));
    assert_eq!(s.money(a.run), (FULL, FULL, 0));
    assert_eq!(s.spent(a.run, Unit::Calls), 1);
    let refusal = a.request("y").refused();
    assert_eq!((refusal.code.as_str(), refusal.doubt), ("dollar_budget_exceeded", FULL));
}

pub fn a_retry_that_fits_holds_its_own(s: &Stage) {
    let a = agent(s, s.run("r").cost(2 * FULL));
    let lost = loses(&a, "x");
    let retry = a.call("x");
    assert_eq!(s.entry(a.run, retry).call.unwrap().retry_of, Some(lost));
    assert_eq!(s.money(a.run), (2 * FULL, FULL, 0));
    a.done(retry, 300);
    assert_eq!(entry(s, &a, lost), (State::Failed, 0, 300));
    assert_eq!(s.money(a.run), (0, 0, 600));
}

pub fn a_retry_that_does_not_fit_inherits_and_posts_both_tries(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL));
    let lost = loses(&a, "x");
    let retry = a.call("x");
    assert_eq!(entry(s, &a, lost), (State::Unknown, 0, 0));
    assert_eq!(s.money(a.run), (FULL, 0, 0));
    a.done(retry, 300);
    assert_eq!(entry(s, &a, lost), (State::Failed, 0, 300));
    assert_eq!((s.money(a.run), s.spent(a.run, Unit::Calls)), ((0, 0, 600), 2));
}

pub fn a_lost_try_is_posted_at_the_headroom_when_its_retry_cost_more(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL));
    let lost = loses(&a, "x");
    let retry = a.call("x");
    a.done(retry, 700);
    assert_eq!(entry(s, &a, lost), (State::Failed, 0, 300));
    let correction = s.entry(a.run, lost).call.unwrap().correction.unwrap();
    assert_eq!((correction.posted.cost(), correction.unbacked_nano_usd), (300, 400));
    assert_eq!(s.money(a.run), (0, 0, FULL));
}

pub fn a_retry_that_costs_nothing_gives_its_inheritance_back(s: &Stage) {
    for (id, close) in [("void", Close::Void), ("failed", Close::Failed(Bill::Nothing))] {
        let a = agent(s, s.run(id).cost(FULL));
        let lost = loses(&a, "x");
        let retry = a.call("x");
        a.ask(a.settle(retry, close)).unwrap();
        a.free(retry);
        assert_eq!(entry(s, &a, lost), (State::Unknown, FULL, 0));
        assert_eq!(s.money(a.run), (FULL, FULL, 0));
        let next = a.request("x").retry(1).goes();
        assert_eq!(s.entry(a.run, next).call.unwrap().retry_of, Some(lost));
        assert_eq!(s.money(a.run), (FULL, 0, 0));
    }
}

pub fn a_retry_that_failed_at_a_cost_settles_the_lost_try(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL));
    let lost = loses(&a, "x");
    let retry = a.call("x");
    a.ask(a.settle(retry, Close::Failed(bill(200)))).unwrap();
    assert_eq!(entry(s, &a, lost), (State::Failed, 0, 200));
}

pub fn a_chain_inherits_twice_and_is_then_refused(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL));
    let first = loses(&a, "x");
    let second = loses(&a, "x");
    let third = loses(&a, "x");
    assert_eq!(s.money(a.run), (FULL, FULL, 0));
    assert_eq!(s.spent(a.run, Unit::Calls), 3);
    assert_eq!(a.request("x").refused().code, "dollar_budget_exceeded");
    let mut raise = crate::runs::raising(a.run);
    raise.add[Unit::CostNanoUsd] = Some(FULL);
    s.ask(raise).unwrap();
    let fourth = a.call("x");
    a.done(fourth, 400);
    let tries = [first, second, third, fourth].map(|seq| entry(s, &a, seq));
    assert_eq!(tries.map(|t| t.2), [400, 400, 400, 400]);
    assert_eq!(tries.map(|t| t.0), [State::Failed, State::Failed, State::Failed, State::Done]);
    assert_eq!(s.money(a.run), (0, 0, 1600));
}

/// Bug: a lost try whose hold its retry took over was in doubt at 0.00.
/// Consequence: three tries that the provider may bill were told as one.
/// Cause: only what an envelope holds was counted as doubt.
pub fn a_chain_of_lost_tries_is_told_in_full(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL));
    let tries = [loses(&a, "x"), loses(&a, "x"), loses(&a, "x")];
    s.reopen();
    let unbacked = || tries.map(|seq| s.entry(a.run, seq).unbacked().cost());
    assert_eq!(unbacked(), [FULL, FULL, 0]);
    let told = || {
        let lines = s.store().ledger(Micros(0), FOREVER).unwrap();
        assert_eq!(lines.len(), 1);
        (lines[0].spent_nano_usd, lines[0].doubt_nano_usd, lines[0].unbacked_nano_usd)
    };
    assert_eq!(told(), (0, FULL, 2 * FULL));
    let mut raise = crate::runs::raising(a.run);
    raise.add[Unit::CostNanoUsd] = Some(FULL);
    s.ask(raise).unwrap();
    let fourth = a.call("x");
    a.done(fourth, 900);
    assert_eq!((unbacked(), told()), ([900, 700, 0], (2 * FULL, 0, 1600)));
}

/// Bug: a try that fitted by itself let its chain inherit twice more.
/// Consequence: more doubt than two tries could be left unbacked.
/// Cause: the count of inheritances began anew with each try that did not inherit.
pub fn a_try_that_fits_does_not_reset_the_count_of_inheritances(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL));
    for _ in 0..3 {
        loses(&a, "x");
    }
    let mut raise = crate::runs::raising(a.run);
    raise.add[Unit::CostNanoUsd] = Some(FULL);
    s.ask(raise).unwrap();
    loses(&a, "x");
    assert_eq!(s.money(a.run), (2 * FULL, 2 * FULL, 0));
    assert_eq!(a.request("x").refused().code, "dollar_budget_exceeded");
}

pub fn an_inheriting_retry_is_clamped_to_what_it_inherits_and_what_is_free(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL));
    let spent = a.call("else");
    a.done(spent, 400);
    a.delivered(spent);
    let (lost, cap) = a.request("x").goes_clamped();
    assert_eq!(cap, 500);
    a.lost(lost);
    let (retry, cap) = a.request("x").goes_clamped();
    assert_eq!((cap, entry(s, &a, retry).1), (500, 600));
    a.done(retry, 100);
    assert_eq!(s.money(a.run), (0, 0, 600));
}

/// Bug: a retry smaller than its lost try gave back more than it held.
/// Consequence: spent and reserved passed the limit.
/// Cause: the whole reservation was inherited, what was not needed came free, and was promised again when
/// the retry came to nothing.
pub fn a_smaller_retry_inherits_what_it_needs(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL));
    let lost = loses(&a, "x");
    let retry = a.request("x").bound(bound(100, 500)).goes();
    assert_eq!((entry(s, &a, lost).1, entry(s, &a, retry).1), (400, 600));
    assert_eq!(a.request("y").bound(bound(10, 10)).waits().code, "dollar_budget_exceeded");
    a.void(retry);
    assert_eq!(entry(s, &a, lost), (State::Unknown, FULL, 0));
    assert_eq!(s.money(a.run), (FULL, FULL, 0));
}

/// Bug: a lost retry that turned out to have cost nothing gave back what its own retry held by then.
/// Consequence: spent and reserved passed the limit.
/// Cause: the inheritance was given back whole, though it had moved on.
pub fn a_late_failure_gives_back_only_what_it_still_holds(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL));
    let first = loses(&a, "x");
    let second = loses(&a, "x");
    let third = a.call("x");
    a.failed(second);
    assert_eq!(s.money(a.run), (FULL, 0, 0));
    assert_eq!(entry(s, &a, first), (State::Unknown, 0, 0));
    a.void(third);
    assert_eq!(entry(s, &a, first), (State::Unknown, FULL, 0));
    assert_eq!(s.money(a.run), (FULL, FULL, 0));
    let fourth = a.request("x").retry(1).goes();
    assert_eq!(s.entry(a.run, fourth).call.unwrap().retry_of, Some(first));
    a.done(fourth, 100);
    assert_eq!((entry(s, &a, first), s.money(a.run)), ((State::Failed, 0, 100), (0, 0, 200)));
}

pub fn a_late_failure_behind_a_settled_retry_still_settles_the_first_try(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL));
    let first = loses(&a, "x");
    let second = loses(&a, "x");
    let third = a.call("x");
    a.failed(second);
    a.done(third, 100);
    assert_eq!(entry(s, &a, first), (State::Failed, 0, 100));
    assert_eq!(s.money(a.run), (0, 0, 200));
}

pub fn doubt_is_kept_where_the_run_says_so(s: &Stage) {
    let a = agent(s, s.run("r").cost(2 * FULL).in_doubt(InDoubt::Keep));
    let lost = loses(&a, "x");
    let retry = a.call("x");
    a.done(retry, 300);
    assert_eq!(entry(s, &a, lost), (State::Unknown, FULL, 0));
    assert_eq!(s.money(a.run), (FULL, FULL, 300));
    let second = a.request("y").goes_clamped();
    a.lost(second.0);
    assert_eq!(a.request("y").refused().code, "dollar_budget_exceeded", "kept doubt is not inherited");
}

/// Bug: under `refund` a lost call was closed as failed.
/// Consequence: the paid answer of a process that was declared dead in error was thrown away, and a repeated
/// call was counted as a new loop.
/// Cause: what is not charged was taken for what is not in doubt.
pub fn doubt_is_refunded_where_the_run_says_so(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL).in_doubt(InDoubt::Refund));
    let lost = loses(&a, "x");
    assert_eq!((entry(s, &a, lost), s.money(a.run)), ((State::Unknown, 0, 0), (0, 0, 0)));
    assert_eq!(s.spent(a.run, Unit::Calls), 1);
    let retry = a.call("x");
    assert_eq!(s.spent(a.run, Unit::Loops), 1);
    a.done(retry, 300);
    assert_eq!(s.money(a.run), (0, 0, 300));
    a.done(lost, 200);
    assert_eq!((entry(s, &a, lost), s.money(a.run)), ((State::Done, 0, 200), (0, 0, 500)));
}

pub fn late_truth_replaces_the_estimate_once(s: &Stage) {
    let process = s.process("p");
    let cases = [
        (Close::Done(bill(120)), State::Done, 120),
        (Close::Failed(bill(120)), State::Failed, 120),
        (Close::Failed(Bill::Nothing), State::Failed, 0),
        (Close::Done(Bill::Reservation), State::Done, FULL),
    ];
    for (i, (close, state, spent)) in cases.into_iter().enumerate() {
        let a = process.claim(s.run(&format!("r{i}")).cost(FULL).create());
        let lost = loses(&a, "x");
        a.ask(a.settle(lost, close)).unwrap();
        assert_eq!((entry(s, &a, lost), s.money(a.run)), ((state, 0, spent), (0, 0, spent)));
        assert_eq!(s.spent(a.run, Unit::Calls), 1);
        s.refuses("already_settled", a.settle(lost, Close::Done(bill(5))));
    }
}

/// Bug: truth that replaced an estimate left no trace.
/// Consequence: a ledger that changed after the fact, and nothing that said when or why.
/// Cause: only what a retry posted was written down as a correction.
pub fn late_truth_is_an_appended_correction(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL));
    let lost = loses(&a, "x");
    a.done(lost, 120);
    let correction = s.entry(a.run, lost).call.unwrap().correction.unwrap();
    assert_eq!((correction.posted.cost(), correction.unbacked_nano_usd), (120, 0));
}

pub fn a_lost_call_cannot_be_lost_again(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL));
    let lost = loses(&a, "x");
    s.refuses("already_settled", a.settle(lost, Close::Unknown));
}

pub fn truth_that_comes_after_the_retry_settled_is_too_late(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL));
    let lost = loses(&a, "x");
    let retry = a.call("x");
    a.done(retry, 100);
    s.refuses("already_settled", a.settle(lost, Close::Done(bill(100))));
}

pub fn truth_whose_reservation_was_inherited_is_recorded_in_full(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL));
    let lost = loses(&a, "x");
    let retry = a.call("x");
    assert_eq!(a.done(lost, 100).overrun_nano_usd, 100);
    a.done(retry, 100);
    assert_eq!(s.money(a.run), (0, 0, 200));
}

pub fn a_late_answer_is_replayed(s: &Stage) {
    let a = agent(s, s.run("r").cost(FULL));
    let lost = loses(&a, "x");
    a.done(lost, 100);
    assert_eq!(a.request("x").replays(), lost);
}

/// Bug: after a server was frozen and its call was lost, retried and delivered, its late answer served the next life.
/// Consequence: a restarted agent got another answer than the one it had acted on.
/// Cause: the lowest candidate served, and nobody asked which of two tries the agent had received.
pub fn a_late_answer_does_not_stand_before_the_one_that_was_delivered(s: &Stage) {
    let frozen = agent(s, s.run("r"));
    let (late, alone) = (frozen.call("x"), frozen.call("y"));
    frozen.process.dies();
    let first = s.process("first").claim(frozen.run);
    let retry = first.call("x");
    frozen.done(late, 10);
    frozen.done(alone, 10);
    first.done(retry, 10);
    first.delivered(retry);
    first.process.dies();
    s.reopen();
    let second = s.process("second").claim(frozen.run);
    assert_eq!(second.request("x").replays(), retry);
    second.delivered(retry);
    // Nothing paid is bought again, and a late answer that is alone is served as ever.
    assert_eq!(second.request("x").replays(), late);
    assert_eq!(second.request("y").replays(), alone);
}

pub fn each_lost_try_has_a_retry_of_its_own(s: &Stage) {
    let a = agent(s, s.run("r"));
    let lost = [a.call("x"), a.call("x")];
    for seq in lost {
        a.lost(seq);
    }
    let retries = [a.call("x"), a.call("x")];
    let of = retries.map(|seq| s.entry(a.run, seq).call.unwrap().retry_of);
    assert_eq!(of, lost.map(Some));
    let new = a.call("x");
    assert_eq!(s.entry(a.run, new).call.unwrap().retry_of, None);
}

/// Bug: a marked retry could be taken for the retry of two lost calls.
/// Consequence: one of them stayed in doubt for ever, with nothing left to replace its estimate.
/// Cause: the entry it stands for and the lost try it repeats were looked for apart.
pub fn a_marked_retry_repeats_the_lost_call_it_stands_for(s: &Stage) {
    let run = s.run("r").create();
    let (one, two) = (s.process("one"), s.process("two"));
    let old = one.enter(run, Some("a"));
    let first = old.call("x");
    let new = two.enter(run, Some("b"));
    assert_eq!(new.request("x").joins(), first);
    let second = loses(&new, "x");
    one.dies();
    new.free(first);
    for lost in [second, first] {
        let retry = new.request("x").retry(1).goes();
        assert_eq!(s.entry(run, retry).call.unwrap().retry_of, Some(lost));
        new.done(retry, 10);
        assert_eq!(entry(s, &new, lost), (State::Failed, 0, 10));
    }
}

pub fn a_lost_try_in_another_scope_has_no_retry_here(s: &Stage) {
    let a = agent(s, s.run("r"));
    loses(&a.within("item:1:try:1"), "x");
    let other = a.within("item:1:try:2").call("x");
    assert_eq!(s.entry(a.run, other).call.unwrap().retry_of, None);
}

pub fn a_chain_inherits_in_its_ancestors_too(s: &Stage) {
    let parent = s.run("parent").cost(FULL).create();
    let a = agent(s, s.run("child").under(parent));
    loses(&a, "x");
    assert_eq!(s.money(parent), (FULL, FULL, 0));
    let retry = a.call("x");
    assert_eq!(s.money(parent), (FULL, 0, 0));
    a.void(retry);
    assert_eq!(s.money(parent), (FULL, FULL, 0));
    let retry = a.request("x").retry(1).goes();
    a.done(retry, 700);
    assert_eq!((s.money(parent), s.money(a.run)), ((0, 0, FULL), (0, 0, FULL)));
}

pub fn twenty_calls_of_budget_deliver_nine_answers_though_each_is_lost_once(s: &Stage) {
    for (id, cost) in [("dear", FULL), ("usual", 600), ("cheap", 10)] {
        let a = agent(s, s.run(id).cost(20 * FULL).limit(Unit::Calls, 20));
        let mut delivered = 0;
        for turn in 0..20 {
            let text = format!("turn {turn}");
            let Ok(outlast_core::engine::call::admit::Admission::Go { opening: Opening { seq, .. }, .. }) =
                a.request(&text).ask()
            else {
                break;
            };
            a.lost(seq);
            let Ok(outlast_core::engine::call::admit::Admission::Go { opening: Opening { seq, .. }, .. }) =
                a.request(&text).ask()
            else {
                break;
            };
            a.done(seq, cost);
            a.delivered(seq);
            delivered += 1;
        }
        assert!(delivered >= 9, "{id}: {delivered} answers delivered");
    }
}
