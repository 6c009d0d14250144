//! Groups of several servers of one PostgreSQL store: side by side where their runs share nothing, one after the other
//! where they do.

use std::thread;

use outlast_core::{
    engine::{
        budget::ApplyBudget,
        call::{admit::Admission, settle::Close},
        op::Verb,
        run::end_attempt::Then,
        state::put::{Change, Put},
    },
    envelope::unit::Unit,
    events::EventQuery,
    journal::Opening,
    state::Name,
    store::{Ask as _, Durability, state::EventRange},
    words::id::RunNo,
};

use crate::{
    agent::*,
    beds::{Opened, open_at},
    budgets,
    private_postgres::{Begun, Database},
    stage::{Stage, audit},
};

/// Another server of the database's store.
fn server(database: &Database) -> Stage {
    Stage::on(Opened(open_at(&database.url(), true).unwrap()))
}

/// Stops commits with a payload in the middle until the result is committed: they hold their locks, wait for one more, and
/// others see nothing of them.
fn holds_payloads(database: &Database) -> Begun<'_> {
    database.execute(
        "CREATE OR REPLACE FUNCTION outlast.waits() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END'; \
         DROP TRIGGER IF EXISTS waits ON outlast.payloads; \
         CREATE TRIGGER waits AFTER INSERT ON outlast.payloads FOR EACH ROW EXECUTE FUNCTION outlast.waits()",
    );
    database.begun("SELECT pg_advisory_xact_lock(1)")
}

/// Bug: each group waited for every other server's, whatever runs they were of.
/// Consequence: one slow commit, or one frozen server, stopped the whole fleet.
/// Cause: one lock for all writers of a store.
#[test]
fn a_run_waits_for_no_commit_of_another_run_and_no_reader_skips_the_late_one() {
    let database = Database::new();
    let (slow, other) = (server(&database), server(&database));
    let unseen = slow.run("unseen").create();
    let x = slow.process("slow").claim(slow.run("x").cost(1000 * FULL).create());
    let y = other.process("other").claim(other.run("y").cost(1000 * FULL).create());
    y.call("known from now on");
    let before = other.store().newest_event().unwrap();
    let told_since = |after| {
        let events = other.store().events(&EventQuery { after, limit: 100, run: None }).unwrap();
        let mut runs: Vec<_> = events.into_iter().map(|event| event.run).collect();
        runs.dedup();
        runs
    };
    // A group waits behind its writes, in a transaction that began before those of the other server.
    let holds = holds_payloads(&database);
    let late = slow.store().ask(x.wants("mail", "{}"), Durability::Synced);
    database.wait_for_a_wait("advisory");

    // All of this is committed while the slow server is in the middle of its commit.
    y.void(y.call("a call"));
    y.begins("a step");
    y.ask(y.turn(None)).unwrap();
    y.pulse(1);
    other.ask(Put { changes: vec![Change::set(Name::new("n", "a", "k"), b"v")], ..Put::default() }).unwrap();
    y.ends(Then::Complete);
    let z = other.process("new").claim(other.run("z").create());
    z.call("a new run's");
    // The other server has never loaded this run.
    let unseen = other.process("first").claim(unseen);
    assert_eq!(told_since(before), [Some(y.run), Some(z.run), Some(unseen.run)]);
    let seen = other.store().newest_event().unwrap();

    holds.commit();
    late.wait().unwrap();
    assert_eq!(told_since(seen), [Some(x.run)], "in the order in which they were committed");
}

/// Bug: events were given out once no older transaction of the whole server was open, those of other databases included.
/// Consequence: an idle session of a stranger stopped notifications, /v1/events and the page, without a word.
/// Cause: a clock of all transactions of a cluster for the order of one store's events.
#[test]
fn a_strangers_open_transaction_holds_no_event_back() {
    let database = Database::new();
    let s = server(&database);
    let stranger = database.begun("SELECT txid_current()");
    let run = s.run("told-at-once").create();
    let events = s.store().events(&EventQuery { limit: 100, ..EventQuery::default() }).unwrap();
    assert_eq!(events.iter().map(|e| e.run).collect::<Vec<_>>(), [Some(run)]);
    assert_eq!(s.store().newest_event().unwrap(), events[0].mark);
    stranger.commit();
}

