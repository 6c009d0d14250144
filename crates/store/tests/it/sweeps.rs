//! The verdict on a dead process, and what is swept after it.

use outlast_core::{
    engine::run::{
        end_attempt::Then,
        process::{Active, DeclareDead, Renew, Swept},
    },
    envelope::unit::Unit,
    journal::State,
    run::{InDoubt, instance::Life, status::Status},
    words::id::{AttemptNo, InstanceNo, RunId, RunNo, Slot},
};

use crate::{agent::*, stage::Stage};

fn verdict(instance: InstanceNo, heartbeat_seen: i64) -> DeclareDead {
    DeclareDead { instance, heartbeat_seen, left: false, heir: None }
}

fn is_open(s: &Stage, a: &Agent) -> bool {
    s.store().attempts(a.run).unwrap().iter().any(|x| x.no == a.attempt && x.is_open())
}

pub fn a_dead_drivers_calls_are_unknown_and_its_run_is_interrupted(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let (one, two, paid) = (a.call("one"), a.call("two"), a.buys("paid", 5));
    s.reopen();
    let swept = a.process.dies();
    let interrupted = vec![RunId::new("r").unwrap()];
    assert_eq!(swept, Swept { unknown_calls: 2, ended_attempts: 1, interrupted });
    assert_eq!(
        [one, two, paid].map(|x| s.entry(a.run, x).state),
        [State::Unknown, State::Unknown, State::Done]
    );
    assert_eq!((s.status(a.run), is_open(s, &a)), (Status::Interrupted, false));
    let attempt = &s.store().attempts(a.run).unwrap()[0];
    assert!(attempt.died() && attempt.exit.as_ref().is_some_and(|e| e.lost));
    assert_eq!(s.money(a.run), (2 * FULL, 2 * FULL, 5));
}

pub fn a_verdict_is_given_once(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    a.call("x");
    a.process.dies();
    let before = crate::stage::everything(&*s.store());
    assert_eq!(a.process.dies(), Swept::default());
    assert_eq!(crate::stage::everything(&*s.store()), before);
}

pub fn a_verdict_on_a_heartbeat_that_moved_writes_nothing(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    a.call("x");
    assert_eq!(s.store().instance(a.process.no).unwrap().unwrap().heartbeat, 0);
    a.pulse(0);
    s.refuses("heartbeat_moved", verdict(a.process.no, 0));
    a.call("y");
}

pub fn a_verdict_on_nobody_is_nothing(s: &Stage) {
    assert_eq!(s.ask(verdict(InstanceNo(99), 0)).unwrap(), Swept::default());
}

pub fn a_process_that_says_goodbye_is_not_dead_but_left(s: &Stage) {
    let (dead, left) = (s.process("dead"), s.process("left"));
    dead.dies();
    left.leaves();
    for (process, life) in [(dead, Life::Dead), (left, Life::Left)] {
        assert_eq!(s.store().instance(process.no).unwrap().unwrap().life, life);
    }
    assert_eq!(s.store().live_instances().unwrap(), []);
}

pub fn header_attempts_survive_a_servers_death(s: &Stage) {
    let (labelled, implicit) = (s.run("labelled").create(), s.run("implicit").create());
    let server = s.process("outlast serve");
    let (a, b) = (server.enter(labelled, Some("a")), server.enter(implicit, None));
    let (one, two) = (a.call("x"), b.call("x"));
    let swept = server.dies();
    assert_eq!(swept, Swept { unknown_calls: 2, ..Swept::default() });
    let next = s.process("outlast serve");
    for (agent, label, lost) in [(a, Some("a"), one), (b, None, two)] {
        assert_eq!((s.status(agent.run), is_open(s, &agent)), (Status::Running, true));
        let again = next.enter(agent.run, label);
        assert_eq!(again.attempt, agent.attempt);
        let retry = again.call("x");
        assert_eq!(s.entry(agent.run, retry).call.unwrap().retry_of, Some(lost));
    }
}

pub fn other_processes_keep_what_is_theirs(s: &Stage) {
    let (one, two) = (s.process("one"), s.process("two"));
    let a = one.claim(s.run("a").create());
    let b = two.claim(s.run("b").create());
    let (x, y) = (a.call("x"), b.call("y"));
    one.dies();
    assert_eq!((s.entry(a.run, x).state, s.entry(b.run, y).state), (State::Unknown, State::Open));
    assert_eq!((s.status(a.run), s.status(b.run)), (Status::Interrupted, Status::Running));
}

pub fn a_run_with_another_open_attempt_goes_on(s: &Stage) {
    let (one, two) = (s.process("one"), s.process("two"));
    let a = one.claim(s.run("r").create());
    let mut claim = two.claiming(a.run);
    claim.slot = Slot(1);
    let b = two.claim_by(claim);
    assert_eq!(one.dies().interrupted, []);
    assert_eq!(s.status(a.run), Status::Running);
    b.call("x");
    two.dies();
    assert_eq!(s.status(a.run), Status::Interrupted);
}

