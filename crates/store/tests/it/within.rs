//! Calls and steps made in an item or a step belong to it: charge, scope and end.

use outlast_core::{
    engine::{
        run::end_attempt::Then,
        step::{BeginStep, Record, Step},
    },
    envelope::unit::Unit,
    journal::{Opening, State, payload::Payload, scope},
    words::{digest::Digest, id::Seq},
};

use crate::{agent::*, stage::Stage};

fn agent(s: &Stage) -> Agent {
    s.process("p").claim(s.run("r").create())
}

/// A new attempt, the one before being gone with its process.
fn next(s: &Stage, old: &Agent) -> Agent {
    old.process.dies();
    s.process("next").claim(old.run)
}

fn worker(s: &Stage) -> Agent {
    s.process("p").works(s.run("r").job().create())
}

impl Agent {
    /// The same agent in a plain step: its calls have the scope of what is around it.
    fn in_step(&self, seq: Seq) -> Agent {
        Agent { within: Some(seq), ..self.clone() }
    }

    fn retried(&self, key: &str) -> BeginStep {
        BeginStep { retries: true, ..self.step(key) }
    }

    /// Begins a step with retries, and is in its try.
    #[track_caller]
    pub fn tries(&self, key: &str) -> (Seq, i64, Agent) {
        let Step::Run { opening: Opening { seq, .. }, try_no, .. } = self.ask(self.retried(key)).unwrap()
        else {
            panic!("not run")
        };
        (seq, try_no, self.in_try(key, seq, try_no))
    }

    fn in_try(&self, key: &str, seq: Seq, try_no: i64) -> Agent {
        let scope = scope::step_calls(&self.scope, key, try_no);
        Agent { scope, within: Some(seq), ..self.clone() }
    }
}

pub fn a_call_is_charged_to_its_item_and_its_step(s: &Stage) {
    let a = worker(s);
    let item = a.item("a");
    let inside = a.in_item("a", &item);
    let step = Agent { scope: item.steps.clone(), ..inside.clone() }.begins("fetch");
    inside.buys("one", 10);
    inside.in_step(step).buys("two", 20);
    let failed = inside.call("three");
    inside.failed(failed);
    let void = inside.call("four");
    inside.void(void);
    let spent = |seq| {
        let e = s.entry(a.run, seq);
        (e.spent.cost(), e.spent.tokens(), e.spent[Unit::Calls])
    };
    assert_eq!((spent(item.opening.seq), spent(step)), ((30, 30, 3), (20, 20, 1)));
    assert_eq!(s.money(a.run), (0, 0, 30), "the run is charged once");
}

pub fn a_lost_call_is_charged_to_its_item_as_it_is_posted(s: &Stage) {
    let old = s.process("p").works(s.run("r").job().cost(FULL).create());
    let item = old.item("a");
    old.in_item("a", &item).call("ask");
    old.process.dies();
    let calls = |seq| s.entry(old.run, seq).spent[Unit::Calls];
    assert_eq!(calls(item.opening.seq), 1, "it was one call");
    let new = s.process("next").works(old.run);
    let again = new.item("a");
    let inside = new.in_item("a", &again);
    let retry = inside.request("ask").goes();
    inside.done(retry, 400);
    let e = s.entry(old.run, item.opening.seq);
    assert_eq!((e.spent.cost(), e.spent[Unit::Calls]), (s.money(old.run).2, 2));
}

pub fn a_call_in_an_item_that_is_over_is_refused(s: &Stage) {
    let a = worker(s);
    let item = a.item("a");
    let inside = a.in_item("a", &item);
    let step = Agent { scope: item.steps.clone(), ..inside.clone() }.begins("fetch");
    inside.in_step(step).buys("one", 1);
    a.item_done(item.opening.seq, "x");
    for late in [inside.clone(), inside.in_step(step)] {
        s.refuses("not_within", late.request("two").admit);
    }
    s.refuses("not_within", Agent { within: Some(Seq(99)), ..a.clone() }.request("two").admit);
    let call = a.call("plain");
    s.refuses("not_within", a.in_step(call).request("two").admit);
}

pub fn a_call_in_anothers_item_is_refused(s: &Stage) {
    let a = worker(s);
    let item = a.item("a");
    let sibling = a.process.works(a.run);
    s.refuses("not_within", sibling.in_item("a", &item).request("ask").admit);
    a.process.dies();
    let new = s.process("next").works(a.run);
    s.refuses("not_within", new.in_item("a", &item).request("ask").admit);
    let item = new.item("a");
    new.in_item("a", &item).request("ask").goes();
}

