//! Faults that only the PostgreSQL store can have: other people's databases, cut connections, outages.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use outlast_core::{
    engine::state::put::{Change, Put},
    state::Name,
    store::{Ask as _, Durability, state::Scan},
    words::{clock::Clock, id::Micros},
};

use crate::{
    bed::BEGINNING,
    beds::{Opened, open_at, open_of, open_under, open_waiting},
    private_postgres::Database,
    relay::{Cut, Relay},
    stage::{Stage, everything},
};

fn put(key: &str) -> Put {
    let changes = vec![Change::set(Name::new("n", "a", key), b"value")];
    Put { changes, ..Put::default() }
}

#[track_caller]
fn refused(url: &str, create: bool, code: &str, wanted: &str) {
    let error = open_at(url, create).map(|_| ()).unwrap_err();
    assert_eq!(error.code(), code, "{error}");
    assert!(error.to_string().contains(wanted), "{error}");
}

#[test]
fn a_missing_store_is_not_made_unless_asked_for() {
    let database = Database::new();
    refused(&database.url(), false, "store_open", "no store in this database");
    assert_eq!(database.value("SELECT to_regnamespace('outlast')"), None);
    open_at(&database.url(), true).unwrap();
    open_at(&database.url(), false).unwrap();
}

#[test]
fn a_database_that_cannot_be_reached_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    refused(&format!("postgres://u:secret@/d?host={place}"), true, "store_open", place);
    let database = Database::new();
    let url = database.url().replace(database.name(), "nobody_made_it");
    refused(&url, true, "store_open", "\"nobody_made_it\" does not exist");
}

#[test]
fn a_store_of_another_format_is_refused_and_left_alone() {
    for (found, code) in [("99", "store_newer"), ("1", "store_older")] {
        let database = Database::new();
        open_at(&database.url(), true).unwrap();
        database.execute(&format!("UPDATE outlast.meta SET value = '{found}' WHERE key = 'format'"));
        refused(&database.url(), true, code, &format!("has format {found},"));
        let format = "SELECT convert_from(value, 'UTF8') FROM outlast.meta WHERE key = 'format'";
        assert_eq!(database.value(format).as_deref(), Some(found));
    }
}

/// Servers with clocks of their own would disagree about what is over.
#[test]
fn time_is_the_databases_whatever_the_process_clock_says() {
    let database = Database::new();
    let s = Stage::on(Opened(open_at(&database.url(), true).unwrap()));
    let micros = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let asked = || Micros(database.value(micros).unwrap().parse().unwrap());
    let before = asked();
    let process = s.process("p");
    let told = [s.store().now().unwrap(), s.store().instance(process.no).unwrap().unwrap().registered_at];
    let after = asked();
    assert!(told.iter().all(|now| (before..=after).contains(now)), "{told:?} in {before:?}..={after:?}");
}

/// The server's clock cannot be set: what was committed is made older.
#[test]
fn ids_of_transactions_are_forgotten_when_they_are_old() {
    let database = Database::new();
    let store = open_at(&database.url(), true).unwrap();
    let named = |id: &str| Put { transaction: Some(id.into()), ..put("k") };
    let known = |id: &str| store.transaction_outcome(id).unwrap().is_some();
    let ids = ["a", "b", "c", "d", "e"];
    for id in ids.into_iter().chain(["new"]) {
        store.ask(named(id), Durability::Synced).wait().unwrap();
    }
    assert!(ids.into_iter().all(known));
    database.execute("UPDATE outlast.commits SET at = at - 8 * 86400000000");
    store.ask(named("newer"), Durability::Synced).wait().unwrap();
    assert_eq!(ids.map(known), [false, false, false, false, true]);
    assert!(known("new") && known("newer"));
}

