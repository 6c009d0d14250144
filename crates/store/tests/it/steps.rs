//! Steps: done once, and begun anew where they were cut off.

use outlast_core::{
    engine::{
        call::settle::StorePart,
        run::end_attempt::Then,
        step::{BeginStep, Record, ResolveStep, Step},
    },
    envelope::unit::Unit,
    journal::{
        Kind, Opening, Role, State,
        payload::{PART_LEN, Payload},
    },
    run::status::Status,
    words::{
        clock::{Entropy as _, SeededEntropy},
        id::{RunNo, Seq},
    },
};

use crate::{agent::*, stage::Stage};

fn agent(s: &Stage) -> Agent {
    s.process("p").claim(s.run("r").create())
}

fn value(s: &Stage, run: RunNo, seq: Seq) -> Vec<u8> {
    s.store().payload(run, seq, Role::Value).unwrap().unwrap().decode().unwrap().to_vec()
}

pub fn a_finished_step_is_not_run_again(s: &Stage) {
    let old = agent(s);
    let seq = old.begins("fetch");
    assert_eq!(s.entry(old.run, seq).state, State::Open);
    old.ask(old.record(seq, "the page")).unwrap();
    old.process.dies();
    s.reopen();
    let new = s.process("next").claim(old.run);
    assert_eq!(new.ask(new.step("fetch")).unwrap(), Step::Done { seq });
    assert_eq!(value(s, new.run, seq), b"the page");
}

pub fn a_step_that_was_cut_off_is_begun_again_as_the_same_entry(s: &Stage) {
    let old = agent(s);
    let seq = old.begins("fetch");
    old.process.dies();
    let new = s.process("next").claim(old.run);
    assert_eq!(
        new.ask(new.step("fetch")).unwrap(),
        Step::Run { opening: new.opening(seq), begun_before: true, try_no: 0, tries: 1 }
    );
    let entry = s.entry(new.run, seq);
    assert_eq!((entry.instance, entry.attempt), (Some(new.process.no), new.attempt));
    s.refuses("already_taken", old.record(seq, "stale"));
    new.ask(new.record(seq, "fresh")).unwrap();
    assert_eq!(value(s, new.run, seq), b"fresh");
}

/// A payload that does not compress, of `parts` parts.
fn long(parts: usize, seed: u64) -> Payload {
    let mut bytes = vec![0; PART_LEN * parts - 7];
    SeededEntropy::new(seed).fill(&mut bytes);
    Payload::encode(&bytes)
}

fn keep(agent: &Agent, seq: Seq, payload: &Payload) -> (Vec<StorePart>, Payload) {
    StorePart::before(agent.opening(seq), Role::Value, payload.clone())
}

pub fn a_long_result_is_kept_in_parts_before_it_is_recorded(s: &Stage) {
    let a = agent(s);
    let seq = a.begins("fetch");
    let result = long(3, 1);
    let (parts, last) = keep(&a, seq, &result);
    assert_eq!((parts.len(), last.part), (2, 2));
    for part in parts.clone() {
        a.ask(part).unwrap();
    }
    assert_eq!(s.entry(a.run, seq).state, State::Open);
    a.ask(Record { value: last, ..a.record(seq, "") }).unwrap();
    s.reopen();
    assert_eq!(s.store().payload(a.run, seq, Role::Value).unwrap(), Some(result));
    s.refuses("already_settled", parts[0].clone());
}

pub fn parts_that_a_dead_process_left_are_no_part_of_a_result(s: &Stage) {
    for (n, result) in [Payload::encode(b"short"), long(1, 2), long(2, 3)].into_iter().enumerate() {
        let key = format!("fetch {n}");
        let old = s.process("p").claim(s.run(&format!("r{n}")).create());
        let seq = old.begins(&key);
        let (stale, _) = keep(&old, seq, &long(4, 4));
        for part in stale.clone() {
            old.ask(part).unwrap();
        }
        old.process.dies();
        let new = s.process("next").claim(old.run);
        assert_eq!(new.begins(&key), seq);
        s.refuses("already_taken", stale[0].clone());
        let (parts, last) = keep(&new, seq, &result);
        for part in parts {
            new.ask(part).unwrap();
        }
        new.ask(Record { value: last, ..new.record(seq, "") }).unwrap();
        assert_eq!(s.store().payload(new.run, seq, Role::Value).unwrap(), Some(result));
    }
}

