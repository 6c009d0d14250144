//! Sleep: a run at its provider's usage limit, and who wakes it.

use outlast_core::{
    engine::run::{
        end_attempt::Then,
        limits::Halt,
        pause::Hold,
        tell::{Tell, Word},
    },
    envelope::{Evidence, Refusal, unit::Unit},
    events::{Event, EventQuery, Kind},
    run::{Command, Prices, Spec, Unpriced, status::Status},
    words::id::{Micros, RunNo, Seq},
};

use crate::{agent::*, stage::Process, stage::Stage};

const T: Micros = Micros(1_900_000_000_000_000);

/// A run that sleeps until `T`, and the process that waits to wake it.
fn asleep(s: &Stage) -> (RunNo, Process) {
    let agent = s.process("p").claim(s.run("r").create());
    assert_eq!(agent.ends(Then::Sleep { until: T, why: None }), Status::Sleeping);
    (agent.run, agent.process)
}

fn hold(run: RunNo, p: &Process) -> Hold {
    Hold { run, instance: p.no }
}

fn told(s: &Stage, run: RunNo, word: Word) -> Status {
    s.ask(Tell { run, word }).unwrap()
}

pub fn a_run_sleeps_until_its_time_and_then_begins_without_a_restart(s: &Stage) {
    let (run, p) = asleep(s);
    s.reopen();
    assert_eq!((s.status(run), s.row(run).wake_at), (Status::Sleeping, Some(T)));
    let again = p.claim(run);
    assert_eq!((s.status(run), s.row(run).wake_at), (Status::Running, None));
    assert_eq!((s.spent(run, Unit::Restarts), again.iteration), (0, 0));
}

pub fn a_sleeping_run_has_one_process_that_wakes_it(s: &Stage) {
    let (run, p) = asleep(s);
    let other = s.process("other");
    s.refuses("run_held", hold(run, &other));
    s.refuses("run_held", other.claiming(run));
    let before = s.row(run).fence;
    assert_eq!(p.ask(hold(run, &p)).unwrap(), Some(T));
    assert_eq!(s.row(run).fence, before, "its own lease is kept as it is");
}

pub fn a_sleeping_run_of_a_dead_process_is_interrupted_and_sleeps_on_for_the_next(s: &Stage) {
    let (run, p) = asleep(s);
    p.dies();
    assert_eq!((s.status(run), s.row(run).wake_at), (Status::Interrupted, Some(T)), "nobody drives it");
    let (first, second) = (s.process("first"), s.process("second"));
    assert_eq!(first.ask(hold(run, &first)).unwrap(), Some(T));
    assert_eq!(s.status(run), Status::Sleeping);
    s.refuses("run_held", hold(run, &second));
    s.refuses("run_held", second.claiming(run));
    assert_eq!(s.store().attempts(run).unwrap().len(), 1, "no attempt was opened meanwhile");
    first.leaves();
    assert_eq!(second.ask(hold(run, &second)).unwrap(), Some(T));
    second.claim(run);
    assert_eq!(second.ask(hold(run, &second)).unwrap(), None, "it is awake");
}

pub fn a_person_wakes_a_run(s: &Stage) {
    let (run, p) = asleep(s);
    // The run's supervisor starts the next attempt.
    assert_eq!(told(s, run, Word::Wake), Status::Running);
    assert_eq!(s.row(run).wake_at, None);
    let agent = p.claim(run);
    assert_eq!(told(s, run, Word::Wake), Status::Running, "what is awake stays so");
    agent.ends(Then::Sleep { until: T, why: None });
    p.dies();
    assert_eq!(told(s, run, Word::Wake), Status::Interrupted, "nobody drives it");
    assert_eq!(s.row(run).wake_at, None);
}

pub fn a_person_stops_a_run_that_sleeps(s: &Stage) {
    let (run, p) = asleep(s);
    assert_eq!(told(s, run, Word::Stop), Status::Sleeping, "its supervisor hears it");
    p.leaves();
    assert_eq!((s.status(run), s.row(run).wake_at), (Status::Interrupted, None));
    assert!(s.row(run).stop_requested);
    let other = s.process("other");
    let agent = other.claim(run);
    agent.ends(Then::Sleep { until: T, why: None });
    other.dies();
    assert_eq!(told(s, run, Word::Stop), Status::Interrupted, "without one it is stopped at once");
    assert_eq!(told(s, run, Word::Cancel { reason: None }), Status::Cancelled);
}

