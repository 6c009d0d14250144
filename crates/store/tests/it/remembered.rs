//! Rows that a process remembers on PostgreSQL, while other processes write them too.

use outlast_core::{
    engine::{run::process::DeclareDead, step::Step},
    journal::State,
};

use crate::{
    beds::{Opened, open_at},
    private_postgres::Database,
    relay::{Cut, Relay},
    stage::{Process, Stage},
};

fn stage(url: &str) -> Stage {
    Stage::on(Opened(open_at(url, true).unwrap()))
}

/// The verdict of another process's observer.
fn death(s: &Stage, p: &Process) -> DeclareDead {
    let heartbeat_seen = s.store().instance(p.no).unwrap().unwrap().heartbeat;
    DeclareDead { instance: p.no, heartbeat_seen, left: false, heir: None }
}

/// A process that began a run, left it to another and took it again knows all keys but those of the other.
#[test]
fn a_step_that_another_process_recorded_in_between_is_found() {
    let database = Database::new();
    let [mine, theirs] = [(); 2].map(|()| stage(&database.url()));
    let p = mine.process("p");
    let agent = p.claim(mine.run("r").create());
    agent.begins("one");
    theirs.ask(death(&theirs, &p)).unwrap();
    let q = theirs.process("q");
    let other = q.claim(agent.run);
    let seq = other.begins("two");
    other.ask(other.record(seq, "theirs")).unwrap();
    q.leaves();
    let again = mine.process("p").claim(agent.run);
    again.begins("three");
    assert_eq!(again.ask(again.step("two")).unwrap(), Step::Done { seq });
}

/// A run that is cancelled, and a process that is declared dead, open nothing, however young the memory is.
#[test]
fn a_verdict_of_another_process_is_seen_by_the_next_group() {
    let database = Database::new();
    let [mine, theirs] = [(); 2].map(|()| stage(&database.url()));
    let p = mine.process("p");
    let agent = p.claim(mine.run("r").create());
    let seq = agent.begins("one");
    theirs.ask(death(&theirs, &p)).unwrap();
    assert_eq!(agent.ask(agent.step("two")).unwrap_err().code(), "instance_dead");
    assert_eq!(theirs.journal(agent.run).len(), 1);
    assert_eq!(theirs.entry(agent.run, seq).state, State::Open);
}

/// Nothing that was refused is done later: the question whether it was committed makes what is on its way stale.
#[test]
fn a_group_that_reaches_the_database_after_it_was_given_up_does_nothing() {
    let database = Database::new();
    let relay = Relay::to(&database.socket_directory());
    let s = stage(&database.url_at(relay.directory()));
    let agent = s.process("p").claim(s.run("r").create());
    agent.begins("first");
    let seq = agent.begins("step");
    let record = agent.record(seq, "result");
    relay.cut_next(Cut::Late);
    relay.cut_next(Cut::BeforeCommit);
    assert_eq!(agent.ask(record).unwrap_err().code(), "store_unavailable");
    relay.deliver_late();
    assert_eq!(s.entry(agent.run, seq).state, State::Open);
}
