//! Round trips of a group to PostgreSQL, counted by the relay: round trips and statements do not grow with the group.

use std::sync::Arc;

use outlast_core::{
    engine::{
        call::settle::Close,
        op::{Outcome, Verb},
        state::put::{Change, Put},
        step::{Record, Step},
    },
    envelope::unit::Unit,
    journal::payload::Payload,
    state::Name,
    store::{Ask as _, Durability},
    words::{
        clock::{Entropy as _, ManualClock, SeededEntropy},
        id::{RunNo, Seq},
    },
};

use crate::{
    agent::{Agent, FULL, bill},
    ahead::ahead,
    bed::BEGINNING,
    beds::{Opened, open_at, open_by},
    budgets,
    private_postgres::Database,
    relay::{Passed, Relay},
    stage::Stage,
};

/// A database behind a relay, and an agent on it.
fn scene() -> (Database, Relay, Stage) {
    let database = Database::new();
    let relay = Relay::to(&database.socket_directory());
    let s = Stage::on(Opened(open_at(&database.url_at(relay.directory()), true).unwrap()));
    (database, relay, s)
}

/// Counts of what `act` asked.
fn asked<T>(relay: &Relay, act: impl FnOnce() -> T) -> (Passed, T) {
    relay.passed();
    let out = act();
    (relay.passed(), out)
}

#[track_caller]
fn takes<T>(round_trips: usize, relay: &Relay, act: impl FnOnce() -> T) -> T {
    let (passed, out) = asked(relay, act);
    assert_eq!(passed.round_trips, round_trips, "{passed:?}");
    out
}

/// The agent's run has been loaded before, so that its envelopes are known.
fn warm(s: &Stage) -> Agent {
    let agent = s.process("p").claim(s.run("r").cost(1000 * FULL).create());
    agent.buys("first", 100);
    agent
}

/// What the step before left is remembered, and checked by the transaction.
#[test]
fn a_step_takes_one_round_trip_to_open_and_one_to_record() {
    let (_database, relay, s) = scene();
    let agent = warm(&s);
    agent.begins("first");
    let seq = takes(1, &relay, || agent.begins("step"));
    let record = agent.record(seq, "result");
    takes(1, &relay, || agent.ask(record).unwrap());
}

/// The opening is written with the result.
#[test]
fn a_step_that_is_answered_ahead_takes_one_round_trip_in_all() {
    let (_database, relay, s) = scene();
    let agent = warm(&s);
    agent.begins("first");
    for key in ["one", "two"] {
        let told = takes(0, &relay, || ahead(&s, agent.step(key)).unwrap());
        let Outcome::Begun(Step::Run { opening, .. }) = told else { panic!("{told:?}") };
        let record = Record { opening, ..agent.record(opening.seq, "result") };
        takes(1, &relay, || agent.ask(record).unwrap());
    }
}

/// BEGIN and COMMIT are statements too. A value that may arrive in parts takes a transaction, which the database can end.
#[test]
fn a_step_is_one_statement_unless_its_value_is_long_or_a_pooler_may_be_in_between() {
    for (is_pooled, length, wanted) in [(false, 100, 1), (false, 20_000, 5), (true, 100, 5)] {
        let (_database, relay, s) = scene();
        if is_pooled {
            relay.forgets_settings();
        }
        let agent = warm(&s);
        let noise = SeededEntropy::new(1);
        let record = |key: &str| {
            let mut value = vec![0; length];
            noise.fill(&mut value);
            Record { value: Payload::encode(&value), ..agent.record(agent.begins(key), "") }
        };
        for key in ["one", "two"] {
            agent.ask(record(key)).unwrap();
        }
        let record = record("three");
        let (passed, _) = asked(&relay, || agent.ask(record).unwrap());
        assert_eq!((passed.round_trips, passed.statements), (1, wanted), "{is_pooled} {length}");
    }
}