pub fn a_death_between_two_attempts_interrupts_the_run(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    a.ends(Then::Restart);
    assert_eq!(a.process.dies().interrupted.len(), 1);
    assert_eq!(s.status(a.run), Status::Interrupted);
}

pub fn a_halted_or_ended_run_stays_so(s: &Stage) {
    let process = s.process("p");
    let halted = process.claim(s.run("halted").limit(Unit::Calls, 0).create());
    halted.request("x").refused();
    let done = process.claim(s.run("done").create());
    done.ends(Then::Complete);
    assert_eq!(process.dies().interrupted, []);
    assert_eq!((s.status(halted.run), s.status(done.run)), (Status::Halted, Status::Completed));
}

pub fn the_late_answer_of_a_process_declared_dead_is_recorded(s: &Stage) {
    let a = s.process("p").claim(s.run("r").cost(FULL).create());
    let seq = a.call("x");
    a.process.dies();
    assert_eq!(s.money(a.run), (FULL, FULL, 0));
    a.done(seq, 120);
    assert_eq!((s.entry(a.run, seq).state, s.money(a.run)), (State::Done, (0, 0, 120)));
    let next = s.process("next").claim(a.run);
    assert_eq!(next.request("x").replays(), seq);
    s.refuses("already_settled", a.settle(seq, outlast_core::engine::call::settle::Close::Void));
}

pub fn a_swept_call_under_refund_holds_nothing(s: &Stage) {
    let a = s.process("p").claim(s.run("r").cost(FULL).in_doubt(InDoubt::Refund).create());
    a.call("x");
    a.process.dies();
    assert_eq!((s.money(a.run), s.spent(a.run, Unit::Calls)), ((0, 0, 0), 1));
}

pub fn an_open_step_stays_open(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let seq = a.begins("step");
    a.process.dies();
    assert_eq!(s.entry(a.run, seq).state, State::Open);
}

pub fn a_childs_sweep_marks_the_doubt_in_its_parent(s: &Stage) {
    let parent = s.run("parent").create();
    let a = s.process("p").claim(s.run("child").under(parent).create());
    a.call("x");
    a.process.dies();
    assert_eq!(s.money(parent), (FULL, FULL, 0));
}

pub fn many_runs_of_one_process_are_swept_together(s: &Stage) {
    let server = s.process("p");
    let agents: Vec<Agent> = (0..20).map(|i| server.claim(s.run(&format!("r{i}")).create())).collect();
    for a in &agents {
        a.call("x");
    }
    let swept = server.dies();
    assert_eq!((swept.unknown_calls, swept.ended_attempts, swept.interrupted.len()), (20, 20, 20));
    assert!(agents.iter().all(|a| s.status(a.run) == Status::Interrupted));
}

pub fn an_attempt_ends_at_its_last_heartbeat(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    s.advance_ms(3000);
    a.pulse(3000);
    let seen = s.store().now().unwrap();
    s.advance_ms(60_000);
    a.process.dies();
    assert_eq!(s.store().attempts(a.run).unwrap()[0].ended_at, Some(seen));
}

pub fn renewals_move_the_heartbeat(s: &Stage) {
    let process = s.process("p");
    for beat in 1..=3 {
        process.renews(Vec::new());
        assert_eq!(s.store().instance(process.no).unwrap().unwrap().heartbeat, beat);
    }
    let (run, attempt) = (RunNo(99), AttemptNo(1));
    s.refuses("unknown_run", process.renewal(vec![Active { run, attempt, ms: 5 }]));
}

/// Bug: two machines that were cloned with a process in memory both acted under that process's number.
/// Consequence: both drove its runs, and neither was ever fenced.
/// Cause: a renewal added one to whatever heartbeat it found.
pub fn of_two_clones_of_a_process_the_later_one_is_fenced(s: &Stage) {
    let process = s.process("p");
    process.renews(Vec::new());
    let (one, two) = (process.renewal(Vec::new()), process.renewal(Vec::new()));
    let [one, two] = [(one, 71), (two, 72)].map(|(renewal, next)| Renew { next, ..renewal });
    process.ask(one.clone()).unwrap();
    assert_eq!(process.ask(two).unwrap_err().code(), "instance_dead");
    // The answer of a renewal may be lost: sent again, it is still that process's own.
    process.ask(one).unwrap();
    assert_eq!(s.store().instance(process.no).unwrap().unwrap().heartbeat, 71);
}

pub fn a_renewal_goes_on_from_any_heartbeat_that_its_process_wrote(s: &Stage) {
    let process = s.process("p");
    process.renews(Vec::new());
    // A crash of the database lost the two renewals after this one.
    process.ask(Renew { own: vec![1, 2, 3], next: 4, ..process.renewal(Vec::new()) }).unwrap();
    assert_eq!(s.store().instance(process.no).unwrap().unwrap().heartbeat, 4);
}
