//! Rows that a process remembers on PostgreSQL, while other processes write them too.

use std::sync::Arc;

use outlast_core::{
    engine::{
        op::Actor,
        run::{claim::Adopt, process::DeclareDead},
        step::Step,
    },
    journal::State,
    store::{Ask as _, Durability},
    words::{clock::ManualClock, id::Seq},
};

use crate::{
    agent::Agent,
    bed::BEGINNING,
    beds::{Opened, open_at, open_by},
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

/// The lease of an adopter is not checked by a step: its holder loses it with its life, which its own row tells.
#[test]
fn an_adopter_whose_adoption_another_process_has_taken_opens_nothing() {
    let database = Database::new();
    let [mine, theirs] = [(); 2].map(|()| stage(&database.url()));
    let driven = theirs.process("supervisor").claim(theirs.run("r").create());
    let adopting = |p: &Process| Adopt { actor: Actor { instance: p.no, ..driven.actor() } };
    let p = mine.process("p");
    p.ask(adopting(&p)).unwrap();
    let agent = Agent { process: p.clone(), ..driven.clone() };
    for key in ["reads", "learns the keys", "remembers"] {
        agent.begins(key);
    }
    theirs.ask(death(&theirs, &p)).unwrap();
    let q = theirs.process("q");
    q.ask(adopting(&q)).unwrap();
    assert_eq!(agent.ask(agent.step("too late")).unwrap_err().code(), "instance_dead");
    assert_eq!(theirs.journal(agent.run).len(), 3);
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

/// A group of one statement sees the rows as they were before it waited for its locks: it locks what it checks, which is
/// the newest of each.
#[test]
fn a_row_that_changes_while_a_group_waits_for_its_locks_is_seen() {
    let database = Database::new();
    let s = stage(&database.url());
    let agent = s.process("p").claim(s.run("r").create());
    let seq = agent.begins("first");
    let record = agent.record(seq, "result");
    let holder = database.begun("SELECT pg_advisory_xact_lock(31372865309864820)");
    let recorded = s.store().ask(record, Durability::Synced);
    database.wait_for_a_waiting_server();
    // Whoever waits has locked no row yet.
    database.execute("UPDATE outlast.runs SET next_seq = next_seq + 5");
    holder.commit();
    recorded.wait().unwrap();
    assert_eq!(agent.begins("second"), Seq(seq.0 + 6), "what was changed in between is kept");
}

/// What one process's group waits for is another's commit, also where the adopter of an attempt comes with it.
#[test]
fn a_group_takes_its_locks_before_it_touches_a_row() {
    let database = Database::new();
    let s = stage(&database.url());
    let agent = s.process("p").claim(s.run("r").create());
    let seq = agent.begins("first");
    let record = agent.record(seq, "result");
    let holder = database.begun("SELECT pg_advisory_xact_lock(31372865309864820)");
    let recorded = s.store().ask(record, Durability::Synced);
    database.wait_for_a_waiting_server();
    let free = "SELECT count(*) FROM (SELECT 1 FROM outlast.runs FOR UPDATE SKIP LOCKED) AS free";
    assert_eq!(database.value(free).as_deref(), Some("1"));
    holder.commit();
    recorded.wait().unwrap();
}

/// Each row that a step is decided on is checked, and as it is under the group's locks: one that another has written makes
/// the round trip vain, and two more read and write. Leases need no check: whoever takes one also changes its run, ends its
/// attempt, or has declared its holder dead.
#[test]
fn a_step_that_is_decided_on_a_row_that_another_has_written_since_is_done_anew() {
    let database = Database::new();
    let relay = Relay::to(&database.socket_directory());
    let clock = Arc::new(ManualClock::new(BEGINNING));
    let s = Stage::on(Opened(open_by(clock, &database.url_at(relay.directory()))));
    let p = s.process("p");
    let keys = [("instances", "no"), ("runs", "no"), ("envelopes", "no"), ("attempts", "run_no")];
    for (table, key) in keys {
        let write = || database.execute(&format!("UPDATE outlast.{table} SET {key} = {key}"));
        for is_waiting in [false, true] {
            // Of a new run all keys are known.
            let agent = p.claim(s.run(&format!("{table}-{is_waiting}")).create());
            for key in ["first", "second"] {
                agent.begins(key);
            }
            relay.passed();
            if is_waiting {
                let holder = database.begun("SELECT pg_advisory_xact_lock(31372865309864820)");
                let begun = s.store().ask(agent.step("third"), Durability::Synced);
                database.wait_for_a_waiting_server();
                write();
                holder.commit();
                begun.wait().unwrap();
            } else {
                write();
                agent.begins("third");
            }
            assert_eq!(relay.passed().round_trips, 3, "{table} {is_waiting}");
        }
    }
}
