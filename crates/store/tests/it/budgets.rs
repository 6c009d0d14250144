//! Named budgets: what runs of a tag spend together, in a period.

use outlast_core::{
    engine::budget::{BudgetSet, RaiseBudget, RemoveBudget, SetBudget, Source},
    envelope::{
        Envelope, Whose,
        budget::{Name, Per, Terms},
        unit::{Limits, Unit},
    },
    reads,
    run::{InDoubt, status::Status},
    words::id::{Micros, RunNo},
};

use crate::{agent::*, bed::BEGINNING, stage::Stage};

const DAY_MS: u64 = 86_400_000;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A budget by the day, for runs with the tag `team=a`.
fn terms(unit: Unit, limit: i64) -> Terms {
    let mut limits = Limits::default();
    limits[unit] = Some(limit);
    Terms { limits, per: Per::Day, tag: Some(("team".into(), "a".into())) }
}

fn setting(text: &str, terms: Terms, source: Source) -> SetBudget {
    SetBudget { name: name(text), terms, source }
}

pub fn set(s: &Stage, text: &str, unit: Unit, limit: i64) -> BudgetSet {
    s.ask(setting(text, terms(unit, limit), Source::Command)).unwrap()
}

fn raise(s: &Stage, text: &str, unit: Unit, by: i64) {
    let mut add = Limits::default();
    add[unit] = Some(by);
    s.ask(RaiseBudget { name: name(text), add }).unwrap();
}

/// Returns the envelope of the window that counts now.
pub fn window(s: &Stage, text: &str) -> Envelope {
    let now = s.store().now().unwrap();
    let budgets = s.store().budgets().unwrap();
    budgets.iter().find(|b| b.budget.name == name(text)).unwrap().envelope_at(now)
}

/// (reserved, of that in doubt, spent) in nano-USD.
pub fn money(s: &Stage, text: &str) -> (i64, i64, i64) {
    let e = window(s, text);
    (e.reserved.cost(), e.doubt.cost(), e.spent.cost())
}

/// The driver of a new run of `team=a`.
pub fn member(s: &Stage, id: &str) -> Agent {
    s.process(id).claim(s.run(id).tag("team", "a").create())
}

pub fn runs_of_a_tag_share_its_budget_and_no_other_run_does(s: &Stage) {
    set(s, "team", Unit::CostNanoUsd, 10 * FULL);
    let (one, two) = (member(s, "one"), member(s, "two"));
    let others = [s.run("other").tag("team", "b"), s.run("bare"), s.run("key").tag("a", "team")];
    one.call("in flight");
    two.buys("paid", 70);
    for run in others {
        s.process("p").claim(run.create()).buys("x", 500);
    }
    assert_eq!(money(s, "team"), (FULL, 0, 70));
    let e = window(s, "team");
    assert_eq!((e.spent[Unit::Tokens], e.spent[Unit::Calls], e.spent[Unit::Loops]), (70, 1, 0));
}

pub fn a_budget_without_a_tag_is_everybodys(s: &Stage) {
    let terms = Terms { tag: None, ..terms(Unit::CostNanoUsd, 10 * FULL) };
    s.ask(setting("all", terms, Source::Command)).unwrap();
    member(s, "one").buys("x", 30);
    s.process("p").claim(s.run("bare").create()).buys("x", 12);
    assert_eq!(money(s, "all"), (0, 0, 42));
}

pub fn a_refusal_by_a_named_budget_makes_runs_wait_and_a_raise_lets_them_go_on(s: &Stage) {
    for (unit, team) in [(Unit::CostNanoUsd, "usd"), (Unit::Tokens, "tokens"), (Unit::Calls, "calls")] {
        set(s, team, unit, 0);
        let (one, two) = (member(s, &format!("one-{team}")), member(s, &format!("two-{team}")));
        for agent in [&one, &two] {
            let refusal = agent.request("x").waits();
            let Some(Whose::Named { name, until, .. }) = refusal.whose else { panic!("{refusal:?}") };
            assert_eq!((refusal.unit, name.as_str(), until.is_some()), (Some(unit), team, true));
            assert_eq!((s.status(agent.run), s.row(agent.run).ended_at), (Status::Waiting, None));
        }
        raise(s, team, unit, 2 * FULL);
        for agent in [&one, &two] {
            agent.buys("x", 10);
            assert_eq!((s.status(agent.run), s.halt(agent.run)), (Status::Running, None));
        }
        s.ask(RemoveBudget { name: name(team) }).unwrap();
    }
}