/// Nothing is answered on rows that others may have changed long ago.
#[test]
fn rows_that_were_seen_more_than_a_tenth_of_a_second_ago_are_read_again() {
    let database = Database::new();
    let relay = Relay::to(&database.socket_directory());
    let clock = Arc::new(ManualClock::new(BEGINNING));
    let s = Stage::on(Opened(open_by(clock.clone(), &database.url_at(relay.directory()))));
    let agent = warm(&s);
    agent.begins("first");
    for (slept_ms, to_begin, to_record) in [(0, 0, 1), (100, 0, 1), (101, 1, 2)] {
        clock.suspend_ms(slept_ms);
        let told = takes(to_begin, &relay, || ahead(&s, agent.step(&format!("{slept_ms}"))).unwrap());
        let Outcome::Begun(Step::Run { opening, .. }) = told else { panic!("{told:?}") };
        let record = Record { opening, ..agent.record(opening.seq, "result") };
        takes(to_record, &relay, || agent.ask(record).unwrap());
    }
}

/// Keys of a run that an earlier process began are read with the second group's commit, and known from then on.
#[test]
fn a_run_that_was_begun_elsewhere_takes_one_round_trip_a_step_once_its_keys_are_known() {
    let (database, relay, s) = scene();
    let theirs = Stage::on(Opened(open_at(&database.url(), true).unwrap()));
    let before = theirs.process("before").claim(theirs.run("r").create());
    let done = before.begins("done");
    before.ask(before.record(done, "result")).unwrap();
    before.process.dies();
    let agent = s.process("p").claim(before.run);
    takes(2, &relay, || agent.begins("first"));
    let seq = takes(1, &relay, || agent.begins("second"));
    let record = agent.record(seq, "result");
    takes(1, &relay, || agent.ask(record).unwrap());
    assert_eq!(agent.ask(agent.step("done")).unwrap(), Step::Done { seq: done });
}

/// The answer of the database to a group whose rows another process has changed is a refusal, and the group is done anew.
#[test]
fn a_step_after_another_process_wrote_takes_a_round_trip_in_vain_and_two_that_read_and_write() {
    let (database, relay, s) = scene();
    let agent = warm(&s);
    let seq = agent.begins("first");
    let theirs = Stage::on(Opened(open_at(&database.url(), true).unwrap()));
    let proxy = Agent { process: theirs.process("proxy"), ..agent.clone() };
    let call = proxy.call("hello");
    let record = agent.record(seq, "result");
    takes(3, &relay, || agent.ask(record).unwrap());
    assert_eq!(agent.begins("second"), Seq(call.0 + 1), "no number is given twice");
}

/// A call that was just admitted is settled as it is remembered.
#[test]
fn a_call_takes_two_round_trips_to_admit_and_one_to_settle() {
    let (_database, relay, s) = scene();
    let agent = warm(&s);
    let seq = takes(2, &relay, || agent.call("call"));
    let settle = agent.settle(seq, Close::Done(bill(100)));
    takes(1, &relay, || agent.ask(settle).unwrap());
}

#[test]
fn a_call_under_a_named_budget_takes_no_more() {
    let (_database, relay, s) = scene();
    budgets::set(&s, "team", Unit::CostNanoUsd, 1000 * FULL);
    let agent = budgets::member(&s, "r");
    agent.buys("first", 100);
    let seq = takes(2, &relay, || agent.call("call"));
    let settle = agent.settle(seq, Close::Done(bill(100)));
    takes(1, &relay, || agent.ask(settle).unwrap());
}

#[test]
fn a_change_of_the_state_takes_two_round_trips() {
    let (_database, relay, s) = scene();
    warm(&s);
    for _ in 0..2 {
        takes(2, &relay, || s.ask(put()).unwrap());
    }
}

fn put() -> Put {
    let changes = ["one", "two"].map(|key| Change::set(Name::new("n", "a", key), b"v")).into();
    Put { changes, ..Put::default() }
}