#[test]
fn another_programs_schema_is_refused_and_left_alone() {
    for foreign in [
        "CREATE TABLE outlast.orders (id bigint)",
        "CREATE TABLE outlast.meta (key text, value bytea)",
        "CREATE TABLE outlast.meta (key text, value text); INSERT INTO outlast.meta VALUES ('format', '1')",
        "CREATE TABLE outlast.meta (name text)",
    ] {
        let database = Database::new();
        database.execute(&format!("CREATE SCHEMA outlast; {foreign}"));
        refused(&database.url(), true, "store_corrupt", "");
        let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'outlast'";
        assert_eq!(database.value(tables).as_deref(), Some("1"), "{foreign}");
    }
}

#[test]
fn an_empty_schema_that_was_made_for_us_is_used() {
    let database = Database::new();
    database.execute("CREATE SCHEMA outlast");
    open_at(&database.url(), true).unwrap();
}

#[test]
fn a_database_in_another_encoding_is_refused() {
    refused(&Database::in_latin1().url(), true, "store_open", "LATIN1");
}

#[test]
fn many_servers_make_one_store() {
    let database = Database::new();
    let url = database.url();
    let keys: Vec<_> = std::thread::scope(|scope| {
        let open = || open_at(&url, true).unwrap().token_keys().unwrap();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(keys.iter().all(|k| k.len() == 1 && *k == keys[0]));
}

#[test]
fn a_store_is_opened_read_and_closed_within_a_runtime() {
    let database = Database::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open_at(&database.url(), true).unwrap();
        assert_eq!(store.run_no(&outlast_core::words::id::RunId::new("r").unwrap()).unwrap(), None);
        let ticket = store.submit(put("k").into(), Durability::Synced);
        ticket.await.unwrap();
        assert!(store.now().unwrap().0 > 1_700_000_000_000_000);
    });
}

#[test]
fn names_may_be_longer_than_an_index_entry() {
    let database = Database::new();
    let s = Stage::on(Opened(open_at(&database.url(), true).unwrap()));
    // Not compressible: PostgreSQL compresses what it indexes.
    let digest = |i: u32| outlast_core::words::digest::Digest::of(&i.to_le_bytes()).to_string();
    let long: String = (0..200).map(digest).collect();
    let mut run = s.run("r");
    run.start.command_key = Some(long.clone());
    let run = run.create();
    let filter =
        outlast_core::store::RunFilter { command_key: Some(long.clone()), limit: 1, ..Default::default() };
    assert_eq!(s.store().runs(&filter).unwrap()[0].run.no, run);
    let agent = s.process("p").enter(run, Some(&long));
    let within = agent.within(&format!("\0{long}"));
    let seq = within.begins(&long);
    assert_eq!(within.begins(&long), seq);
    let change = |key: &str| Change::set(Name::new(&long, &long, key), b"v").expecting(0);
    let other = format!("{long}\0");
    s.ask(Put { changes: vec![change(&other), change(&long)], ..Put::default() }).unwrap();
    assert_eq!(s.store().state(&long, &long, &other).unwrap().unwrap().key, other);
    let (namespace, agent) = (long.clone(), long.clone());
    let scan = Scan { namespace, agent, prefix: long.clone(), limit: 9, ..Scan::default() };
    let keys =
        |scan: &Scan| s.store().state_keys(scan).unwrap().into_iter().map(|k| k.key).collect::<Vec<_>>();
    assert_eq!(keys(&scan), [long.clone(), other.clone()]);
    assert_eq!(keys(&Scan { after: Some(long.clone()), ..scan }), [other]);
}

#[test]
fn sessions_that_were_cut_while_idle_are_made_anew() {
    let database = Database::new();
    let s = Stage::on(Opened(open_at(&database.url(), true).unwrap()));
    s.ask(put("one")).unwrap();
    let before = everything(&*s.store());
    assert!(database.cut_connections() >= 2, "a reader's and the writer's");
    assert_eq!(everything(&*s.store()), before);
    s.ask(put("two")).unwrap();
    assert!(s.store().state("n", "a", "two").unwrap().is_some());
}