pub fn a_call_of_a_try_that_raised_is_refused(s: &Stage) {
    let a = worker(s);
    let item = a.item("a");
    let first = a.in_item("a", &item);
    a.ask(a.next_try(item.opening.seq)).unwrap();
    s.refuses("not_within", first.request("late").admit);
    s.refuses("not_within", Agent { scope: a.scope.clone(), ..first }.request("of no try").admit);
}

pub fn answers_of_a_try_that_was_cut_off_are_replayed(s: &Stage) {
    let old = worker(s);
    let item = old.item("a");
    let paid = old.in_item("a", &item).buys("ask", 10);
    old.process.dies();
    let new = s.process("next").works(old.run);
    let item = new.item("a");
    assert_eq!(new.in_item("a", &item).request("ask").replays(), paid);
    assert_eq!(s.entry(new.run, item.opening.seq).spent.cost(), 10);
}

/// Bug: a new call after a finished step was divergence.
/// Consequence: an agent whose steps make calls was halted, or said to diverge, on every resume.
/// Cause: the answers made in a step counted as untaken although the step's result replaces them.
pub fn answers_of_a_finished_step_are_not_missed(s: &Stage) {
    let old = s.process("p").claim(s.run("r").halts_on_divergence().create());
    let outer = old.begins("outer");
    let inside = Agent { scope: scope::step_steps(&old.scope, "outer"), ..old.in_step(outer) };
    let inner = inside.begins("inner");
    old.in_step(inner).buys("one", 1);
    old.ask(old.record(inner, "x")).unwrap();
    old.in_step(outer).buys("two", 1);
    assert_eq!(s.row(old.run).answers, 1);
    old.ask(old.record(outer, "y")).unwrap();
    assert_eq!(s.row(old.run).answers, 0);
    let new = next(s, &old);
    assert_eq!(new.ask(new.step("outer")).unwrap(), Step::Done { seq: outer });
    new.request("three").goes();
}

pub fn answers_of_a_step_that_was_begun_again_are_not_missed_once_it_is_done(s: &Stage) {
    let old = s.process("p").claim(s.run("r").halts_on_divergence().create());
    let step = old.begins("fetch");
    old.in_step(step).buys("one", 1);
    old.in_step(step).buys("two", 1);
    let new = next(s, &old);
    assert_eq!(new.begins("fetch"), step);
    let inside = new.in_step(step);
    let replayed = inside.request("one").replays();
    inside.delivered(replayed);
    new.ask(new.record(step, "needed one only")).unwrap();
    assert_eq!(s.row(new.run).answers, 0);
    new.request("three").goes();
}

/// Bug: the answers of a step that failed and was then done still counted as untaken.
/// Consequence: an agent that tries a step again by itself was halted on its next resume.
/// Cause: only those of the entry that was done were forgotten.
pub fn answers_of_a_failed_step_are_not_missed_once_it_is_done(s: &Stage) {
    let old = s.process("p").claim(s.run("r").halts_on_divergence().create());
    let failed = old.begins("fetch");
    old.in_step(failed).buys("one", 1);
    old.ask(Record { failed: true, ..old.record(failed, "timeout") }).unwrap();
    let done = old.begins("fetch");
    old.in_step(done).buys("one", 1);
    assert_eq!(s.row(old.run).answers, 2);
    old.ask(old.record(done, "page")).unwrap();
    assert_eq!(s.row(old.run).answers, 0);
    next(s, &old).request("other").goes();
}

pub fn answers_of_an_unfinished_step_are_missed(s: &Stage) {
    let old = s.process("p").claim(s.run("r").halts_on_divergence().create());
    let step = old.begins("fetch");
    old.in_step(step).buys("one", 1);
    let new = next(s, &old);
    assert_eq!(new.request("other").refused().code, "diverged");
}

pub fn each_try_of_a_step_with_retries_is_a_scope_of_its_own(s: &Stage) {
    let a = agent(s);
    let (seq, try_no, first) = a.tries("fetch");
    assert_eq!(try_no, 1);
    first.buys("ask", 10);
    let try_no = a.ask(a.next_try(seq)).unwrap();
    assert_eq!(try_no, 2);
    s.refuses("not_within", first.request("ask").admit);
    a.in_try("fetch", seq, 2).buys("ask", 10);
    a.ask(Record { failed: true, ..a.record(seq, "malformed") }).unwrap();
    let (again, try_no, _) = a.tries("fetch");
    assert_ne!(again, seq);
    assert_eq!(try_no, 3, "a later begin replays none of the tries that raised");
    assert_eq!(s.row(a.run).answers, 0);
}

pub fn a_try_of_a_step_that_was_cut_off_goes_on(s: &Stage) {
    let old = agent(s);
    let (seq, _, _) = old.tries("fetch");
    old.ask(old.next_try(seq)).unwrap();
    let paid = old.in_try("fetch", seq, 2).buys("ask", 10);
    let new = next(s, &old);
    let (again, try_no, inside) = new.tries("fetch");
    assert_eq!((again, try_no), (seq, 2));
    assert_eq!(inside.request("ask").replays(), paid);
}