pub fn who_waits_and_asks_again_writes_nothing(s: &Stage) {
    set(s, "team", Unit::Calls, 0);
    let agent = member(s, "one");
    agent.request("x").waits();
    let before = crate::stage::everything(&*s.store());
    s.wait_a_moment();
    agent.request("x").waits();
    assert_eq!(crate::stage::everything(&*s.store()), before);
}

pub fn a_runs_own_limit_halts_it_whatever_a_named_budget_says(s: &Stage) {
    set(s, "team", Unit::CostNanoUsd, 0);
    let agent = s.process("p").claim(s.run("r").tag("team", "a").cost(0).create());
    assert_eq!(agent.request("x").refused().whose, None);
    assert_eq!(s.status(agent.run), Status::Halted);
}

pub fn a_call_is_clamped_to_what_a_named_budget_has_left(s: &Stage) {
    set(s, "team", Unit::CostNanoUsd, 500);
    assert_eq!(member(s, "one").request("x").goes_clamped().1, 400);
    assert_eq!(money(s, "team"), (500, 0, 0));
}

pub fn a_call_waits_for_other_runs_calls_in_flight_under_a_named_budget(s: &Stage) {
    set(s, "team", Unit::CostNanoUsd, FULL);
    let (one, two) = (member(s, "one"), member(s, "two"));
    let first = one.call("x");
    two.request("x").waits();
    assert_eq!(s.status(two.run), Status::Running, "room may come back by itself");
    one.done(first, 100);
    assert_eq!(two.request("x").goes_clamped().1, 800);
}

pub fn a_model_without_a_price_is_refused_under_a_named_limit_in_usd(s: &Stage) {
    set(s, "team", Unit::CostNanoUsd, FULL);
    assert_eq!(member(s, "one").request("x").unpriced().refused().code, "price_unknown");
    set(s, "team", Unit::Tokens, FULL);
    member(s, "two").request("x").unpriced().goes();
}

pub fn a_child_is_charged_to_the_named_budgets_above_it(s: &Stage) {
    set(s, "team", Unit::CostNanoUsd, 10 * FULL);
    let top = s.run("top").tag("team", "a").create();
    // A child's own tags do not free it from its parent's budgets.
    let child = s.run("child").under(top).tag("team", "b").create();
    let grandchild = s.process("p").claim(s.run("grandchild").under(child).create());
    grandchild.buys("x", 70);
    assert_eq!(money(s, "team"), (0, 0, 70));
    assert_eq!((s.money(top), s.money(child)), ((0, 0, 70), (0, 0, 70)));
}

pub fn what_closes_a_call_closes_it_in_its_window(s: &Stage) {
    set(s, "team", Unit::CostNanoUsd, 100 * FULL);
    let agent = member(s, "one");
    let check = |close: &dyn Fn(outlast_core::words::id::Seq), wanted: (i64, i64, i64), calls: i64| {
        let before = window(s, "team");
        let seq = agent.request(&format!("{calls}{wanted:?}")).goes();
        close(seq);
        let after = window(s, "team");
        let had = (
            after.reserved.cost() - before.reserved.cost(),
            after.doubt.cost() - before.doubt.cost(),
            after.spent.cost() - before.spent.cost(),
        );
        assert_eq!((had, after.spent[Unit::Calls] - before.spent[Unit::Calls]), (wanted, calls));
    };
    check(
        &|seq| {
            agent.done(seq, 70);
        },
        (0, 0, 70),
        1,
    );
    check(
        &|seq| {
            agent.done(seq, FULL + 5);
        },
        (0, 0, FULL + 5),
        1,
    );
    check(
        &|seq| {
            agent.failed(seq);
        },
        (0, 0, 0),
        1,
    );
    check(
        &|seq| {
            agent.void(seq);
        },
        (0, 0, 0),
        0,
    );
    check(
        &|seq| {
            agent.lost(seq);
        },
        (FULL, FULL, 0),
        1,
    );
    // The outcome of the call became known late.
    check(
        &|seq| {
            agent.lost(seq);
            agent.done(seq, 40);
        },
        (0, 0, 40),
        1,
    );
    let refunding = s.run("refund").tag("team", "a").in_doubt(InDoubt::Refund).create();
    let refunding = s.process("q").claim(refunding);
    let before = money(s, "team");
    let seq = refunding.call("x");
    refunding.lost(seq);
    assert_eq!(money(s, "team"), before);
}