/// A number that is drawn before its commit would be the smaller one, and seen later: its readers' cursors would be past it.
#[test]
fn a_group_with_events_waits_for_the_commit_of_those_with_smaller_numbers() {
    let database = Database::new();
    let (slow, other) = (server(&database), server(&database));
    let [x, y] = [(&slow, "x"), (&other, "y")].map(|(s, id)| s.process(id).claim(s.run(id).create()));
    let before = other.store().newest_event().unwrap();
    database.execute(&format!(
        "CREATE FUNCTION outlast.waits() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END'; \
         CREATE TRIGGER waits AFTER INSERT ON outlast.events FOR EACH ROW WHEN (NEW.run_no = {}) \
         EXECUTE FUNCTION outlast.waits()",
        x.run
    ));
    let holds = database.begun("SELECT pg_advisory_xact_lock(1)");
    let late = slow.store().ask(x.ending(Then::Complete), Durability::Synced);
    database.wait_for_waits("advisory", 1);
    let next = other.store().ask(y.ending(Then::Complete), Durability::Synced);
    database.wait_for_waits("advisory", 2);
    assert_eq!(other.store().newest_event().unwrap(), before, "neither is committed");

    holds.commit();
    late.wait().unwrap();
    next.wait().unwrap();
    let events = other.store().events(&EventQuery { after: before, limit: 100, run: None }).unwrap();
    let mut runs: Vec<_> = events.into_iter().map(|event| event.run).collect();
    runs.dedup();
    assert_eq!(runs, [Some(x.run), Some(y.run)]);
}

/// Asks `late` and holds its commit back until `waits`, which another server is asked, waits for it.
fn waits_for<L: Verb, W: Verb>(database: &Database, (slow, late): (&Stage, L), (other, waits): (&Stage, W)) {
    let holds = holds_payloads(database);
    let late = slow.store().ask(late, Durability::Synced);
    database.wait_for_waits("advisory", 1);
    let waits = other.store().ask(waits, Durability::Synced);
    database.wait_for_waits("advisory", 2);
    holds.commit();
    assert!(late.wait().is_ok());
    assert!(waits.wait().is_ok());
}

#[test]
fn what_shares_an_envelope_waits_for_the_late_commit() {
    let database = Database::new();
    let (slow, other) = (server(&database), server(&database));
    let parent = slow.run("parent").cost(1000 * FULL).create();
    let one = slow.process("slow").claim(slow.run("one").under(parent).create());
    let two = other.process("other").claim(other.run("two").under(parent).create());
    let same = other.process("same").enter(other.run("shared").create(), None);
    let its = slow.process("its").enter(same.run, None);
    two.call("known from now on");
    same.call("known from now on");
    for (late, waits) in [(&one, &two), (&its, &same)] {
        let late = late.settle(late.call("late"), Close::Done(bill(100)));
        waits_for(&database, (&slow, late), (&other, waits.request("waits").admit));
    }
}

/// Servers of the version before lock the whole store for each group, and are told apart by nothing.
#[test]
fn a_server_of_the_version_before_waits_for_a_group_and_is_waited_for() {
    let database = Database::new();
    let (s, other) = (server(&database), server(&database));
    let a = s.process("p").claim(s.run("r").create());
    let seq = a.call("late");
    let holds = holds_payloads(&database);
    let late = s.store().ask(a.settle(seq, Close::Done(bill(100))), Durability::Synced);
    database.wait_for_a_waiting_server();
    let try_it = "SELECT pg_try_advisory_xact_lock(31372865309864820)::text";
    assert_eq!(database.value(try_it).as_deref(), Some("false"));
    holds.commit();
    late.wait().unwrap();
    let b = other.process("q").claim(other.run("known").create());
    let waits = database.while_locked(|| {
        let waits = other.store().ask(b.step("waits"), Durability::Synced);
        database.wait_for_a_waiting_server();
        waits
    });
    waits.wait().unwrap();
}

/// Positions of the state are given out one after the other, over all namespaces.
#[test]
fn four_servers_write_the_state_and_a_reader_that_follows_it_skips_nothing() {
    const EACH: usize = 40;
    let database = Database::new();
    let servers: Vec<Stage> = (0..4).map(|_| server(&database)).collect();
    let stores: Vec<_> = servers.iter().map(Stage::store).collect();
    let followed = thread::scope(|scope| {
        for (i, store) in stores.iter().enumerate() {
            scope.spawn(move || {
                for k in 0..EACH {
                    let changes = vec![Change::set(Name::new("n", "a", format!("{i}/{k}")), b"v")];
                    store.ask(Put { changes, ..Put::default() }, Durability::Committed).wait().unwrap();
                }
            });
        }
        let mut seen = Vec::new();
        let mut range =
            EventRange { namespace: "n".into(), agent: "a".into(), limit: 7, ..EventRange::default() };
        while seen.len() < 4 * EACH {
            for event in stores[0].state_events(&range).unwrap().events {
                range.after = event.item.position;
                seen.push(event.item.position.0);
            }
        }
        seen
    });
    assert_eq!(followed, (1..=4 * EACH as i64).collect::<Vec<_>>());
}

