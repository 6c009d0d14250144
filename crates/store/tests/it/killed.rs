//! kill -9 of a process that writes: every acknowledged operation is there.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    process::Stdio,
    sync::Arc,
};

use outlast_core::{
    engine::{
        run::process::Register,
        state::put::{Change, Put},
    },
    run::instance::Identity,
    state::Name,
    store::{Ask as _, Durability, Store, state::EventRange},
};

use crate::{
    beds::{open_at, place},
    child,
    private_postgres::Database,
};

/// Keys that are written side by side, so that groups have several operations.
const KEYS: usize = 8;

fn put(key: &str, version: i64) -> Put {
    let value = format!("{key} {version}");
    Put { changes: vec![Change::set(Name::new("n", "a", key), value.as_bytes())], ..Put::default() }
}

/// The child's part: writes until it is killed, and tells what was acknowledged.
fn write_for_ever(place: &str) {
    let store = open_at(place, true).unwrap();
    store.ask(Register { identity: Identity::default() }, Durability::Synced).wait().unwrap();
    for version in 1.. {
        // Not synced either: a killed process loses nothing that was committed.
        let durability = if version % 3 == 0 { Durability::Synced } else { Durability::Committed };
        let pending: Vec<_> =
            (0..KEYS).map(|k| (k, store.ask(put(&format!("k{k}"), version), durability))).collect();
        for (k, ticket) in pending {
            ticket.wait().unwrap();
            child::say(&format!("acked k{k} {version}"));
        }
    }
}

fn acked(line: &str) -> Option<(String, i64)> {
    let (key, version) = line.strip_prefix("acked ")?.split_once(' ')?;
    Some((key.to_owned(), version.parse().unwrap()))
}

/// Kills a writer after `lines` acknowledgements, and looks for all it had given.
fn check(test: &str, place: &str, lines: usize) {
    let mut writer = child::command(&child::argv(test), place).stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(writer.stdout.take().unwrap());
    let mut seen: BTreeMap<String, i64> = BTreeMap::new();
    let mut count = 0;
    for line in out.lines() {
        // Lines that are still in the pipe were acknowledged, too.
        let Some((key, version)) = acked(&line.unwrap()) else { continue };
        seen.insert(key, version);
        count += 1;
        if count == lines {
            writer.kill().unwrap();
        }
    }
    writer.wait().unwrap();
    assert!(count >= lines, "the writer ended by itself after {count} acknowledgements");
    let store: Arc<dyn Store> = open_at(place, false).unwrap();
    for (key, version) in seen {
        let item = store.state("n", "a", &key).unwrap().unwrap();
        assert!(item.version >= version, "{key}: version {version} was acknowledged, {} found", item.version);
    }
    // The next process goes on.
    store.ask(put("k0", 0), Durability::Synced).wait().unwrap();
}

/// Writers side by side in one process.
const WRITERS: usize = 4;

/// Keys that each transaction sets to its own id, as (namespace, agent, key).
const PLACES: [(&str, &str, &str); 4] =
    [("n", "a", "x"), ("n", "a", "y"), ("n", "a:b", "c"), ("m", "a", "b:c")];

fn transaction(id: &str) -> Put {
    // Long enough that a commit is several pages.
    let value = format!("{id} {}", "v".repeat(500));
    let set = |(namespace, agent, key)| Change::set(Name::new(namespace, agent, key), value.as_bytes());
    Put { actor: None, changes: PLACES.map(set).to_vec(), transaction: Some(id.into()) }
}

/// The child's part: commits transactions of many keys until it is killed.
fn transact_for_ever(place: &str) {
    let store = open_at(place, true).unwrap();
    let life = std::process::id();
    store.ask(Register { identity: Identity::default() }, Durability::Synced).wait().unwrap();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let store = &store;
            scope.spawn(move || {
                for n in 0.. {
                    let id = format!("t-{life}-{writer}-{n}");
                    store.ask(transaction(&id), Durability::Synced).wait().unwrap();
                    child::say(&format!("done {id}"));
                }
            });
        }
    });
}