pub fn a_step_without_retries_has_one_try(s: &Stage) {
    let a = agent(s);
    let seq = a.begins("fetch");
    s.refuses("no_retries", a.next_try(seq));
    s.refuses("not_within", a.next_try(Seq(99)));
}

pub fn a_step_of_an_unknown_outcome_is_in_doubt(s: &Stage) {
    let old = agent(s);
    let once = |a: &Agent| BeginStep { at_most_once: true, ..a.step("send the mail") };
    let Step::Run { opening: Opening { seq, .. }, .. } = old.ask(once(&old)).unwrap() else {
        panic!("not run")
    };
    let new = next(s, &old);
    assert_eq!(new.ask(once(&new)).unwrap(), Step::InDoubt { seq });
    assert_eq!(new.ask(new.step("send the mail")).unwrap(), Step::InDoubt { seq }, "it was begun as such");
    assert_eq!(s.entry(new.run, seq).state, State::Open);
    let seq = new.begins("plain");
    let third = next(s, &new);
    let declared_since = BeginStep { at_most_once: true, ..third.step("plain") };
    assert_eq!(third.ask(declared_since).unwrap(), Step::InDoubt { seq });
    let Step::Run { opening: Opening { seq, .. }, .. } =
        third.ask(BeginStep { key: "known".into(), ..once(&third) }).unwrap()
    else {
        panic!("not run")
    };
    third.ask(Record { failed: true, ..third.record(seq, "refused") }).unwrap();
    let again = third.ask(BeginStep { key: "known".into(), ..once(&third) }).unwrap();
    assert!(matches!(again, Step::Run { .. }), "its outcome is known: it failed");
}

pub fn a_step_in_a_step_is_found_in_it_only(s: &Stage) {
    let a = agent(s);
    let inside = |key: &str, seq| Agent { scope: scope::step_steps(&a.scope, key), ..a.in_step(seq) };
    let (one, two) = (a.begins("one"), a.begins("two"));
    let inner = inside("one", one).begins("inner");
    a.ask(a.record(inner, "x")).unwrap();
    assert_ne!(inside("two", two).begins("inner"), inner);
    let again = inside("one", one);
    assert_eq!(again.ask(again.step("inner")).unwrap(), Step::Done { seq: inner });
    s.refuses("not_within", inside("two", one).step("inner"));
}

pub fn a_step_in_an_item_that_is_over_is_refused(s: &Stage) {
    let a = worker(s);
    let item = a.item("a");
    let inside = Agent { scope: item.steps.clone(), within: Some(item.opening.seq), ..a.clone() };
    a.item_done(item.opening.seq, "x");
    s.refuses("not_within", inside.step("late"));
}

pub fn steps_are_read_by_page_with_their_results(s: &Stage) {
    let a = agent(s);
    for i in 0..5 {
        let seq = a.begins(&format!("s{i}"));
        a.buys(&format!("call {i}"), 1);
        if i < 4 {
            a.ask(Record { failed: i == 3, ..a.record(seq, &format!("r{i}")) }).unwrap();
        }
    }
    a.ends(Then::Interrupt { by_person: false });
    let (mut seen, mut after) = (Vec::new(), Seq(0));
    while let Some(last) = s.store().steps(a.run, after, 2).unwrap().last().map(|l| l.0.seq) {
        for (row, value) in s.store().steps(a.run, after, 2).unwrap() {
            assert_eq!(row.scope, a.scope);
            let value = value.map(|v| String::from_utf8(v.decode().unwrap().to_vec()).unwrap());
            seen.push((row.key, row.state, value));
        }
        after = last;
    }
    let want = |i: usize, state, value: Option<&str>| (format!("s{i}"), state, value.map(str::to_owned));
    assert_eq!(
        seen,
        [
            want(0, State::Done, Some("r0")),
            want(1, State::Done, Some("r1")),
            want(2, State::Done, Some("r2")),
            want(3, State::Failed, Some("r3")),
            want(4, State::Open, None),
        ]
    );
}

pub fn large_results_are_left_out_of_a_page_of_steps(s: &Stage) {
    let a = agent(s);
    // Digests do not compress.
    let large: Vec<u8> = (0..2u32 << 10).flat_map(|i| Digest::of(&i.to_le_bytes()).0).collect();
    let seq = a.begins("large");
    a.ask(Record { value: Payload::encode(&large), ..a.record(seq, "") }).unwrap();
    let (row, value) = s.store().steps(a.run, Seq(0), 10).unwrap().remove(0);
    assert_eq!((row.seq, row.state, value), (seq, State::Done, None));
}
