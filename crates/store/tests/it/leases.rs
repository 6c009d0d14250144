//! Right to act for a run: leases, fences, attempts, labels.

use outlast_core::{
    engine::{
        checkpoint::{Checkpoint, Name},
        op::Actor,
        run::{
            claim::{Adopt, Claim, Claimed},
            end_attempt::{EndAttempt, Then},
        },
        state::put::Put,
    },
    journal::payload::Payload,
    run::status::Status,
    words::id::{AttemptNo, RunNo, Slot},
};

use crate::{
    agent::*,
    stage::{Process, Stage},
};

fn worker(claim: Claim, slot: i64) -> Claim {
    Claim { slot: Slot(slot), ..claim }
}

fn open_attempts(s: &Stage, run: RunNo) -> Vec<i64> {
    let attempts = s.store().attempts(run).unwrap();
    attempts.iter().filter(|a| a.is_open()).map(|a| a.no.0).collect()
}

pub fn a_live_lease_is_held_against_another_process(s: &Stage) {
    let run = s.run("r").create();
    let (one, two) = (s.process("one"), s.process("two"));
    one.claim(run);
    s.refuses("run_held", two.claiming(run));
    let error = two.ask(two.claiming(run)).unwrap_err();
    assert!(error.to_string().contains("one (pid 42"), "{error}");
    s.refuses("run_held", two.entering(run, Some("label")));
    s.refuses("run_held", two.entering(run, None));
}

pub fn a_lease_is_held_between_two_attempts(s: &Stage) {
    let run = s.run("r").create();
    let (one, two) = (s.process("one"), s.process("two"));
    one.claim(run).ends(Then::Restart);
    s.refuses("run_held", two.claiming(run));
}

/// Bug: a header caller got into a run during its supervisor's backoff.
/// Consequence: two drivers of one run; the caller's attempt was ended under it.
/// Cause: a header call asked for an open attempt, a claim for a live lease; now both ask one rule.
pub fn a_header_caller_stays_out_between_two_attempts(s: &Stage) {
    let run = s.run("r").create();
    s.process("one").claim(run).ends(Then::Restart);
    s.refuses("run_held", s.process("two").entering(run, Some("label")));
}

/// Bug: a run that a living process had let go could not be taken up by another.
/// Consequence: in a web server's workers, a run interrupted in one was lost to the others until it restarted.
/// Cause: a lease lives while its instance does, whether or not the run goes on there.
pub fn a_run_at_rest_can_be_taken_up_by_another_process(s: &Stage) {
    let (one, two) = (s.process("one"), s.process("two"));
    for (id, then) in
        [("interrupted", Then::Interrupt { by_person: false }), ("failed", Then::Fail("why".into()))]
    {
        let run = s.run(id).create();
        let old = one.claim(run);
        old.ends(then);
        let new = two.claim(run);
        assert!(new.fence > old.fence);
        s.refuses("lease_lost", old.request("x").admit);
        s.refuses("run_held", one.claiming(run));
    }
}

pub fn a_run_of_a_dead_process_can_be_claimed_under_a_higher_fence(s: &Stage) {
    let run = s.run("r").create();
    let (one, two) = (s.process("one"), s.process("two"));
    let old = one.claim(run);
    one.dies();
    let new = two.claim(run);
    assert!(new.fence > old.fence && new.attempt > old.attempt);
}

pub fn a_process_that_left_holds_nothing(s: &Stage) {
    let run = s.run("r").create();
    let one = s.process("one");
    one.claim(run);
    one.leaves();
    s.process("two").claim(run);
}

pub fn a_new_attempt_ends_the_one_before_it_in_its_slot(s: &Stage) {
    let run = s.run("r").create();
    let process = s.process("p");
    let driver = process.claim(run);
    let worker = process.claim_by(worker(process.claiming(run), 1));
    assert_eq!(open_attempts(s, run), [driver.attempt.0, worker.attempt.0]);
    let next = process.claim(run);
    assert_eq!(open_attempts(s, run), [worker.attempt.0, next.attempt.0]);
    let ended = &s.store().attempts(run).unwrap()[0];
    assert!(ended.exit.as_ref().is_some_and(|e| e.lost));
}