/// Every acknowledged transaction is there whole, and what was not acknowledged is whole or not there: in the
/// outcomes, in the log of each agent, and in what stands at each key. Returns how many commits there are.
fn look_whole(store: &dyn Store, acknowledged: &[String]) -> usize {
    for id in acknowledged {
        assert!(store.transaction_outcome(id).unwrap().is_some(), "{id} was acknowledged");
    }
    let mut logged: BTreeMap<String, usize> = BTreeMap::new();
    let mut newest: BTreeMap<(String, String, String), (i64, Option<bytes::Bytes>)> = BTreeMap::new();
    for (namespace, agent) in [("n", "a"), ("n", "a:b"), ("m", "a")] {
        let (namespace, agent) = (namespace.to_owned(), agent.to_owned());
        let range = EventRange { namespace, agent, limit: usize::MAX >> 1, ..EventRange::default() };
        for event in store.state_events(&range).unwrap().events {
            let id = event.transaction.unwrap();
            let text = String::from_utf8(event.item.value.clone().unwrap().to_vec()).unwrap();
            assert_eq!(text.split(' ').next(), Some(id.as_str()), "a value of another transaction");
            *logged.entry(id).or_default() += 1;
            let i = event.item;
            newest.insert((i.namespace, i.agent, i.key), (i.version, i.value));
        }
    }
    let torn: Vec<_> = logged.iter().filter(|(_, n)| **n != PLACES.len()).collect();
    assert!(torn.is_empty(), "torn: {torn:?}");
    for (namespace, agent, key) in PLACES {
        let stands = store.state(namespace, agent, key).unwrap().map(|i| (i.version, i.value));
        let told = newest.remove(&(namespace.into(), agent.into(), key.into()));
        assert_eq!(stands, told, "log and state of {namespace}/{agent}/{key}");
    }
    acknowledged.iter().for_each(|id| assert!(logged.contains_key(id), "{id} is not in the log"));
    logged.len()
}

/// Kills a process that commits, `times` times on one store, each time elsewhere.
fn check_whole(test: &str, place: &str, times: usize) {
    let mut acknowledged = Vec::new();
    for turn in 0..times {
        let mut writer = child::command(&child::argv(test), place).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(writer.stdout.take().unwrap());
        let mut count = 0;
        for line in out.lines() {
            let line = line.unwrap();
            let Some(id) = line.strip_prefix("done ") else { continue };
            acknowledged.push(id.to_owned());
            count += 1;
            if count == 1 + turn * 7 % 23 {
                writer.kill().unwrap();
            }
        }
        writer.wait().unwrap();
        let store = open_at(place, false).unwrap();
        let commits = look_whole(&*store, &acknowledged);
        assert!(commits >= acknowledged.len() && acknowledged.len() > turn);
    }
}

#[test]
fn fifty_kills_in_mid_commit_lose_and_tear_no_transaction_in_sqlite() {
    if let Some(place) = child::part() {
        return transact_for_ever(&place);
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outlast.db");
    let test = "killed::fifty_kills_in_mid_commit_lose_and_tear_no_transaction_in_sqlite";
    check_whole(test, place(&path), 50);
}

#[test]
fn kills_in_mid_commit_lose_and_tear_no_transaction_in_postgres() {
    if let Some(place) = child::part() {
        return transact_for_ever(&place);
    }
    let database = Database::new();
    let test = "killed::kills_in_mid_commit_lose_and_tear_no_transaction_in_postgres";
    check_whole(test, &database.url(), 10);
}

#[test]
fn acknowledged_writes_survive_kill_9_in_sqlite() {
    if let Some(place) = child::part() {
        return write_for_ever(&place);
    }
    for lines in [1, 100, 1000] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("outlast.db");
        check("killed::acknowledged_writes_survive_kill_9_in_sqlite", place(&path), lines);
    }
}

#[test]
fn acknowledged_writes_survive_kill_9_in_postgres() {
    if let Some(place) = child::part() {
        return write_for_ever(&place);
    }
    for lines in [1, 100] {
        let database = Database::new();
        check("killed::acknowledged_writes_survive_kill_9_in_postgres", &database.url(), lines);
    }
}
