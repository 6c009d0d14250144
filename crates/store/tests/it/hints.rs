//! Hints between two processes of a PostgreSQL store: given where somebody may wait, and not for ordinary calls.

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, channel},
    },
    time::Duration,
};

use outlast_core::{
    engine::{approval::DecideApproval, call::settle::Close},
    store::{News, Store},
};

use crate::{
    agent::{FULL, bill},
    beds::{Opened, open_at},
    private_postgres::Database,
    relay::Relay,
    stage::Stage,
    state::{change, put},
};

/// Longest time until a hint comes, on a machine that is slow.
const LONGEST: Duration = Duration::from_secs(60);

/// Hints that the store hears from now on. The first one says that it listens.
fn heard(store: &dyn Store) -> Receiver<News> {
    let (tell, heard) = channel();
    let tell = Mutex::new(tell);
    store.on_hint(Arc::new(move |news| tell.lock().unwrap().send(news).unwrap()));
    heard.recv_timeout(LONGEST).unwrap();
    heard
}

fn in_schema(database: &Database, schema: &str) -> Stage {
    Stage::on(Opened(open_at(&database.url_in(schema), true).unwrap()))
}

#[test]
fn room_in_a_full_budget_is_told_to_other_processes_in_one_round_trip_and_ordinary_calls_tell_nothing() {
    for schema in ["outlast", "team_a"] {
        let database = Database::new();
        let relay = Relay::to(&database.socket_directory());
        let url = format!("{}&schema={schema}", database.url_at(relay.directory()));
        let spends = Stage::on(Opened(open_at(&url, true).unwrap()));
        let waits = in_schema(&database, schema);
        let roomy = spends.process("p").claim(spends.run("roomy").cost(1000 * FULL).create());
        let tight = spends.process("q").claim(spends.run("tight").cost(FULL).create());
        let hints = heard(&*waits.store());
        // A process gets no hint of its own operations.
        let own = heard(&*spends.store());
        roomy.buys("an ordinary call", 100);
        let seq = tight.call("all that there is");
        let void = tight.settle(seq, Close::Void);
        relay.passed();
        tight.ask(void).unwrap();
        assert_eq!(relay.passed().round_trips, 1);
        hints.recv_timeout(LONGEST).unwrap();
        let seq = tight.call("all that there is, again");
        tight.void(seq);
        hints.recv_timeout(LONGEST).unwrap();
        // Hints come in the order of their commits: one of the ordinary call would have come first.
        assert!(hints.try_recv().is_err());
        assert!(own.try_recv().is_err());
    }
}

#[test]
fn hints_come_again_when_their_connection_was_cut() {
    let database = Database::new();
    let waits = in_schema(&database, "outlast");
    let hints = heard(&*waits.store());
    database.cut_connections();
    // The process listens again.
    hints.recv_timeout(LONGEST).unwrap();
    let spends = in_schema(&database, "outlast");
    let tight = spends.process("q").claim(spends.run("tight").cost(FULL).create());
    tight.void(tight.call("all that there is"));
    hints.recv_timeout(LONGEST).unwrap();
}

#[test]
fn a_store_that_hears_hints_is_closed() {
    let database = Database::new();
    let store = open_at(&database.url(), true).unwrap();
    let hints = heard(&*store);
    drop(store);
    assert!(hints.recv().is_err(), "nobody can give a hint any more");
}

#[test]
fn each_kind_of_change_is_told_as_what_it_is_and_the_end_of_a_call_only_where_it_was_joined() {
    let database = Database::new();
    let relay = Relay::to(&database.socket_directory());
    let acts = Stage::on(Opened(open_at(&database.url_at(relay.directory()), true).unwrap()));
    let waits = in_schema(&database, "outlast");
    let run = acts.run("r").create();
    let one = acts.process("p").enter(run, Some("one"));
    let hints = heard(&*waits.store());
    let next = || hints.recv_timeout(LONGEST).unwrap();
    // An ordinary call gives no hint: the next one to come is of the commit after it.
    one.buys("nobody waits for this", 100);
    acts.ask(put(vec![change("k", "v")])).unwrap();
    assert_eq!(next(), News::STATE);
    let call = one.call("a request");
    assert_eq!(waits.process("q").enter(run, Some("two")).request("a request").joins(), call);
    let settle = one.settle(call, Close::Done(bill(100)));
    relay.passed();
    one.ask(settle).unwrap();
    // The call was joined by another process. That is found by the check of what is remembered, a round trip in vain; the
    // hint takes none.
    assert_eq!(relay.passed().round_trips, 3);
    assert_eq!(next(), News::JOINED);
    // A new attempt, its question, and a person's answer.
    let one = acts.process("p").enter(run, Some("three"));
    assert_eq!(next(), News::EVENTS);
    let id = acts.ask(one.wants("deploy", "{}")).unwrap().id.unwrap();
    assert_eq!(next(), News::EVENTS);
    let by = "ann".to_owned();
    acts.ask(DecideApproval { id, digest: None, approve: true, reason: None, by }).unwrap();
    assert_eq!(next(), News::EVENTS);
}