pub fn slots_are_held_one_by_one(s: &Stage) {
    let run = s.run("r").create();
    let (one, two) = (s.process("one"), s.process("two"));
    one.claim(run);
    let other = two.claim_by(worker(two.claiming(run), 1));
    s.refuses("run_held", worker(one.claiming(run), 1));
    other.call("from the second slot");
}

pub fn a_stale_attempt_opens_nothing(s: &Stage) {
    let process = s.process("p");
    let old = process.claim(s.run("r").create());
    process.claim(old.run);
    s.refuses("lease_lost", old.request("x").admit);
    s.refuses("lease_lost", old.step("step"));
    s.refuses("lease_lost", old.turn(Some("turn")));
    let (actor, slot) = (old.actor(), old.slot);
    s.refuses(
        "lease_lost",
        Put { actor: Some((actor, slot)), ..crate::state::put(vec![crate::state::change("k", "v")]) },
    );
    let value = Payload::encode(b"v");
    s.refuses("lease_lost", Checkpoint { actor, slot, name: Name::default(), value });
}

pub fn a_dead_process_opens_nothing(s: &Stage) {
    let process = s.process("p");
    let run = s.run("r").create();
    let agent = process.claim(run);
    process.dies();
    s.refuses("instance_dead", agent.request("x").admit);
    s.refuses("instance_dead", process.claiming(run));
    s.refuses("instance_dead", process.entering(run, None));
    s.refuses("instance_dead", agent.renewal(0));
}

pub fn a_stale_attempt_closes_what_it_opened(s: &Stage) {
    let process = s.process("p");
    let old = process.claim(s.run("r").create());
    let call = old.call("paid");
    old.ends(Then::Restart);
    let new = process.claim(old.run);
    old.done(call, 70);
    assert_eq!(new.request("paid").replays(), call);
}

pub fn only_its_own_process_closes_a_call(s: &Stage) {
    let agent = s.process("one").claim(s.run("r").create());
    let call = agent.call("x");
    let mut other = agent.settle(call, outlast_core::engine::call::settle::Close::Void);
    other.opening.instance = s.process("two").no;
    s.refuses("already_taken", other);
    agent.void(call);
}

pub fn only_its_own_process_ends_an_attempt(s: &Stage) {
    let agent = s.process("one").claim(s.run("r").create());
    let other = s.process("two").no;
    s.refuses("lease_lost", EndAttempt { instance: other, ..agent.ending(Then::Complete) });
    s.refuses("lease_lost", EndAttempt { attempt: AttemptNo(7), ..agent.ending(Then::Complete) });
}

pub fn another_process_may_adopt_an_attempt(s: &Stage) {
    let agent = s.process("supervisor").claim(s.run("r").create());
    let adopted = Agent { process: s.process("agent"), ..agent.clone() };
    let call = adopted.call("x");
    adopted.done(call, 5);
    assert_eq!(s.spent(agent.run, outlast_core::envelope::unit::Unit::CostNanoUsd), 5);
}

pub fn one_living_process_at_a_time_adopts_an_attempt(s: &Stage) {
    let agent = s.process("supervisor").claim(s.run("r").create());
    let (one, two) = (s.process("one"), s.process("two"));
    let adopting = |p: &Process| Adopt { actor: Actor { instance: p.no, ..agent.actor() } };
    one.ask(adopting(&one)).unwrap();
    one.ask(adopting(&one)).unwrap();
    s.refuses("run_held", adopting(&two));
    one.dies();
    // The attempt is its supervisor's: it outlives who adopted it.
    assert_eq!(open_attempts(s, agent.run), [agent.attempt.0]);
    assert_eq!(s.status(agent.run), Status::Running);
    two.ask(adopting(&two)).unwrap();
}

pub fn an_attempt_that_is_over_or_has_no_driver_is_not_adopted(s: &Stage) {
    let supervisor = s.process("supervisor");
    let old = supervisor.claim(s.run("r").create());
    let one = s.process("one");
    let adopting = |actor: Actor| Adopt { actor: Actor { instance: one.no, ..actor } };
    one.ask(adopting(old.actor())).unwrap();
    let new = supervisor.claim(old.run);
    s.refuses("lease_lost", adopting(old.actor()));
    // A new attempt is free for whoever comes first.
    s.process("two").ask(Adopt { actor: Actor { instance: one.no, ..new.actor() } }).unwrap();
    let header = supervisor.enter(s.run("header").create(), Some("label"));
    s.refuses("lease_lost", adopting(header.actor()));
}