pub fn a_retry_inherits_in_its_window(s: &Stage) {
    set(s, "team", Unit::CostNanoUsd, FULL + 100);
    let agent = member(s, "one");
    let lost = agent.call("x");
    agent.lost(lost);
    let retry = agent.request("x").goes();
    assert_eq!(money(s, "team"), (FULL, 0, 0));
    agent.done(retry, 60);
    // The lost try is posted at its retry's cost.
    assert_eq!(money(s, "team"), (0, 0, 120));
}

pub fn a_new_budget_counts_for_the_runs_that_are_there(s: &Stage) {
    let member_of = |run| s.process("p").claim(run);
    let top = member_of(s.run("top").tag("team", "a").create());
    let below = member_of(s.run("below").under(top.run).create());
    let other = member_of(s.run("other").create());
    let open = top.call("before");
    set(s, "team", Unit::CostNanoUsd, 100 * FULL);
    let budget = s.store().budgets().unwrap().remove(0).budget;
    assert_eq!((budget.applied, reads::budgets::to_all(&*s.store(), &budget).unwrap()), (false, 2));
    assert_eq!(reads::budgets::to_all(&*s.store(), &budget).unwrap(), 0, "again, nothing is new");
    assert!(s.store().budgets().unwrap()[0].budget.applied);
    top.done(open, 500);
    assert_eq!(money(s, "team"), (0, 0, 0), "what was admitted before it is not charged to it");
    for (agent, cost) in [(&top, 1), (&below, 20), (&other, 300)] {
        agent.buys("after", cost);
    }
    assert_eq!(money(s, "team"), (0, 0, 21));
}

pub fn a_budget_that_is_removed_holds_nobody(s: &Stage) {
    set(s, "team", Unit::CostNanoUsd, FULL);
    let agent = member(s, "one");
    let open = agent.call("x");
    agent.request("y").waits();
    s.ask(RemoveBudget { name: name("team") }).unwrap();
    agent.call("y");
    assert_eq!(s.store().budgets().unwrap(), []);
    // In the window it was admitted under, though nobody shows that any more.
    agent.done(open, 100);
    s.refuses("unknown_budget", RemoveBudget { name: name("team") });
}

pub fn other_limits_count_at_once_and_keep_what_is_spent(s: &Stage) {
    set(s, "team", Unit::CostNanoUsd, 100);
    let agent = member(s, "one");
    agent.request("x").waits();
    assert!(set(s, "team", Unit::CostNanoUsd, 2 * FULL).changed);
    agent.buys("x", 70);
    assert!(!set(s, "team", Unit::CostNanoUsd, 2 * FULL).changed);
    assert_eq!((money(s, "team"), window(s, "team").limits[Unit::CostNanoUsd]), ((0, 0, 70), Some(2 * FULL)));
}

pub fn another_tag_makes_another_budget(s: &Stage) {
    let first = set(s, "team", Unit::CostNanoUsd, 10 * FULL);
    let agent = member(s, "one");
    agent.buys("x", 70);
    let tag = Some(("team".to_owned(), "b".to_owned()));
    let second =
        s.ask(setting("team", Terms { tag, ..terms(Unit::CostNanoUsd, FULL) }, Source::Command)).unwrap();
    assert!(second.changed && second.no != first.no && !second.applied);
    agent.buys("y", 40);
    assert_eq!(money(s, "team"), (0, 0, 0));
    assert_eq!(s.store().budgets().unwrap().len(), 1);
}