#[test]
fn an_outage_refuses_work_and_does_not_end_the_store() {
    let database = Database::new();
    let s = Stage::on(Opened(open_waiting(&database.url(), Duration::ZERO)));
    s.ask(put("before")).unwrap();
    database.let_in(false);
    database.cut_connections();
    for error in [s.ask(put("during")).unwrap_err(), s.store().live_instances().unwrap_err()] {
        assert_eq!(error.code(), "store_unavailable");
        assert!(error.to_string().contains("cannot be reached"), "{error}");
    }
    database.let_in(true);
    // For a moment after the outage it is still refused at once.
    let patience = Instant::now() + Duration::from_secs(30);
    while let Err(error) = s.ask(put("after")) {
        assert!(Instant::now() < patience, "{error}");
        std::thread::yield_now();
    }
    let is_there = |key| s.store().state("n", "a", key).unwrap().is_some();
    assert_eq!(["before", "during", "after"].map(is_there), [true, false, true]);
}

/// A commit whose connection is cut is done once, and the caller hears of success.
fn a_cut_commit_is_done_once(cut: Cut) {
    let database = Database::new();
    let relay = Relay::to(&database.socket_directory());
    let s = Stage::on(Opened(open_at(&database.url_at(relay.directory()), true).unwrap()));
    relay.cut_next(cut);
    let process = s.process("p");
    assert!(relay.has_cut());
    assert_eq!(s.store().live_instances().unwrap().len(), 1, "{cut:?}: registered once");
    for turn in 1..=3 {
        relay.cut_next(cut);
        s.ask(put("k")).unwrap();
        assert!(relay.has_cut());
        assert_eq!(s.store().state("n", "a", "k").unwrap().unwrap().version, turn, "{cut:?}");
    }
    assert_eq!(s.store().instance(process.no).unwrap().unwrap().no, process.no);
}

#[test]
fn a_commit_that_never_arrived_is_done_again() {
    a_cut_commit_is_done_once(Cut::BeforeCommit);
}

#[test]
fn a_commit_whose_answer_was_lost_is_not_done_again() {
    a_cut_commit_is_done_once(Cut::AfterCommit);
}

#[test]
fn a_cut_commit_of_nobody_is_told_as_unknown() {
    let database = Database::new();
    let relay = Relay::to(&database.socket_directory());
    let s = Stage::on(Opened(open_at(&database.url_at(relay.directory()), true).unwrap()));
    relay.cut_next(Cut::AfterCommit);
    // No process has registered through this store: there is no row that counts its operations.
    assert_eq!(s.ask(put("k")).unwrap_err().code(), "commit_unknown");
    s.ask(put("k")).unwrap();
    assert_eq!(
        s.store().state("n", "a", "k").unwrap().unwrap().version,
        2,
        "the store goes on from what was done"
    );
}

#[test]
fn operations_wait_for_a_database_that_is_away() {
    let database = Database::new();
    let s = Stage::on(Opened(open_at(&database.url(), true).unwrap()));
    s.ask(put("before")).unwrap();
    database.let_in(false);
    database.cut_connections();
    let held = s.store().submit(put("during").into(), Durability::Synced);
    assert_eq!(s.store().live_instances().unwrap_err().code(), "store_unavailable");
    database.let_in(true);
    held.wait().unwrap();
}

/// Bug: a server whose COMMIT stayed unclear for 60 s refused all work until it was started again.
/// Consequence: an outage of two minutes at the wrong moment ended every server of the fleet for good.
/// Cause: what could not be asked within the minute was never asked again.
fn a_commit_unclear_for_long_is_resolved_when_the_database_is_back(cut: Cut, version: i64) {
    let database = Database::new();
    let relay = Relay::to(&database.socket_directory());
    let s = Stage::on(Opened(open_waiting(&database.url_at(relay.directory()), Duration::ZERO)));
    let process = s.process("p");
    s.ask(put("k")).unwrap();
    // The session that is open goes on, and no other one can be had to ask.
    database.let_in(false);
    relay.cut_next(cut);
    assert_eq!(s.ask(put("k")).unwrap_err().code(), "commit_unknown");
    assert!(relay.has_cut());
    for _ in 0..2 {
        let error = s.ask(put("other")).unwrap_err();
        assert_eq!(error.code(), "store_unavailable", "new work is refused for the moment: {error}");
    }
    database.let_in(true);
    s.ask(put("after")).unwrap();
    let version_of = |key| s.store().state("n", "a", key).unwrap().map(|item| item.version);
    assert_eq!((version_of("k"), version_of("other")), (Some(version), None));
    process.renews(Vec::new());
}