pub fn a_step_is_recorded_once(s: &Stage) {
    let a = agent(s);
    let seq = a.begins("fetch");
    a.ask(a.record(seq, "one")).unwrap();
    s.refuses("already_settled", a.record(seq, "two"));
    assert_eq!(value(s, a.run, seq), b"one");
}

pub fn a_step_of_a_dead_agent_is_recorded_by_its_own_process(s: &Stage) {
    let old = agent(s);
    let seq = old.begins("fetch");
    old.ends(Then::Restart);
    let new = old.process.claim(old.run);
    old.ask(old.record(seq, "in time")).unwrap();
    assert_eq!(new.ask(new.step("fetch")).unwrap(), Step::Done { seq });
}

pub fn a_failed_step_runs_again_as_a_new_entry(s: &Stage) {
    let a = agent(s);
    let first = a.begins("fetch");
    a.ask(Record { failed: true, ..a.record(first, "timeout") }).unwrap();
    assert_eq!(s.entry(a.run, first).state, State::Failed);
    let second = a.begins("fetch");
    assert_ne!(first, second);
    a.ask(a.record(second, "page")).unwrap();
    assert_eq!(a.ask(a.step("fetch")).unwrap(), Step::Done { seq: second });
}

pub fn tries_are_counted_over_deaths_until_the_step_is_given_up(s: &Stage) {
    let begun = |a: &Agent| match a.ask(BeginStep { retries: true, ..a.step("fetch") }).unwrap() {
        Step::Run { opening: Opening { seq, .. }, try_no, tries, .. } => (seq, (try_no, tries)),
        other => panic!("not run: {other:?}"),
    };
    let failed = |a: &Agent, seq, again| {
        a.ask(Record { failed: true, again, ..a.record(seq, "timeout") }).unwrap();
    };
    let first = agent(s);
    let (seq, tries) = begun(&first);
    assert_eq!(tries, (1, 1));
    failed(&first, seq, true);
    let (cut_off, tries) = begun(&first);
    assert_eq!(tries, (2, 2));
    first.process.dies();
    s.reopen();
    let second = s.process("second").claim(first.run);
    assert_eq!(begun(&second), (cut_off, (2, 2)), "a try that was cut off goes on");
    failed(&second, cut_off, true);
    // Between two tries.
    second.process.dies();
    let third = s.process("third").claim(first.run);
    let (seq, tries) = begun(&third);
    assert_eq!(tries, (3, 3));
    failed(&third, seq, false);
    let (_, tries) = begun(&third);
    assert_eq!(tries, (4, 1), "given up: who begins it anew has all tries");
}

fn resolved(a: &Agent, key: &str, failed: bool) -> ResolveStep {
    ResolveStep {
        run: a.run,
        scope: a.step(key).scope,
        key: key.into(),
        seen: Some(a.process.no),
        by: None,
        value: Payload::encode(b"said"),
        failed,
    }
}

pub fn a_person_says_what_came_of_a_step_in_doubt(s: &Stage) {
    let old = agent(s);
    let once = |a: &Agent, key| BeginStep { at_most_once: true, ..a.step(key) };
    let mut seqs = Vec::new();
    for key in ["done", "failed", "raised"] {
        let Step::Run { opening: Opening { seq, .. }, .. } = old.ask(once(&old, key)).unwrap() else {
            panic!("not run")
        };
        seqs.push(seq);
    }
    old.ask(Record { failed: true, ..old.record(seqs[2], "refused") }).unwrap();
    old.begins("plain");
    s.refuses("step_running", resolved(&old, "done", false));
    s.refuses("not_in_doubt", resolved(&old, "plain", false));
    s.refuses("unknown_step", resolved(&old, "other", false));
    s.refuses("already_taken", ResolveStep { seen: None, ..resolved(&old, "done", false) });
    old.process.dies();
    s.reopen();
    assert_eq!(s.ask(resolved(&old, "done", false)).unwrap(), seqs[0]);
    assert_eq!(s.ask(resolved(&old, "failed", true)).unwrap(), seqs[1]);
    let corrected = s.ask(resolved(&old, "raised", false)).unwrap();
    assert_ne!(corrected, seqs[2], "what it had recorded stays");
    for (seq, state) in [(seqs[0], State::Done), (seqs[1], State::Failed), (corrected, State::Done)] {
        let entry = s.entry(old.run, seq);
        assert_eq!((entry.state, entry.step.unwrap().resolved), (state, true));
        assert_eq!(value(s, old.run, seq), b"said");
    }
    assert_eq!(s.entry(old.run, seqs[2]).state, State::Failed);
    s.refuses("already_settled", resolved(&old, "done", true));
    let new = s.process("next").claim(old.run);
    assert_eq!(new.ask(once(&new, "done")).unwrap(), Step::Done { seq: seqs[0] });
    assert_eq!(new.ask(once(&new, "raised")).unwrap(), Step::Done { seq: corrected });
    let Step::Run { opening: Opening { seq, .. }, .. } = new.ask(once(&new, "failed")).unwrap() else {
        panic!("not run")
    };
    assert!(!s.entry(new.run, seq).step.unwrap().resolved);
    // The step's own process knows that it does not run the step any more.
    s.ask(ResolveStep { by: Some(new.process.no), ..resolved(&new, "failed", true) }).unwrap();
}

