//! A run's creation and what moves its status.

use outlast_core::{
    engine::run::{
        end_attempt::Then,
        limits::Raise,
        start::Start,
        tell::{Tell, Word},
    },
    envelope::unit::{Limits, PerUnit, Unit},
    run::status::Status,
    words::id::{RunId, RunNo},
};

use crate::{agent::*, stage::Stage};

pub fn raising(run: RunNo) -> Raise {
    Raise { run, add: Limits::default(), set: Limits::default(), lift: PerUnit::default() }
}

fn add(run: RunNo, unit: Unit, amount: i64) -> Raise {
    let mut raise = raising(run);
    raise.add[unit] = Some(amount);
    raise
}

fn cancel(run: RunNo) -> Tell {
    Tell { run, word: Word::Cancel { reason: Some("no longer wanted".into()) } }
}

/// A run whose agent was refused its first call, and has its attempt open.
fn halted(s: &Stage) -> Agent {
    let agent = s.process("outlast run").claim(s.run("r").cost(FLOOR - 1).create());
    agent.request("too dear").refused();
    agent
}

pub fn a_run_is_created_once_and_keeps_its_first_limits(s: &Stage) {
    let run = s.run("r").cost(500).create();
    s.reopen();
    let again = s.ask(s.run("r").cost(900).start).unwrap();
    assert_eq!((again.run, again.created), (run, false));
    assert_eq!(s.envelope(run).limits[Unit::CostNanoUsd], Some(500));
    assert_eq!(s.store().run_no(&RunId::new("r").unwrap()).unwrap(), Some(run));
    assert_eq!(s.store().run_no(&RunId::new("other").unwrap()).unwrap(), None);
}

/// Bug: one line that was typed twice at once began two runs, with two budgets. Consequence: two agents did one work.
/// Cause: between the search for the line's run and the run's creation, another process created it.
pub fn a_start_that_has_not_seen_the_newest_run_of_its_command_begins_nothing(s: &Stage) {
    let begun_after = |id: &str, key: &str, seen: i64| {
        s.ask(Start { seen: Some(RunNo(seen)), command_key: Some(key.into()), ..s.run(id).start })
    };
    let first = begun_after("a", "k", 0).unwrap().run;
    // Runs of other commands may begin between the search and the start.
    begun_after("b", "other", 0).unwrap();
    s.run("c").create();
    let second = begun_after("d", "k", first.0).unwrap().run;
    for _ in ["before", "after"] {
        let start = Start { seen: Some(first), command_key: Some("k".into()), ..s.run("e").start };
        s.refuses("newer_run", start);
        s.reopen();
    }
    assert_eq!(begun_after("d", "k", first.0).unwrap().run, second, "a run that is there is found");
    assert!(begun_after("e", "k", second.0).unwrap().created);
}

pub fn a_run_with_a_negative_limit_or_an_unknown_parent_is_not_created(s: &Stage) {
    s.refuses("bad_limit", s.run("r").cost(-1).start);
    s.refuses("unknown_run", s.run("r").under(RunNo(99)).start);
}

pub fn a_created_run_is_interrupted_until_an_attempt_begins(s: &Stage) {
    let run = s.run("r").create();
    assert_eq!((s.status(run), s.row(run).began_at), (Status::Interrupted, None));
    s.process("p").claim(run);
    assert_eq!(s.status(run), Status::Running);
    assert!(s.row(run).began_at.is_some());
}

pub fn an_ended_attempt_leaves_its_run_as_its_driver_says(s: &Stage) {
    let cases = [
        (Then::Restart, Status::Running),
        (Then::Sleep { until: outlast_core::words::id::Micros(i64::MAX), why: None }, Status::Sleeping),
        (Then::Interrupt { by_person: false }, Status::Interrupted),
        (Then::Complete, Status::Completed),
        (Then::Fail("crash loop".into()), Status::Failed),
    ];
    for (then, want) in cases {
        let run = s.run(want.name()).create();
        let agent = s.process("p").claim(run);
        assert_eq!(agent.ends(then.clone()), want);
        let row = s.row(run);
        assert_eq!((row.status, row.ended_at.is_some()), (want, want.is_ended()), "{then:?}");
        assert_eq!(row.error.as_deref(), (want == Status::Failed).then_some("crash loop"));
    }
}

pub fn ending_an_attempt_twice_changes_nothing(s: &Stage) {
    let run = s.run("r").create();
    let agent = s.process("p").claim(run);
    agent.ends(Then::Complete);
    let before = crate::stage::everything(&*s.store());
    assert_eq!(agent.ends(Then::Fail("late".into())), Status::Completed);
    assert_eq!(crate::stage::everything(&*s.store()), before);
}

