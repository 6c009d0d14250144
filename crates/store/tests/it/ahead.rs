//! Openings answered ahead of their commit, by two handles on one store.

use std::{sync::Arc, time::Instant};

use outlast_core::{
    engine::{
        op::{Op, Outcome},
        step::{Record, Step},
    },
    journal::{Entry, Opening, State},
    store::{Durability, Error, Store},
    words::id::{RunNo, Seq},
};

use crate::{
    agent::Agent,
    bed::{Bed as _, Sqlite},
    beds::{Opened, open_at},
    private_postgres::Database,
    stage::Stage,
};

/// Two processes' handles, and an agent of the first.
type Scene<'a> = (&'a Stage, &'a Stage, Agent);

/// Plays a story on each database that has stores of several processes.
fn each(story: fn(Scene<'_>)) {
    let bed = Sqlite::new();
    let database = Database::new();
    let play = |handles: [Arc<dyn Store>; 2]| {
        let [mine, theirs] = handles.map(|store| Stage::on(Opened(store)));
        let agent = mine.process("p").claim(mine.run("r").create());
        story((&mine, &theirs, agent));
    };
    play([bed.open(), bed.open()]);
    play([(); 2].map(|()| open_at(&database.url(), true).unwrap()));
}

/// Returns the answer ahead of the commit, once nothing else is queued.
pub fn ahead(s: &Stage, op: impl Into<Op>) -> Result<Outcome, Error> {
    let (store, mut op) = (s.store(), op.into());
    loop {
        // The writer thread answers before it is done with a group.
        match store.ahead(op) {
            Ok(answer) => return answer,
            Err(given_back) => op = given_back,
        }
        std::thread::yield_now();
    }
}

/// Begins the step ahead of its commit: no query finds the entry yet.
fn begins(s: &Stage, agent: &Agent, key: &str) -> Opening {
    match ahead(s, agent.step(key)).unwrap() {
        Outcome::Begun(Step::Run { opening, begun_before: false, .. }) => opening,
        other => panic!("{other:?}"),
    }
}

fn record(agent: &Agent, opening: Opening, value: &str) -> Record {
    Record { opening, ..agent.record(opening.seq, value) }
}

fn find(s: &Stage, run: RunNo, seq: Seq) -> Option<Entry> {
    s.store().entry(run, seq).unwrap()
}

#[test]
fn an_opening_rides_with_the_commit_of_its_result() {
    each(|(mine, theirs, agent)| {
        let opening = begins(mine, &agent, "fetch");
        agent.ask(record(&agent, opening, "the page")).unwrap();
        assert_eq!(find(theirs, agent.run, opening.seq).map(|e| e.state), Some(State::Done));
    });
}

#[test]
fn an_opening_that_nothing_follows_is_committed_by_itself() {
    each(|(mine, theirs, agent)| {
        let seq = begins(mine, &agent, "fetch").seq;
        let began = Instant::now();
        while find(theirs, agent.run, seq).is_none() {
            assert!(began.elapsed().as_secs() < 60, "it never was");
            std::thread::yield_now();
        }
        let entry = find(theirs, agent.run, seq).unwrap();
        assert_eq!((entry.state, entry.instance), (State::Open, Some(agent.process.no)));
    });
}

#[test]
fn a_stale_attempt_opens_nothing() {
    each(|(mine, theirs, agent)| {
        begins(mine, &agent, "one");
        agent.ask(agent.turn(None)).unwrap();
        // The verdict and the takeover are another process's.
        let seen = theirs.store().instance(agent.process.no).unwrap().unwrap().heartbeat;
        let verdict = outlast_core::engine::run::process::DeclareDead {
            instance: agent.process.no,
            heartbeat_seen: seen,
            left: false,
            heir: None,
        };
        theirs.ask(verdict).unwrap();
        theirs.process("q").claim(agent.run);
        let before = theirs.journal(agent.run).len();
        let refused = match mine.store().ahead(agent.step("two").into()) {
            // On PostgreSQL it is answered by what this process saw a moment ago: its commit is refused.
            Ok(Ok(Outcome::Begun(Step::Run { opening, .. }))) => {
                agent.ask(record(&agent, opening, "lost")).unwrap_err()
            }
            Ok(told) => told.unwrap_err(),
            Err(op) => mine.store().submit(op, Durability::Committed).wait().unwrap_err(),
        };
        let codes = ["instance_dead", "unknown_entry"];
        assert!(codes.contains(&refused.code()), "{refused}");
        assert_eq!(theirs.journal(agent.run).len(), before);
    });
}

#[test]
fn a_finished_step_is_found_ahead_too() {
    each(|(mine, _theirs, agent)| {
        let opening = begins(mine, &agent, "fetch");
        agent.ask(record(&agent, opening, "the page")).unwrap();
        let done = Step::Done { seq: opening.seq };
        assert_eq!(ahead(mine, agent.step("fetch")).unwrap(), Outcome::Begun(done));
    });
}

#[test]
fn of_two_openings_in_flight_the_second_waits_for_a_commit() {
    each(|(mine, _theirs, agent)| {
        let first = begins(mine, &agent, "one");
        let given_back = mine.store().ahead(agent.step("two").into()).unwrap_err();
        let second = mine.store().submit(given_back, Durability::Committed).wait().unwrap();
        let Outcome::Begun(Step::Run { opening: second, .. }) = second else { panic!("{second:?}") };
        assert!(second.seq > first.seq && second.op > first.op);
        agent.ask(record(&agent, second, "2")).unwrap();
        agent.ask(record(&agent, first, "1")).unwrap();
    });
}

// Another process of the run, as a supervisor's proxy is, writes between the answer and the commit.
#[test]
fn a_number_that_another_process_took_meanwhile_closes_nothing_of_its() {
    each(|(mine, theirs, agent)| {
        let foreseen = begins(mine, &agent, "fetch");
        let proxy = Agent { process: theirs.process("proxy"), ..agent.clone() };
        let call = proxy.call("hello");
        let recorded = agent.ask(record(&agent, foreseen, "the page"));
        // On a slow machine the opening was committed by itself before the call.
        if call == foreseen.seq {
            assert_eq!(recorded.unwrap_err().code(), "unknown_entry");
            let seq = match agent.ask(agent.step("fetch")).unwrap() {
                Step::Run { opening: Opening { seq, .. }, begun_before: false, .. } => seq,
                other => panic!("{other:?}"),
            };
            agent.ask(agent.record(seq, "the page")).unwrap();
        } else {
            recorded.unwrap();
        }
        assert_eq!(theirs.entry(agent.run, call).state, State::Open);
        assert!(matches!(agent.ask(agent.step("fetch")).unwrap(), Step::Done { .. }));
    });
}