pub fn steps_are_found_by_scope_and_key(s: &Stage) {
    let a = agent(s);
    let seq = a.begins("fetch");
    a.ask(a.record(seq, "x")).unwrap();
    a.begins("other");
    a.within("item:1:try:1").begins("fetch");
}

pub fn only_an_open_step_can_be_recorded(s: &Stage) {
    let a = agent(s);
    s.refuses("unknown_entry", a.record(Seq(9), "x"));
    let call = a.call("x");
    s.refuses("unknown_entry", a.record(call, "x"));
}

pub fn a_finished_step_is_found_at_a_limit_and_a_new_one_is_refused(s: &Stage) {
    let a = s.process("p").claim(s.run("r").limit(Unit::Calls, 0).create());
    let seq = a.begins("fetch");
    a.ask(a.record(seq, "x")).unwrap();
    a.request("x").refused();
    assert_eq!(s.status(a.run), Status::Halted);
    assert_eq!(a.ask(a.step("fetch")).unwrap(), Step::Done { seq });
    s.refuses("run_halted", a.step("new"));
}

/// Bug: a step that had been cut off was begun again in a halted run.
/// Consequence: work went on after the limit, in agents that catch the refusal.
/// Cause: only steps without an entry were held against the run's status.
pub fn a_step_that_was_cut_off_is_not_begun_in_a_halted_run(s: &Stage) {
    let process = s.process("p");
    let old = process.claim(s.run("r").limit(Unit::Calls, 0).create());
    old.begins("fetch");
    old.ends(Then::Restart);
    let new = process.claim(old.run);
    new.request("x").refused();
    s.refuses("run_halted", new.step("fetch"));
}

pub fn a_result_and_the_state_it_changed_commit_together(s: &Stage) {
    let a = agent(s);
    let seq = a.begins("fetch");
    let changes = vec![crate::state::change("k", "v")];
    a.ask(Record { changes, ..a.record(seq, "x") }).unwrap();
    let item = s.store().state("ns", "agent", "k").unwrap().unwrap();
    assert_eq!((item.run, item.attempt, item.version), (Some(a.run), Some(a.attempt), 1));
}

pub fn a_result_whose_state_conflicts_is_not_recorded(s: &Stage) {
    let a = agent(s);
    let seq = a.begins("fetch");
    let stale = crate::state::expecting(crate::state::change("k", "v"), 3);
    s.refuses("conflict", Record { changes: vec![stale], ..a.record(seq, "x") });
    assert!(s.store().state("ns", "agent", "k").unwrap().is_none());
    a.ask(a.record(seq, "x")).unwrap();
}

pub fn five_mebibytes_are_kept_as_they_were(s: &Stage) {
    let a = agent(s);
    let big: Vec<u8> = (0..5 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let seq = a.begins("big");
    a.ask(Record { value: Payload::encode(&big), ..a.record(seq, "") }).unwrap();
    s.reopen();
    assert!(value(s, a.run, seq) == big);
}

pub fn steps_count_as_progress_when_they_are_done(s: &Stage) {
    let a = agent(s);
    let (one, two) = (a.begins("one"), a.begins("two"));
    a.ask(a.record(one, "x")).unwrap();
    a.ask(Record { failed: true, ..a.record(two, "y") }).unwrap();
    assert_eq!(s.row(a.run).closed, 1);
    let entries = s.journal(a.run);
    assert!(entries.iter().all(|e| e.kind == Kind::Step && e.closed_at.is_some()));
}

pub fn a_step_of_an_unknown_run_is_refused(s: &Stage) {
    let a = agent(s);
    let mut actor = a.actor();
    actor.run = RunNo(99);
    s.refuses("unknown_run", BeginStep { actor, ..a.step("x") });
}