pub fn a_label_names_one_attempt_for_ever(s: &Stage) {
    let run = s.run("r").create();
    let (one, two) = (s.process("one"), s.process("two"));
    let first = one.enter(run, Some("a"));
    assert_eq!(two.enter(run, Some("a")).attempt, first.attempt);
    let second = one.enter(run, Some("b"));
    assert_ne!(second.attempt, first.attempt);
    s.refuses("label_ended", one.entering(run, Some("a")));
    s.refuses("label_ended", first.request("x").admit);
    second.call("x");
}

/// Bug: a label could be given to two attempts, when a claim was one of them.
/// Consequence: a restarted header caller went on under a supervised attempt's label, and a database that
/// keeps labels unique failed a whole group of operations.
/// Cause: a claim never asked for its label, and a header caller asked for other header attempts only.
pub fn a_label_is_unique_over_claims_and_header_callers(s: &Stage) {
    let run = s.run("r").create();
    let process = s.process("p");
    let labelled = |label: &str| Claim { label: Some(label.into()), ..process.claiming(run) };
    process.claim_by(labelled("a")).ends(Then::Interrupt { by_person: false });
    s.refuses("label_ended", process.entering(run, Some("a")));
    s.refuses("label_ended", labelled("a"));
    process.enter(run, Some("b"));
    s.refuses("label_ended", labelled("b"));
    process.claim_by(worker(labelled("c"), 1)).ends(Then::Interrupt { by_person: false });
    s.refuses("label_ended", process.entering(run, Some("c")));
}

pub fn header_callers_without_a_label_share_one_attempt(s: &Stage) {
    let run = s.run("r").create();
    let (one, two) = (s.process("one"), s.process("two"));
    let first = one.enter(run, None);
    assert_eq!(first.slot, Slot::IMPLICIT);
    one.dies();
    s.reopen();
    assert_eq!(two.enter(run, None).attempt, first.attempt);
}

/// Bug: the attempt of header callers without a label outlived a supervisor's claim.
/// Consequence: after a death or Ctrl-C the run stayed `running` with nobody in it, and was never resumed.
/// Cause: that attempt has a slot of its own, which no claim ended.
pub fn a_claim_ends_the_attempt_of_header_callers(s: &Stage) {
    let run = s.run("r").create();
    let implicit = s.process("outlast serve").enter(run, None);
    let driver = s.process("outlast run").claim(run);
    assert_eq!(open_attempts(s, run), [driver.attempt.0]);
    s.refuses("lease_lost", implicit.request("x").admit);
    driver.process.dies();
    assert_eq!(s.status(run), Status::Interrupted);
}

/// Bug: one worker's stop interrupted the whole run.
/// Consequence: its siblings' next calls were refused as `not_running`.
/// Cause: ending an attempt moved the status without asking whether another attempt was open.
pub fn a_run_is_interrupted_when_its_last_attempt_is_gone(s: &Stage) {
    let process = s.process("p");
    let run = s.run("r").create();
    let one = process.claim_by(worker(process.claiming(run), 1));
    let two = process.claim_by(worker(process.claiming(run), 2));
    assert_eq!(one.ends(Then::Interrupt { by_person: false }), Status::Running);
    two.call("goes on");
    assert_eq!(two.ends(Then::Interrupt { by_person: false }), Status::Interrupted);
}

pub fn an_interrupted_run_takes_no_calls_of_a_live_attempt(s: &Stage) {
    let process = s.process("p");
    let agent = process.claim(s.run("r").create());
    agent.ends(Then::Interrupt { by_person: false });
    s.refuses("lease_lost", agent.request("x").admit);
}

pub fn a_claim_says_how_many_answers_wait_for_it(s: &Stage) {
    let process = s.process("p");
    let agent = process.claim(s.run("r").create());
    agent.buys("one", 1);
    agent.buys("two", 1);
    agent.ends(Then::Restart);
    let Claimed::Attempt { answers, iteration, .. } = s.ask(process.claiming(agent.run)).unwrap() else {
        panic!("refused")
    };
    assert_eq!((answers, iteration), (2, 0));
    let fresh = Claim { fresh: true, ..process.claiming(agent.run) };
    let Claimed::Attempt { answers, iteration, .. } = s.ask(fresh).unwrap() else { panic!("refused") };
    assert_eq!((answers, iteration), (0, 1));
}
