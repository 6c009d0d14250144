//! kill -9 of a process that writes: every acknowledged operation is there.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    process::Stdio,
    sync::Arc,
};

use outlast_core::{
    engine::{
        put::{Change, Put},
        register::Register,
    },
    instance::Identity,
    op::Durability,
    state::Name,
    store::{Ask as _, Store},
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
        // What stands in the pipe was acknowledged too.
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