pub fn a_completed_run_takes_no_new_attempt_and_a_failed_one_does(s: &Stage) {
    let process = s.process("p");
    let (done, failed) = (s.run("done").create(), s.run("failed").create());
    process.claim(done).ends(Then::Complete);
    process.claim(failed).ends(Then::Fail("why".into()));
    s.refuses("run_ended", process.claiming(done));
    s.refuses("run_ended", process.entering(done, None));
    process.claim(failed);
    let row = s.row(failed);
    assert_eq!((row.status, row.error, row.ended_at), (Status::Running, None, None));
}

pub fn a_halted_run_keeps_its_first_reason_and_takes_no_attempt(s: &Stage) {
    let agent = halted(s);
    assert_eq!(s.halt(agent.run).as_deref(), Some("dollar_budget_exceeded"));
    assert_eq!(agent.request("small").bound(bound(1, 1)).refused().code, "dollar_budget_exceeded");
    agent.ends(Then::Restart);
    s.refuses("run_halted", agent.process.claiming(agent.run));
}

pub fn raising_the_tripped_limit_lets_the_run_go_on(s: &Stage) {
    let agent = halted(s);
    assert_eq!(s.ask(add(agent.run, Unit::CostNanoUsd, 1000)).unwrap(), Status::Running);
    assert_eq!(s.halt(agent.run), None);
    agent.call("too dear");
}

pub fn raising_after_the_attempt_ended_leaves_the_run_interrupted(s: &Stage) {
    let agent = halted(s);
    assert_eq!(agent.ends(Then::Interrupt { by_person: false }), Status::Halted);
    assert_eq!(s.ask(add(agent.run, Unit::CostNanoUsd, 1000)).unwrap(), Status::Interrupted);
    agent.process.claim(agent.run).call("too dear");
}

pub fn raising_another_limit_leaves_the_run_halted(s: &Stage) {
    let run = s.run("r").cost(FLOOR - 1).limit(Unit::Loops, 5).create();
    s.process("p").claim(run).request("too dear").refused();
    assert_eq!(s.ask(add(run, Unit::Loops, 5)).unwrap(), Status::Halted);
    assert_eq!(s.envelope(run).limits[Unit::Loops], Some(10));
}

pub fn a_limit_can_be_set_and_lifted(s: &Stage) {
    let agent = halted(s);
    let mut raise = raising(agent.run);
    raise.set[Unit::CostNanoUsd] = Some(10);
    assert_eq!(s.ask(raise).unwrap(), Status::Halted);
    // Bug: the run was told with the amounts of its halt after its limit had been lowered.
    let halt = s.store().run(agent.run).unwrap().unwrap().run.halt.unwrap();
    assert_eq!((halt.needs, halt.free, halt.limit), (FLOOR, 10, 10));
    let mut raise = raising(agent.run);
    raise.lift[Unit::CostNanoUsd] = true;
    assert_eq!(s.ask(raise).unwrap(), Status::Running);
    assert_eq!(s.envelope(agent.run).limits[Unit::CostNanoUsd], None);
}

pub fn a_bad_raise_changes_no_limit(s: &Stage) {
    let run = s.run("r").cost(100).create();
    let mut both = add(run, Unit::CostNanoUsd, 50);
    both.add[Unit::Tokens] = Some(5);
    s.refuses("bad_limit", both);
    s.refuses("bad_limit", add(run, Unit::CostNanoUsd, -101));
    s.refuses("unknown_run", raising(RunNo(99)));
}

pub fn a_cancelled_run_takes_no_calls_and_says_why(s: &Stage) {
    let agent = s.process("p").claim(s.run("r").create());
    let open = agent.call("in flight");
    assert_eq!(s.ask(cancel(agent.run)).unwrap(), Status::Cancelled);
    assert_eq!(s.row(agent.run).error.as_deref(), Some("no longer wanted"));
    s.refuses("run_ended", agent.request("new").admit);
    agent.done(open, 10);
    assert_eq!(agent.ends(Then::Interrupt { by_person: false }), Status::Cancelled);
    assert_eq!(s.spent(agent.run, Unit::CostNanoUsd), 10);
}

pub fn cancelling_a_halted_run_leaves_it_halted(s: &Stage) {
    let agent = halted(s);
    assert_eq!(s.ask(cancel(agent.run)).unwrap(), Status::Halted);
    assert_eq!(s.row(agent.run).error, None);
}

