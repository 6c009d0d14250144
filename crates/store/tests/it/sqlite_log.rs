//! The SQLite store's log as it lies in the file: synced commits are written there our way, among others'.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use outlast_core::{
    engine::{
        run::start::Start,
        state::put::{Change, Put},
    },
    run::Spec,
    state::Name,
    store::{Ask as _, Durability, Store},
    words::id::RunId,
};
use rusqlite::Connection;

use crate::beds::{open_at, place};

fn started(id: &str, spec: Spec) -> Start {
    Start { spec, ..Start::new(RunId::new(id).unwrap()) }
}

fn start(store: &Arc<dyn Store>, id: &str, durability: Durability) {
    assert!(store.ask(started(id, Spec::default()), durability).wait().unwrap().created, "{id}");
}

fn log_of(path: &Path) -> PathBuf {
    path.with_extension("db-wal")
}

/// The runs that a copy of the file and its log holds, as after a kill of all processes.
fn copied(path: &Path, to: &Path) -> Vec<String> {
    let copy = to.join("copy.db");
    let _ = fs::remove_file(to.join("copy.db-shm"));
    fs::copy(path, &copy).unwrap();
    fs::copy(log_of(path), log_of(&copy)).unwrap();
    let conn = Connection::open(&copy).unwrap();
    let whole: String = conn.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
    assert_eq!(whole, "ok");
    let mut runs = conn.prepare("SELECT id FROM runs ORDER BY no").unwrap();
    runs.query_map([], |r| r.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

#[test]
fn each_commit_is_in_the_files_whoever_else_writes_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outlast.db");
    let ours = open_at(place(&path), true).unwrap();
    let theirs = open_at(place(&path), false).unwrap();
    // A connection that knows nothing of our ways, and begins the log anew now and then.
    let plain = Connection::open(&path).unwrap();
    plain.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
    let copies = tempfile::tempdir().unwrap();
    let mut want = Vec::new();
    for i in 0..60 {
        let id = format!("r{i}");
        match i % 6 {
            0 | 1 | 4 => start(&ours, &id, Durability::Synced),
            2 => start(&ours, &id, Durability::Committed),
            3 => start(&theirs, &id, Durability::Synced),
            _ => {
                plain.execute("UPDATE meta SET value = value", []).unwrap();
                start(&theirs, &id, Durability::Synced);
            }
        }
        if i % 11 == 0 {
            plain.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
        }
        want.push(id);
        assert_eq!(copied(&path, copies.path()), want);
    }
}

#[test]
fn a_group_larger_than_what_is_gathered_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outlast.db");
    let store = open_at(place(&path), true).unwrap();
    let ids: Vec<String> = (0..1500).map(|i| format!("r{i}")).collect();
    // Some 6 MB in groups of up to 512.
    let spec = Spec { name: Some("x".repeat(3500)), ..Spec::default() };
    let pending: Vec<_> =
        ids.iter().map(|id| store.ask(started(id, spec.clone()), Durability::Synced)).collect();
    pending.into_iter().for_each(|p| assert!(p.wait().unwrap().created));
    assert_eq!(copied(&path, tempfile::tempdir().unwrap().path()), ids);
}

// Bug: a commit of more than 128 KiB was refused as if the disk were full.
// Cause: SQLite's function that writes a file counts no further in one call.
#[test]
fn one_operation_of_many_pages_is_written_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outlast.db");
    let (ours, theirs) = (open_at(place(&path), true).unwrap(), open_at(place(&path), false).unwrap());
    for (round, keys) in [1, 40, 400, 4000].into_iter().enumerate() {
        // Before ours another's, or none: what follows one's own commit is written in another way.
        if round % 2 == 0 {
            start(&theirs, &format!("theirs-{round}"), Durability::Synced);
        }
        let value = [round as u8; 500];
        let set = |i| Change::set(Name::new("n", "a", format!("k{i}")), &value);
        let put = Put { changes: (0..keys).map(set).collect(), ..Put::default() };
        ours.ask(put, Durability::Synced).wait().unwrap();
    }
    assert_eq!(copied(&path, tempfile::tempdir().unwrap().path()).len(), 2);
}

#[test]
fn the_log_grows_in_steps() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outlast.db");
    let store = open_at(place(&path), true).unwrap();
    let size = || fs::metadata(log_of(&path)).unwrap().len();
    let sizes: BTreeSet<u64> = (0..20)
        .map(|i| {
            start(&store, &format!("r{i}"), Durability::Synced);
            size()
        })
        .skip(1)
        .collect();
    // By a page or more with each commit, were it left to itself.
    assert!(sizes.len() < 6 && sizes.iter().all(|size| size % 4096 == 0), "{sizes:?}");
}