pub fn a_halted_run_does_not_sleep(s: &Stage) {
    let agent = s.process("p").claim(s.run("r").cost(FLOOR - 1).create());
    agent.request("too dear").refused();
    assert_eq!(agent.ends(Then::Sleep { until: T, why: None }), Status::Halted);
    assert_eq!(s.row(agent.run).wake_at, None);
}

pub fn an_unknown_price_halts_what_is_supervised_until_it_is_given(s: &Stage) {
    let mut new = s.run("r").cost(10_000);
    new.start.command_key = Some("key".into());
    new.start.spec.command = Some(Command::default());
    let run = new.create();
    let agent = s.process("p").claim(run);
    assert_eq!(agent.request("x").unpriced().refused().code, "price_unknown");
    assert_eq!((s.status(run), s.halt(run).as_deref()), (Status::Halted, Some("price_unknown")));
    agent.ends(Then::Interrupt { by_person: false });
    s.refuses("run_halted", agent.process.claiming(run));
    let prices = Some(Prices { hash: "new".into(), file: None });
    let spec = Spec { prices: prices.clone(), ..s.view(run).spec };
    let amend = outlast_core::engine::run::limits::Amend {
        run,
        spec: spec.clone(),
        unpriced: Some(Unpriced::Dearest),
    };
    assert_eq!(s.ask(amend.clone()).unwrap(), Status::Interrupted);
    s.reopen();
    assert_eq!((s.view(run).spec, s.row(run).policy.unpriced), (spec, Unpriced::Dearest));
    // Bug: typed where `resume --cd` had moved a run to, its line began another one.
    assert_eq!(s.row(run).command_key, Some(Command::default().key(None)), "that of the command it has now");
    agent.process.claim(run).call("priced now");
    assert_eq!(s.ask(amend).unwrap(), Status::Running, "twice is once");
}

pub fn a_run_tells_why_it_sleeps_until_it_is_woken(s: &Stage) {
    let agent = s.process("p").claim(s.run("r").create());
    let why = Some(Box::new(Refusal::plain("plan_ceiling", T)));
    assert_eq!(agent.ends(Then::Sleep { until: T, why }), Status::Sleeping);
    s.reopen();
    let code = |s: &Stage| s.row(agent.run).halt.map(|halt| halt.code);
    assert_eq!(code(s).as_deref(), Some("plan_ceiling"));
    agent.process.claim(agent.run);
    assert_eq!((s.status(agent.run), code(s)), (Status::Running, None));
}

pub fn a_run_is_halted_for_a_reason_once(s: &Stage) {
    let agent = s.process("p").claim(s.run("r").create());
    let halt = |code: &str| Halt { run: agent.run, refusal: Refusal::plain(code, T) };
    assert_eq!(s.ask(halt("plan_untold")).unwrap(), Status::Halted);
    assert_eq!(s.ask(halt("no_progress")).unwrap(), Status::Halted);
    assert_eq!(s.row(agent.run).halt.map(|halt| halt.code).as_deref(), Some("plan_untold"));
    let ended = s.process("q").claim(s.run("ended").create());
    assert_eq!(ended.ends(Then::Complete), Status::Completed);
    let halt = Halt { run: ended.run, refusal: Refusal::plain("no_progress", T) };
    assert_eq!(s.ask(halt).unwrap(), Status::Completed);
}

pub fn a_run_that_waits_busily_is_halted_with_its_evidence_until_a_person_resumes_it(s: &Stage) {
    let agent = s.process("p").claim(s.run("r").create());
    let evidence = Evidence { calls: 200, first: Seq(7), since: T, name: "wait".into() };
    let refusal = Refusal::no_progress(evidence.clone(), T);
    assert_eq!(s.ask(Halt { run: agent.run, refusal }).unwrap(), Status::Halted);
    s.reopen();
    let waited = s.row(agent.run).halt.and_then(|halt| halt.waited);
    assert_eq!(waited.as_deref(), Some(&evidence));
    let wanted = EventQuery { run: Some(agent.run), limit: 100, ..EventQuery::default() };
    let is_halt = |e: &Event| e.kind == Kind::Status && e.about["to"] == "halted";
    let event = s.store().events(&wanted).unwrap().into_iter().find(is_halt).unwrap();
    assert_eq!((&event.about["waited"]["calls"], &event.about["waited"]["first"]), (&200.into(), &7.into()));
    assert_ne!(told(s, agent.run, Word::Resume { diverged: None }), Status::Halted);
    assert_eq!(s.row(agent.run).halt, None);
}