/// Bug: a completed run still named the limit that had halted it.
/// Consequence: a supervisor that read the pulse stopped an agent whose run was over as one at its limit.
/// Cause: only a raise cleared the reason, and completing also leaves `halted`.
pub fn completing_a_halted_run_clears_its_reason(s: &Stage) {
    let agent = halted(s);
    assert_eq!(agent.ends(Then::Complete), Status::Completed);
    assert_eq!(s.halt(agent.run), None);
}

pub fn a_run_without_a_driver_is_stopped_at_once(s: &Stage) {
    let process = s.process("outlast serve");
    let run = s.run("r").create();
    let agent = process.enter(run, Some("first"));
    assert_eq!(s.ask(Tell { run, word: Word::Stop }).unwrap(), Status::Interrupted);
    s.refuses("label_ended", agent.request("x").admit);
    s.refuses("label_ended", process.entering(run, Some("first")));
}

pub fn a_driven_run_is_asked_to_stop_and_its_driver_hears_it(s: &Stage) {
    let agent = s.process("p").claim(s.run("r").create());
    assert_eq!(s.ask(Tell { run: agent.run, word: Word::Stop }).unwrap(), Status::Running);
    assert!(agent.pulse(0).stop_requested);
    agent.call("still allowed until the driver has stopped it");
    assert_eq!(agent.ends(Then::Interrupt { by_person: false }), Status::Interrupted);
    assert!(s.row(agent.run).stop_requested, "so that `resume --all` leaves it alone");
    assert!(!agent.process.claim(agent.run).pulse(0).stop_requested);
}

pub fn a_run_remembers_that_a_person_stopped_it(s: &Stage) {
    let process = s.process("p");
    for by_person in [true, false] {
        let run = s.run(&format!("by-person-{by_person}")).create();
        process.claim(run).ends(Then::Interrupt { by_person });
        assert_eq!((s.status(run), s.row(run).stop_requested), (Status::Interrupted, by_person));
        process.claim(run);
        assert!(!s.row(run).stop_requested);
    }
}

/// Bug: a person's stop of one worker was forgotten while another had an attempt open.
/// Consequence: the others went on, and `resume --all` took the run up again.
/// Cause: the attempt's end left early, before the request was noted.
pub fn a_stop_by_a_person_is_heard_by_the_other_workers(s: &Stage) {
    let process = s.process("p");
    let driver = process.claim(s.run("r").create());
    let mut claim = process.claiming(driver.run);
    claim.slot = outlast_core::words::id::Slot(1);
    let worker = process.claim_by(claim);
    assert_eq!(driver.ends(Then::Interrupt { by_person: true }), Status::Running);
    assert!(worker.pulse(0).stop_requested);
    assert_eq!(worker.ends(Then::Interrupt { by_person: false }), Status::Interrupted);
    assert!(s.row(driver.run).stop_requested);
}

pub fn a_stop_asked_for_before_its_drivers_death_is_remembered(s: &Stage) {
    let agent = s.process("p").claim(s.run("r").create());
    s.ask(Tell { run: agent.run, word: Word::Stop }).unwrap();
    agent.process.dies();
    assert_eq!((s.status(agent.run), s.row(agent.run).stop_requested), (Status::Interrupted, true));
}

/// Bug: a stop asked for while the agent was dying was forgotten.
/// Consequence: `outlast stop` said yes, and the run went on.
/// Cause: the claim of the next attempt cleared the request, also where no stop had happened since.
pub fn a_stop_asked_for_before_a_restart_is_heard_after_it(s: &Stage) {
    let agent = s.process("p").claim(s.run("r").create());
    s.ask(Tell { run: agent.run, word: Word::Stop }).unwrap();
    agent.ends(Then::Restart);
    assert!(agent.process.claim(agent.run).pulse(0).stop_requested);
}

/// Bug: a stop asked for during the supervisor's backoff was forgotten.
/// Consequence: the run was interrupted for a second, and then restarted.
/// Cause: only an open attempt counted as driven, and between two attempts there is none.
pub fn a_stop_asked_for_between_two_attempts_is_heard(s: &Stage) {
    let agent = s.process("p").claim(s.run("r").create());
    agent.ends(Then::Restart);
    assert_eq!(s.ask(Tell { run: agent.run, word: Word::Stop }).unwrap(), Status::Running);
    assert!(agent.process.claim(agent.run).pulse(0).stop_requested);
}

pub fn a_person_completes_a_run(s: &Stage) {
    let run = s.run("r").create();
    s.process("p").enter(run, None);
    assert_eq!(s.ask(Tell { run, word: Word::Complete }).unwrap(), Status::Completed);
    assert_eq!(s.ask(Tell { run, word: Word::Complete }).unwrap(), Status::Completed);
    s.refuses("run_ended", Tell { run, word: Word::Stop });
}