/// Runs of four servers that share parents and a named budget, in groups that overlap in many ways: limits hold, and
/// no two groups ever wait for each other in a circle.
#[test]
fn four_servers_never_pass_a_limit_and_never_deadlock() {
    let database = Database::new();
    let servers: Vec<Stage> = (0..4).map(|_| server(&database)).collect();
    let first = &servers[0];
    budgets::set(first, "team", Unit::CostNanoUsd, 60 * FULL);
    let parents = ["p", "q"].map(|id| first.run(id).cost(40 * FULL).create());
    let hot = first.run("hot").cost(20 * FULL).create();
    let deadlocks =
        format!("SELECT deadlocks::text FROM pg_stat_database WHERE datname = '{}'", database.name());
    let before = database.value(&deadlocks);
    let agents: Vec<Vec<Agent>> = (servers.iter().enumerate())
        .map(|(i, s)| {
            let process = s.process(&format!("server {i}"));
            let run = |k: usize| {
                let new = s.run(&format!("{i}-{k}")).under(parents[k % 2]);
                process.claim(if k.is_multiple_of(3) { new.tag("team", "a") } else { new }.create())
            };
            let mut agents: Vec<Agent> = (0..6).map(run).collect();
            agents.push(process.enter(hot, None));
            agents
        })
        .collect();
    let spent: i64 = thread::scope(|scope| {
        let threads: Vec<_> = (agents.iter().flatten().enumerate())
            .map(|(who, a)| scope.spawn(move || spends(a, who)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let of = |run: RunNo| first.money(run);
    assert_eq!(
        [hot, parents[0], parents[1]].map(of).iter().map(|m| (m.0, m.1)).collect::<Vec<_>>(),
        [(0, 0); 3]
    );
    assert_eq!(of(hot).2 + of(parents[0]).2 + of(parents[1]).2, spent);
    audit(&*first.store());
    drop((agents, servers));
    // A session tells its deadlocks when it ends.
    database.cut_connections();
    assert_eq!(database.value(&deadlocks), before, "none waited in a circle");
}

/// Calls, steps and changes of the state until nothing more goes, or for some turns; returns what was charged.
fn spends(a: &Agent, who: usize) -> i64 {
    let mut spent = 0;
    for turn in 0..12 {
        match a.request(&format!("{who}/{turn}")).ask().unwrap() {
            Admission::Go { opening: Opening { seq, .. }, cap, .. } => {
                let cost = 100 + cap.unwrap_or(900).min(500) as i64;
                a.done(seq, cost);
                spent += cost;
            }
            Admission::Refused(_) => break,
            _ => {}
        }
        let changes = vec![Change::set(Name::new("n", "a", format!("{who}/{turn}")), b"v")];
        a.ask(Put { changes, ..Put::default() }).unwrap();
    }
    spent
}

/// A server knows which envelopes its runs were charged to, and not what another has changed since.
#[test]
fn a_budget_that_another_server_has_set_since_is_charged() {
    let database = Database::new();
    let (one, other) = (server(&database), server(&database));
    let a = one.process("one").claim(one.run("r").tag("team", "a").create());
    a.buys("known from now on", 100);
    let set = budgets::set(&other, "team", Unit::CostNanoUsd, 10 * FULL);
    other.ask(ApplyBudget { budget: set.no, runs: vec![a.run], last: true }).unwrap();
    let b = budgets::member(&other, "q");
    b.buys("opens the window", 100);
    let late = b.settle(b.call("late"), Close::Done(bill(100)));
    waits_for(&database, (&other, late), (&one, a.request("under the budget").admit));
    assert_eq!(budgets::money(&one, "team"), (FULL, 0, 200));
    a.void(a.call("again"));
    assert_eq!(budgets::money(&other, "team"), (FULL, 0, 200));
    audit(&*one.store());
}
