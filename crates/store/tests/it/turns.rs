//! Turns: a run that is a loop, its iterations, and when it is over.

use outlast_core::{
    engine::run::{
        claim::Claim,
        end_attempt::Then,
        iteration::{BeginIteration, JudgeIteration},
        pause::Hold,
    },
    journal::{Kind, payload::Payload},
    reads,
    run::{
        Command,
        looping::{Looping, Verdict},
        status::Status,
    },
    words::id::RunNo,
};

use crate::{
    agent::*,
    stage::{Process, Stage},
};

fn a_loop(s: &Stage, looping: Looping) -> RunNo {
    let mut new = s.run("r");
    new.start.spec.command = Some(Command { looping: Some(looping), ..Command::default() });
    new.create()
}

fn begin(a: &Agent, input: &str, mark: &str) -> BeginIteration {
    let (input, mark) = (Some(Payload::encode(input.as_bytes())), Some(mark.to_owned()));
    BeginIteration { actor: a.actor(), iteration: a.iteration, input, mark }
}

fn judge(run: RunNo, p: &Process, mark: Option<&str>) -> JudgeIteration {
    let (looping, mark) = (Looping::default(), mark.map(str::to_owned));
    JudgeIteration { run, instance: p.no, looping, mark, until: false }
}

fn fresh(p: &Process, run: RunNo) -> Agent {
    p.claim_by(Claim { fresh: true, ..p.claiming(run) })
}

/// Returns the input with which iteration `no` began.
fn input(s: &Stage, run: RunNo, no: i64) -> Option<String> {
    let kept = reads::entries::iteration_input(&*s.store(), run, no).unwrap()?;
    Some(kept.map_or_else(String::new, |p| String::from_utf8(p.decode().unwrap().to_vec()).unwrap()))
}

pub fn an_iteration_keeps_what_it_began_with_over_a_crash(s: &Stage) {
    let run = a_loop(s, Looping::default());
    let p = s.process("p");
    let first = p.claim(run);
    assert_eq!(input(s, run, 0), None);
    let seq = p.ask(begin(&first, "as it was", "m")).unwrap();
    first.ends(Then::Restart);
    p.dies();
    s.reopen();
    let q = s.process("q");
    let again = q.claim_by(Claim { restart: true, ..q.claiming(run) });
    assert_eq!(again.iteration, 0);
    assert_eq!(q.ask(begin(&again, "changed since", "m")).unwrap(), seq, "what it began with stays");
    assert_eq!(input(s, run, 0).as_deref(), Some("as it was"));
    assert_eq!(s.row(run).closed, 0, "to begin is no progress");
    again.ends(Then::Turn);
    assert_eq!(s.row(run).closed, 1);
    let next = fresh(&q, run);
    q.ask(begin(&next, "changed since", "m")).unwrap();
    assert_eq!(input(s, run, 1).as_deref(), Some("changed since"));
    let begun = s.journal(run).into_iter().filter(|e| e.kind == Kind::Iteration);
    assert_eq!(begun.map(|e| e.key.unwrap()).collect::<Vec<_>>(), ["1", "2"]);
    s.refuses("lease_lost", begin(&again, "late", "m"));
}

pub fn a_finished_iteration_is_judged_once_also_over_a_death(s: &Stage) {
    let run = a_loop(s, Looping::default());
    let p = s.process("p");
    let first = p.claim(run);
    p.ask(begin(&first, "", "a")).unwrap();
    assert_eq!(first.ends(Then::Turn), Status::Running);
    assert_eq!(p.ask(judge(run, &p, Some("a"))).unwrap(), Verdict::Next);
    p.dies();
    assert_eq!(s.status(run), Status::Interrupted);
    s.reopen();
    let q = s.process("q");
    s.refuses("lease_lost", judge(run, &q, Some("a")));
    assert_eq!(q.ask(Hold { run, instance: q.no }).unwrap(), None);
    assert_eq!(q.ask(judge(run, &q, Some("a"))).unwrap(), Verdict::Next);
    let turns = s.row(run).turns.unwrap();
    assert_eq!((turns.finished, turns.judged, turns.unchanged), (1, 1, 1));
    assert_eq!(fresh(&q, run).iteration, 1);
}

pub fn a_loop_that_stands_still_fails_and_may_be_taken_up_again(s: &Stage) {
    let run = a_loop(s, Looping::default());
    let p = s.process("p");
    let mut agent = p.claim(run);
    p.ask(begin(&agent, "", "a")).unwrap();
    for wanted in [Verdict::Next, Verdict::Next, Verdict::Stuck] {
        agent.ends(Then::Turn);
        assert_eq!(p.ask(judge(run, &p, Some("a"))).unwrap(), wanted);
        if wanted == Verdict::Next {
            agent = fresh(&p, run);
        }
    }
    let row = s.row(run);
    assert_eq!(row.status, Status::Failed);
    assert!(row.error.unwrap().starts_with("no progress: three iterations"));
    let again = fresh(&p, run);
    assert_eq!((again.iteration, s.row(run).turns.unwrap().unchanged), (3, 0));
    again.ends(Then::Turn);
    assert_eq!(p.ask(judge(run, &p, Some("a"))).unwrap(), Verdict::Next);
}

pub fn a_loop_is_completed_by_its_command_or_its_count(s: &Stage) {
    for (id, until, max) in [("until", true, None), ("count", false, Some(1))] {
        let looping = Looping { max_iterations: max, ..Looping::default() };
        let mut new = s.run(id);
        new.start.spec.command = Some(Command { looping: Some(looping.clone()), ..Command::default() });
        let run = new.create();
        let p = s.process("p");
        p.claim(run).ends(Then::Turn);
        let verdict = p.ask(JudgeIteration { looping, until, ..judge(run, &p, None) }).unwrap();
        assert_eq!(verdict, if until { Verdict::Until } else { Verdict::Enough });
        assert_eq!(s.status(run), Status::Completed);
        s.refuses("run_ended", p.claiming(run));
    }
}