pub fn a_file_that_says_the_same_again_changes_nothing(s: &Stage) {
    let usd = |limit| terms(Unit::CostNanoUsd, limit);
    let by_file = |limit| s.ask(setting("team", usd(limit), Source::File)).unwrap().changed;
    let limit = || window(s, "team").limits[Unit::CostNanoUsd];
    assert!(by_file(FULL));
    member(s, "one").buys("x", 10);
    assert!(!by_file(FULL));
    raise(s, "team", Unit::CostNanoUsd, 500);
    assert!(!by_file(FULL));
    assert_eq!(limit(), Some(FULL + 500), "what a person raised stays");
    assert!(by_file(3 * FULL));
    assert_eq!(limit(), Some(3 * FULL));
    s.ask(RemoveBudget { name: name("team") }).unwrap();
    assert!(!by_file(3 * FULL), "what a person removed stays so");
    assert_eq!(s.store().budgets().unwrap(), []);
    assert!(by_file(4 * FULL));
    assert_eq!(s.store().budgets().unwrap().len(), 1);
}

pub fn a_budget_that_cannot_be_is_refused(s: &Stage) {
    let bad = |unit, limit| setting("team", terms(unit, limit), Source::Command);
    s.refuses("bad_limit", bad(Unit::CostNanoUsd, -1));
    s.refuses("bad_limit", bad(Unit::WallMs, 1));
    let none = Terms { limits: Limits::default(), ..terms(Unit::Calls, 1) };
    s.refuses("bad_limit", setting("team", none, Source::Command));
    let mut add = Limits::default();
    add[Unit::Tokens] = Some(5);
    s.refuses("unknown_budget", RaiseBudget { name: name("team"), add });
    set(s, "team", Unit::CostNanoUsd, FULL);
    s.refuses("bad_limit", RaiseBudget { name: name("team"), add });
    add[Unit::Tokens] = None;
    add[Unit::CostNanoUsd] = Some(-FULL - 1);
    s.refuses("bad_limit", RaiseBudget { name: name("team"), add });
}

pub fn a_budget_outlives_the_process(s: &Stage) {
    set(s, "team", Unit::CostNanoUsd, 10 * FULL);
    let run = s.run("one").tag("team", "a").create();
    let before = s.process("p").claim(run);
    let open = before.call("x");
    before.buys("y", 70);
    let kept = s.store().budgets().unwrap();
    s.reopen();
    assert_eq!(s.store().budgets().unwrap(), kept);
    before.process.dies();
    assert_eq!(money(s, "team"), (FULL, FULL, 70));
    assert_eq!(s.entry(run, open).windows().len(), 1);
    s.process("q").claim(run).buys("z", 5);
    assert_eq!(money(s, "team"), (FULL, FULL, 75));
}

pub fn starting_a_run_again_charges_it_to_nothing_new(s: &Stage) {
    let run = s.run("one").tag("team", "a").create();
    set(s, "team", Unit::CostNanoUsd, 10 * FULL);
    assert_eq!(s.run("one").tag("team", "a").create(), run);
    assert!(s.row(run).budgets.is_empty());
}

pub fn the_next_window_has_room_again(s: &Stage) {
    let check = |per: Per, text: &str, before_ms: u64, to_next_ms: u64, period: &str, next: &str| {
        let tag = Some(("of".to_owned(), text.to_owned()));
        let terms = Terms { per, tag, ..terms(Unit::CostNanoUsd, FULL) };
        s.ask(setting(text, terms, Source::Command)).unwrap();
        let agent = s.process(text).claim(s.run(text).tag("of", text).create());
        agent.buys("x", FULL);
        let Some(Whose::Named { period: had, until, .. }) = agent.request("y").waits().whose else {
            panic!()
        };
        assert_eq!(
            (had.as_str(), until),
            (period, Some(Micros(BEGINNING.0 + (before_ms + to_next_ms) as i64 * 1000)))
        );
        s.advance_ms(to_next_ms - 1);
        agent.request("y").waits();
        s.advance_ms(1);
        assert_eq!(window(s, text).spent.cost(), 0);
        agent.buys("y", 10);
        assert_eq!((s.status(agent.run), window(s, text).spent.cost()), (Status::Running, 10));
        let owner = outlast_core::envelope::Owner::Window { name: text.into(), period: next.into() };
        assert_eq!(window(s, text).owner, owner);
    };
    check(Per::Hour, "hour", 0, 3_600_000, "2026-11-20T00", "2026-11-20T01");
    check(Per::Day, "day", 3_600_000, DAY_MS - 3_600_000, "2026-11-20", "2026-11-21");
    check(Per::Month, "month", DAY_MS, 10 * DAY_MS, "2026-11", "2026-12");
}

