//! Commits that a database had acknowledged and has lost: they are counted and told, and where none is lost, nothing is.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use outlast_core::{
    engine::{
        self,
        state::put::{Change, Put},
    },
    state::Name,
    store::{Ask as _, Durability, Error, Losses, Store},
};

use crate::{
    beds::{Opened, open_at},
    own_server::Server,
    private_postgres::Database,
    relay::Relay,
    stage::Stage,
};

fn put() -> Put {
    Put { changes: vec![Change::set(Name::new("n", "a", "k"), b"value")], ..Put::default() }
}

fn version(store: &dyn Store) -> i64 {
    store.state("n", "a", "k").unwrap().map_or(0, |item| item.version)
}

/// Counts commits one by one while the server is killed three times, and returns how many were acknowledged.
fn under_kills(server: &Server, store: &dyn Store, durability: Durability) -> i64 {
    let (acknowledged, is_over) = (AtomicI64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                store.ask(put(), durability).wait().unwrap();
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
        });
        for _ in 0..3 {
            let before = acknowledged.load(Ordering::SeqCst);
            while acknowledged.load(Ordering::SeqCst) < before + 20 {
                std::thread::yield_now();
            }
            server.kill();
            server.go_on();
        }
        is_over.store(true, Ordering::SeqCst);
    });
    // Read where a transaction begins: the last kill's loss may not have been met yet.
    store.ask(put(), Durability::Synced).wait().unwrap();
    acknowledged.load(Ordering::SeqCst) + 1
}

#[test]
fn a_server_killed_under_load_loses_no_synced_commit_and_none_is_told() {
    let server = Server::start();
    let s = Stage::on(Opened(open_at(server.url(), true).unwrap()));
    s.process("p");
    let acknowledged = under_kills(&server, &*s.store(), Durability::Synced);
    assert_eq!(version(&*s.store()), acknowledged);
    assert_eq!(s.store().losses(), Losses::default());
}

#[test]
fn commits_that_were_not_synced_and_are_lost_by_a_kill_are_counted() {
    let server = Server::start();
    // The log stays in the server's memory.
    server.set("synchronous_commit = off\nwal_writer_delay = 10s\nwal_writer_flush_after = 1GB\n");
    server.kill();
    server.go_on();
    let s = Stage::on(Opened(open_at(server.url(), true).unwrap()));
    s.process("p");
    let acknowledged = under_kills(&server, &*s.store(), Durability::Committed);
    let losses = s.store().losses();
    let lost = acknowledged - version(&*s.store());
    assert!(lost > 0, "the server kept what was in its memory only");
    assert_eq!(i64::try_from(losses.commits).unwrap(), lost, "{losses:?}");
    let newest = losses.newest.unwrap();
    assert_eq!((newest.synced, newest.is_least, newest.is_unregistered), (0, false, false), "{newest}");
    assert!(newest.cause.contains("the server was started anew at"), "{newest}");
}

#[test]
fn what_a_promoted_standby_does_not_have_is_told_and_no_result_reaches_another_step() {
    let mut server = Server::start();
    let s = Stage::on(Opened(open_at(server.url(), true).unwrap()));
    let agent = s.process("p").claim(s.run("r").create());
    let standby = server.standby();
    // Both are acknowledged as synced, and the standby has neither.
    let lost = agent.begins("lost");
    s.ask(put()).unwrap();
    let late = agent.record(lost, "lost");
    server.kill();
    server.promote(standby);
    assert_eq!(agent.ask(late.clone()).unwrap_err().code(), "unknown_entry");
    let next = agent.begins("next");
    assert_eq!(next, lost, "the number is given out again");
    let refused = Error::Engine(engine::Error::AlreadyTaken { seq: lost.0 });
    assert_eq!(agent.ask(late), Err(refused));
    agent.ask(agent.record(next, "next")).unwrap();
    let losses = s.store().losses();
    let newest = losses.newest.unwrap();
    assert_eq!((losses.commits, newest.commits, newest.synced), (2, 2, 2), "{newest}");
    assert!(newest.cause.contains("promoted, or a backup restored (timeline 2, before 1)"), "{newest}");
}