/// Runs the operations as one group: they are queued while another server holds the store's lock.
fn as_one_group<V: Verb>(database: &Database, s: &Stage, relay: &Relay, verbs: Vec<V>) -> Passed {
    let store = s.store();
    // From here on its namespace is there, and it asks the same each time.
    s.ask(put()).unwrap();
    let (first, tickets): (_, Vec<_>) = database.while_locked(|| {
        let first = store.ask(put(), Durability::Synced);
        database.wait_for_a_waiting_server();
        relay.passed();
        let tickets = verbs.into_iter().map(|verb| store.ask(verb, Durability::Synced)).collect();
        (first, tickets)
    });
    first.wait().unwrap();
    tickets.into_iter().for_each(|ticket| drop(ticket.wait().unwrap()));
    relay.passed()
}

/// Bug: sixty-four runs of one server recorded no more steps than one run.
/// Consequence: a store on PostgreSQL was as slow as its round trips, whatever was queued.
/// Cause: a group asked for each row by itself, and wrote each by itself.
#[test]
fn a_group_of_sixty_four_steps_asks_no_more_than_a_group_of_four() {
    let (database, relay, s) = scene();
    let process = s.process("p");
    let agents: Vec<Agent> =
        (0..64).map(|i| process.claim(s.run(&format!("r{i}")).cost(1000 * FULL).create())).collect();
    let steps = |of: &[Agent], key: &str| of.iter().map(|agent| agent.step(key)).collect::<Vec<_>>();
    let few = as_one_group(&database, &s, &relay, steps(&agents[..4], "a"));
    let many = as_one_group(&database, &s, &relay, steps(&agents, "b"));
    assert_eq!(many.statements, few.statements);
    let journal = |run: RunNo| s.journal(run).len();
    assert_eq!(agents.iter().map(|a| journal(a.run)).sum::<usize>(), 68);

    let records = |of: &[Agent], key: &str| {
        let record = |agent: &Agent| agent.record(agent.begins(key), "result");
        of.iter().map(record).collect::<Vec<_>>()
    };
    let few = as_one_group(&database, &s, &relay, records(&agents[..4], "c"));
    let many = as_one_group(&database, &s, &relay, records(&agents, "d"));
    assert_eq!(many.statements, few.statements);
}

/// Operations of one group that build on each other see what the earlier ones did, and each row is written once.
#[test]
fn sixty_four_steps_of_one_run_are_written_as_one_row_of_it() {
    let (database, relay, s) = scene();
    let agent = warm(&s);
    let steps = |n: usize| (0..n).map(|i| agent.step(&format!("{n}/{i}"))).collect::<Vec<_>>();
    for key in ["prepares", "remembers"] {
        agent.begins(key);
    }
    let few = as_one_group(&database, &s, &relay, steps(4));
    let many = as_one_group(&database, &s, &relay, steps(64));
    assert_eq!(many.statements, few.statements);
    let numbers: Vec<i64> = s.journal(agent.run).iter().map(|entry| entry.seq.0).collect();
    assert_eq!(numbers, (1..=71).collect::<Vec<_>>(), "no number is lost or given twice");
}

/// Usual statements get names, and are parsed and planned once. Behind a pooler that gives each transaction another
/// server's connection they get none: there the name could be another's.
#[test]
fn statements_have_names_unless_a_pooler_parts_the_transactions() {
    for pooled in [false, true] {
        let (_database, relay, s) = scene();
        if pooled {
            relay.spoil_tokens();
        }
        let agent = warm(&s);
        let step = |key: &str| {
            let seq = agent.begins(key);
            agent.ask(agent.record(seq, "result")).unwrap();
        };
        ["one", "two", "three"].into_iter().for_each(step);
        assert_eq!(relay.passed().named == 0, pooled);
        step("four");
        assert_eq!(relay.passed().named, 0, "each is prepared once");
        assert_eq!(s.journal(agent.run).len(), 5);
    }
}