pub fn a_call_is_charged_to_the_window_it_was_admitted_under(s: &Stage) {
    set(s, "team", Unit::CostNanoUsd, 10 * FULL);
    let agent = member(s, "one");
    let (paid, lost) = (agent.call("x"), agent.call("y"));
    let first = window(s, "team").no;
    s.advance_ms(DAY_MS);
    agent.done(paid, 70);
    agent.lost(lost);
    agent.buys("z", 5);
    let second = window(s, "team");
    assert_eq!((second.no != first, second.spent.cost(), second.reserved.cost()), (true, 5, 0));
    let e = s.store().envelope(first).unwrap().unwrap();
    assert_eq!((e.spent.cost(), e.reserved.cost(), e.doubt.cost()), (70, FULL, FULL));
    agent.done(lost, 30);
    let e = s.store().envelope(first).unwrap().unwrap();
    assert_eq!((e.spent.cost(), e.reserved.cost(), e.doubt.cost()), (100, 0, 0));
}

pub fn a_clock_that_goes_back_opens_no_window_again(s: &Stage) {
    set(s, "team", Unit::CostNanoUsd, FULL);
    let agent = member(s, "one");
    agent.buys("x", FULL);
    s.advance_ms(DAY_MS);
    agent.buys("y", FULL);
    s.set_clock(BEGINNING);
    agent.request("z").waits();
    assert_eq!(window(s, "team").spent.cost(), FULL);
}

/// Bug: one call while the clock was a year ahead left a budget by the day in next year's window.
/// Consequence: one day's money had to do for the year.
/// Cause: a budget knew its newest window only, and never went back behind it.
pub fn a_clock_that_jumped_ahead_leaves_no_budget_in_next_years_window(s: &Stage) {
    set(s, "team", Unit::CostNanoUsd, FULL);
    let agent = member(s, "one");
    agent.buys("x", FULL);
    s.advance_ms(365 * DAY_MS);
    agent.buys("y", FULL);
    s.set_clock(BEGINNING);
    agent.request("z").waits();
    s.advance_ms(DAY_MS);
    agent.buys("z", FULL);
    assert_eq!(window(s, "team").spent.cost(), FULL);
}

pub fn a_retry_in_the_next_window_takes_nothing_over(s: &Stage) {
    set(s, "team", Unit::CostNanoUsd, 10 * FULL);
    let run: RunNo = s.run("one").tag("team", "a").cost(2 * FULL).create();
    let agent = s.process("p").claim(run);
    let lost = agent.call("x");
    agent.lost(lost);
    s.advance_ms(DAY_MS);
    let retry = agent.request("x").goes();
    assert_eq!((s.money(run), money(s, "team")), ((2 * FULL, FULL, 0), (FULL, 0, 0)));
    agent.done(retry, 60);
    // Each try is posted where it was admitted.
    assert_eq!((s.money(run), money(s, "team")), ((0, 0, 120), (0, 0, 60)));
}

pub fn a_raise_is_the_windows_and_a_set_is_for_good(s: &Stage) {
    let limit = |text| window(s, text).limits[Unit::CostNanoUsd];
    set(s, "team", Unit::CostNanoUsd, FULL);
    raise(s, "team", Unit::CostNanoUsd, 50);
    assert_eq!(limit("team"), Some(FULL + 50));
    s.advance_ms(DAY_MS);
    assert_eq!(limit("team"), Some(FULL));
    set(s, "team", Unit::CostNanoUsd, 2 * FULL);
    s.advance_ms(DAY_MS);
    assert_eq!(limit("team"), Some(2 * FULL));
    let terms = Terms { per: Per::None, ..terms(Unit::CostNanoUsd, FULL) };
    s.ask(setting("ever", terms, Source::Command)).unwrap();
    raise(s, "ever", Unit::CostNanoUsd, 50);
    s.advance_ms(400 * DAY_MS);
    assert_eq!(limit("ever"), Some(FULL + 50));
}