#[test]
fn a_synchronous_standby_that_is_promoted_under_load_has_all_that_was_acknowledged_as_synced() {
    let mut server = Server::start();
    let s = Stage::on(Opened(open_at(server.url(), true).unwrap()));
    s.process("p");
    let (store, acknowledged, is_over) = (s.store(), AtomicI64::new(0), AtomicBool::new(false));
    let follower = server.follower(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                store.ask(put(), Durability::Synced).wait().unwrap();
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
        });
        let until = |count| {
            while acknowledged.load(Ordering::SeqCst) < count {
                std::thread::yield_now();
            }
        };
        until(50);
        server.kill();
        server.fail_over(follower);
        until(acknowledged.load(Ordering::SeqCst) + 50);
        is_over.store(true, Ordering::SeqCst);
    });
    assert_eq!(version(&*s.store()), acknowledged.into_inner());
    assert_eq!(s.store().losses(), Losses::default());
}

#[test]
fn what_an_asynchronous_standby_had_not_received_is_told_when_it_is_promoted() {
    let mut server = Server::start();
    let s = Stage::on(Opened(open_at(server.url(), true).unwrap()));
    s.process("p");
    let follower = server.follower(false);
    (0..3).for_each(|_| drop(s.ask(put()).unwrap()));
    server.lose(&follower);
    let kept = version(&*s.store());
    (0..4).for_each(|_| drop(s.ask(put()).unwrap()));
    server.kill();
    server.fail_over(follower);
    s.ask(put()).unwrap();
    let had = version(&*s.store()) - 1;
    assert!((0..=kept).contains(&had), "{had} of {kept}");
    let losses = s.store().losses();
    let newest = losses.newest.unwrap();
    assert_eq!(
        (losses.commits, newest.synced),
        (u64::try_from(kept + 4 - had).unwrap(), losses.commits),
        "{newest}"
    );
    assert!(newest.cause.contains("promoted, or a backup restored (timeline 2, before 1)"), "{newest}");
}

#[test]
fn behind_a_pooler_a_loss_is_found_though_no_connection_ended() {
    let database = Database::new();
    let relay = Relay::to(&database.socket_directory());
    relay.spoil_tokens();
    let s = Stage::on(Opened(open_at(&database.url_at(relay.directory()), true).unwrap()));
    s.process("p");
    s.ask(put()).unwrap();
    s.ask(put()).unwrap();
    assert_eq!(s.store().losses(), Losses::default());
    // As the pooler's new server, which lacks the last commit.
    database.execute("UPDATE outlast.instances SET op_counter = op_counter - 1");
    s.ask(put()).unwrap();
    assert_eq!(s.store().losses().commits, 1);
    s.ask(put()).unwrap();
    assert_eq!(s.store().losses().commits, 1, "told once");
}

#[test]
fn a_process_whose_registration_is_gone_is_told_and_registers_anew() {
    let database = Database::new();
    let s = Stage::on(Opened(open_at(&database.url(), true).unwrap()));
    s.process("kept");
    let process = s.process("p");
    s.ask(put()).unwrap();
    database.execute(&format!("DELETE FROM outlast.instances WHERE no = {}", process.no.0));
    database.cut_connections();
    assert_eq!(process.ask(process.renewal(Vec::new())).unwrap_err().code(), "instance_dead");
    let newest = s.store().losses().newest.unwrap();
    assert_eq!((newest.commits, newest.synced, newest.is_unregistered), (2, 2, true), "{newest}");
    assert!(newest.cause.contains("recovered from a crash"), "{newest}");
    let again = s.process("p");
    assert_eq!(again.no, process.no, "the number is given out again");
    again.renews(Vec::new());
    assert_eq!(s.store().losses().commits, 2);
}