#[test]
fn a_commit_long_unclear_that_never_arrived_was_not_done() {
    a_commit_unclear_for_long_is_resolved_when_the_database_is_back(Cut::BeforeCommit, 1);
}

#[test]
fn a_commit_long_unclear_whose_answer_was_lost_was_done() {
    a_commit_unclear_for_long_is_resolved_when_the_database_is_back(Cut::AfterCommit, 2);
}

#[test]
fn who_waits_for_an_unclear_commit_is_told_the_truth() {
    for (cut, version) in [(Cut::BeforeCommit, 1), (Cut::AfterCommit, 1)] {
        let database = Database::new();
        let relay = Relay::to(&database.socket_directory());
        let s = Stage::on(Opened(open_at(&database.url_at(relay.directory()), true).unwrap()));
        s.process("p");
        database.let_in(false);
        relay.cut_next(cut);
        let held = s.store().submit(put("k").into(), Durability::Synced);
        let later = s.store().submit(put("later").into(), Durability::Synced);
        database.let_in(true);
        held.wait().unwrap();
        later.wait().unwrap();
        let version_of = |key| s.store().state("n", "a", key).unwrap().map(|item| item.version);
        assert_eq!((version_of("k"), version_of("later")), (Some(version), Some(1)), "{cut:?}");
    }
}

/// Bug: a server that was stopped in the middle of a group kept all others waiting for 15 s.
/// Consequence: one frozen process stopped the whole fleet.
/// Cause: the database ended a transaction only after it had stood still for as long.
#[test]
fn a_server_that_freezes_within_a_group_stops_no_other() {
    let database = Database::new();
    let relay = Relay::to(&database.socket_directory());
    let frozen = Stage::on(Opened(open_at(&database.url_at(relay.directory()), true).unwrap()));
    let other = Stage::on(Opened(open_at(&database.url(), true).unwrap()));
    relay.cut_next(Cut::Frozen);
    let held = frozen.store().submit(put("held").into(), Durability::Synced);
    while !relay.has_cut() {
        std::thread::yield_now();
    }
    // The lock would be waited for 30 s, and nobody thaws the one that holds it.
    other.ask(put("other")).unwrap();
    relay.thaw();
    held.wait().unwrap();
    let version = |key| other.store().state("n", "a", key).unwrap().map(|item| item.version);
    assert_eq!(["held", "other"].map(version), [Some(1); 2], "each is done once");
}

/// Bug: a transaction that the database had ended before its COMMIT was sent was told as one of unknown outcome.
/// Consequence: work that could be done again at once was refused.
/// Cause: the end of the session was noticed only by the COMMIT's failure.
#[test]
fn a_group_that_froze_before_its_commit_is_done_again() {
    let database = Arc::new(Database::new());
    let clock = Arc::new(CutsSessions { database: database.clone(), is_armed: AtomicBool::new(false) });
    let s = Stage::on(Opened(open_under(clock.clone(), &database.url(), true)));
    s.ask(put("k")).unwrap();
    clock.is_armed.store(true, Ordering::SeqCst);
    s.ask(put("k")).unwrap();
    assert!(!clock.is_armed.load(Ordering::SeqCst));
    assert_eq!(s.store().state("n", "a", "k").unwrap().unwrap().version, 2, "done once");
}

/// A clock that is read within each transaction, and once ends all sessions.
struct CutsSessions {
    database: Arc<Database>,
    is_armed: AtomicBool,
}

impl Clock for CutsSessions {
    fn now(&self) -> Micros {
        if self.is_armed.swap(false, Ordering::SeqCst) {
            self.database.cut_connections();
        }
        BEGINNING
    }

    fn monotonic_ms(&self) -> u64 {
        0
    }

    fn boottime_ms(&self) -> u64 {
        0
    }
}

/// Bug: a server went on in a new store that had come under the name of its own.
/// Consequence: recorded calls were paid again.
/// Cause: nothing compared the two after the connections were made anew.
#[test]
fn another_store_under_the_same_name_is_not_served() {
    let database = Database::new();
    let s = Stage::on(Opened(open_at(&database.url(), true).unwrap()));
    s.ask(put("k")).unwrap();
    database.execute("ALTER SCHEMA outlast RENAME TO outlast_away");
    let is_gone = || {
        for error in [s.ask(put("k")).unwrap_err(), s.store().live_instances().unwrap_err()] {
            assert_eq!(error.code(), "store_vanished", "{error}");
        }
        assert_eq!(s.store().check().unwrap_err().code(), "store_vanished");
    };
    is_gone();
    drop(open_of(&database.url(), 8));
    database.cut_connections();
    is_gone();
    assert!(s.store().check().unwrap_err().hint().unwrap().contains("put the database back"));
    database.execute("DROP SCHEMA outlast CASCADE; ALTER SCHEMA outlast_away RENAME TO outlast");
    database.cut_connections();
    assert_eq!(s.store().state("n", "a", "k").unwrap().unwrap().version, 1);
    s.ask(put("k")).unwrap();
    s.store().check().unwrap();
    assert_eq!(s.store().state("n", "a", "k").unwrap().unwrap().version, 2, "it is served when it is back");
}

#[test]
fn stores_in_two_schemas_of_a_database_do_not_see_each_other() {
    let database = Database::new();
    let (one, two) = (database.url_in("team_a"), database.url_in("user"));
    refused(&one, false, "store_open", "no store in the schema team_a of this database");
    let [a, b] = [(&one, 1), (&two, 2)].map(|(url, seed)| Stage::on(Opened(open_of(url, seed))));
    refused(&database.url(), false, "store_open", "no store in this database");
    assert!(a.store().place().ends_with("&schema=team_a"), "{}", a.store().place());
    let (agent, other) =
        (a.process("p").claim(a.run("r").create()), b.process("q").claim(b.run("r").create()));
    agent.buys("one", 100);
    let step = agent.begins("step");
    agent.ask(agent.record(step, "done")).unwrap();
    a.ask(put("k")).unwrap();
    assert_eq!(b.store().state("n", "a", "k").unwrap(), None);
    assert_eq!(b.store().entries(other.run, Default::default(), 9).unwrap(), []);
    assert_ne!(a.store().token_keys().unwrap(), b.store().token_keys().unwrap());
    // Neither waits for the other's group, nor for one of the usual schema.
    let of_a = "('x' || left(encode(sha256('outlast schema team_a'), 'hex'), 16))::bit(64)::bigint";
    let lock = |key: &str| format!("SELECT pg_advisory_xact_lock({key})");
    let group = database.begun(&format!("{}; {}", lock(of_a), lock("31372865309864820")));
    b.ask(put("other")).unwrap();
    let held = a.store().submit(put("held").into(), Durability::Synced);
    database.wait_for_a_waiting_server();
    group.commit();
    held.wait().unwrap();
    // A store that is gone is told, whatever stands beside it.
    database.execute("DROP SCHEMA team_a CASCADE");
    assert_eq!(a.ask(put("k")).unwrap_err().code(), "store_vanished");
    b.ask(put("k")).unwrap();
    assert_eq!(database.value("SELECT to_regnamespace('outlast')"), None);
}

#[test]
fn nothing_depends_on_the_databases_own_settings() {
    let database = Database::new();
    for setting in [
        "search_path = ''",
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = on",
        "synchronous_commit = off",
        "bytea_output = 'escape'",
        "standard_conforming_strings = off",
        "timezone = 'Asia/Kathmandu'",
    ] {
        database.administer(&format!("ALTER DATABASE {} SET {setting}", database.name()));
    }
    let s = Stage::on(Opened(open_at(&database.url(), true).unwrap()));
    let a = s.process("p").claim(s.run("r").create());
    a.buys("one", 100);
    s.ask(put("k\\")).unwrap();
    assert!(s.store().state("n", "a", "k\\").unwrap().is_some());
}
