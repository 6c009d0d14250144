//! Faults that only the SQLite store can have: the file, its permissions, and other programs' files.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use outlast_core::{
    engine::{
        run::start::Start,
        state::put::{Change, Put},
    },
    state::Name,
    store::{Ask as _, Durability, Error, Store},
    words::{
        clock::{Entropy as _, SeededEntropy},
        id::RunId,
    },
};
use outlast_store::{FORMAT, OLDEST, sqlite::MIN_SQLITE};
use rusqlite::Connection;

use crate::{
    beds::{open_at, place},
    child,
};

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outlast.db");
    (directory, path)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Every file in the directory with what it holds.
fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(directory).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<_> = entries.map(|p| (p.clone(), fs::read(p).unwrap())).collect();
    files.sort();
    files
}

/// The file is refused with this code, and the directory is as it was.
#[track_caller]
fn refused_and_unchanged(path: &Path, create: bool, code: &str) -> Error {
    let before = files(path.parent().unwrap());
    let error = open_at(place(path), create).map(|_| ()).unwrap_err();
    assert_eq!(error.code(), code, "{error}");
    assert!(files(path.parent().unwrap()) == before, "{code}: something was written");
    error
}

fn started(id: &str) -> Start {
    Start::new(RunId::new(id).unwrap())
}

/// Creates runs 0..n, many in a group.
fn create_runs(store: &Arc<dyn Store>, n: usize) {
    let pending: Vec<_> =
        (0..n).map(|i| store.ask(started(&format!("r{i}")), Durability::Committed)).collect();
    pending.into_iter().for_each(|p| assert!(p.wait().unwrap().created));
}

#[test]
fn the_linked_sqlite_has_no_wal_reset_bug() {
    assert!(rusqlite::version_number() >= MIN_SQLITE && MIN_SQLITE >= 3_051_003);
}

#[test]
fn only_its_owner_reads_the_store() {
    let (directory, path) = directory();
    let store = open_at(place(&path), true).unwrap();
    create_runs(&store, 1);
    let names: Vec<_> = files(directory.path()).into_iter().map(|f| f.0).collect();
    assert!(names.len() >= 3, "the file, its WAL and the WAL's index: {names:?}");
    for name in names {
        assert_eq!(mode(&name), 0o600, "{}", name.display());
    }
}

/// Bug: a store was made below directories that were not there. Consequence: of a name with a mistake in it, a fresh start
/// that paid again. Cause: any missing directory was made.
#[test]
fn a_missing_directory_is_refused_and_not_made() {
    let (directory, _) = directory();
    let error = open_at(place(&directory.path().join("a/outlast.db")), true).map(|_| ()).unwrap_err();
    assert_eq!(error.code(), "store_open");
    assert!(error.to_string().contains("make it first"), "{error}");
    assert!(files(directory.path()).is_empty());
}

#[test]
fn a_missing_store_is_not_made_unless_asked_for() {
    let (directory, path) = directory();
    let error = refused_and_unchanged(&path, false, "store_open");
    assert!(error.to_string().contains("no such file"), "{error}");
    assert!(files(directory.path()).is_empty());
}

#[test]
fn many_processes_make_one_store() {
    for _ in 0..10 {
        let (_directory, path) = directory();
        let keys: Vec<_> = std::thread::scope(|scope| {
            let open = || open_at(place(&path), true).unwrap().token_keys().unwrap();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|k| k.len() == 1 && *k == keys[0]));
    }
}

// Bug: a store whose file was emptied was opened as a new one.
// Consequence: spend began at nothing, and what had been paid was paid again.
// Cause: SQLite takes an empty file for a new database, and the store was made by making one.
#[test]
fn an_empty_file_is_refused_and_never_a_new_store() {
    let (directory, path) = directory();
    create_runs(&open_at(place(&path), true).unwrap(), 1);
    for left in files(directory.path()) {
        assert!(!left.0.to_string_lossy().contains(".new-"), "{left:?}");
    }
    fs::write(&path, "").unwrap();
    for beside in ["outlast.db-wal", "outlast.db-shm"] {
        // Gone after a clean end.
        let _ = fs::remove_file(directory.path().join(beside));
    }
    for create in [true, false] {
        let error = refused_and_unchanged(&path, create, "store_corrupt");
        assert!(error.to_string().contains("outlast.db is empty"), "{error}");
    }
}

#[test]
fn a_store_whose_making_was_cut_off_once_it_had_its_name_is_made_to_its_end() {
    let (_directory, path) = directory();
    Connection::open(&path).unwrap().pragma_update(None, "application_id", 0x4f55_544c).unwrap();
    create_runs(&open_at(place(&path), true).unwrap(), 1);
}

#[test]
fn a_store_of_another_format_is_refused_and_left_alone() {
    for (found, code, wanted) in
        [(99, "store_newer", format!("up to {FORMAT}")), (1, "store_older", format!("format {OLDEST} and"))]
    {
        let (_directory, path) = directory();
        drop(open_at(place(&path), true).unwrap());
        Connection::open(&path).unwrap().pragma_update(None, "user_version", found).unwrap();
        let error = refused_and_unchanged(&path, true, code).to_string();
        assert!(error.contains(&format!("has format {found},")) && error.contains(&wanted), "{error}");
    }
}

#[test]
fn another_programs_database_is_refused_and_left_alone() {
    for foreign in ["CREATE TABLE orders (id INTEGER)", "PRAGMA user_version = 1"] {
        let (_directory, path) = directory();
        Connection::open(&path).unwrap().execute_batch(foreign).unwrap();
        refused_and_unchanged(&path, true, "store_corrupt");
    }
}

#[test]
fn what_is_no_database_is_refused_and_left_alone() {
    let garbage: Vec<u8> = (0..9000_u32).map(|i| (i * 31 % 251) as u8).collect();
    for content in [garbage, b"these are somebody's notes\n".repeat(40), b"short".to_vec()] {
        let (_directory, path) = directory();
        fs::write(&path, &content).unwrap();
        refused_and_unchanged(&path, true, "store_corrupt");
    }
}

// Bug: a store was opened under two names of one file at once.
// Consequence: two logs over one file; what was recorded under one name was paid again under the other.
// Cause: SQLite knows a log, and the locks of its index, by the name.
#[test]
fn a_store_with_two_names_is_refused_under_both() {
    let (_directory, path) = directory();
    create_runs(&open_at(place(&path), true).unwrap(), 1);
    let other = path.with_file_name("other.db");
    fs::hard_link(&path, &other).unwrap();
    for name in [&path, &other] {
        let refused = open_at(place(name), false).map(drop).unwrap_err();
        assert!(refused.code() == "store_open" && refused.to_string().contains("2 names"), "{refused}");
    }
    fs::remove_file(&other).unwrap();
    open_at(place(&path), false).unwrap();
}

#[test]
fn a_store_whose_pages_were_overwritten_is_no_fresh_start() {
    let (_directory, path) = directory();
    let store = open_at(place(&path), true).unwrap();
    create_runs(&store, 200);
    drop(store);
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096..].fill(0x5a);
    fs::write(&path, &bytes).unwrap();
    // Damage is found where it is read: at the latest by the first operation, never by making anew.
    let found = open_at(place(&path), true)
        .and_then(|store| store.ask(started("r1"), Durability::Synced).wait().map(drop));
    assert_eq!(found.unwrap_err().code(), "store_corrupt");
}

#[test]
fn a_place_that_cannot_be_is_named() {
    let (_directory, path) = directory();
    fs::write(&path, "a file").unwrap();
    let error = open_at(place(&path.join("outlast.db")), true).map(|_| ()).unwrap_err();
    assert_eq!(error.code(), "store_open");
    assert!(error.to_string().contains(place(&path)), "{error}");
}

// Bug: a store in a directory that could not be written was said to have failed, and to be started again when the disk
// works.
// Consequence: people looked at a disk that worked.
// Cause: SQLite says "attempt to write a readonly database" where it cannot create its log.
#[test]
fn a_directory_that_cannot_be_written_is_told() {
    let name = "sqlite_file::a_directory_that_cannot_be_written_is_told";
    let Some(directory) = child::part() else {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let played = child::command(&child::argv(name), place(directory.path())).status().unwrap();
        return assert!(played.success(), "{played}");
    };
    // Root may write everywhere. SAFETY: this process has nothing else to do.
    unsafe { libc::setuid(65534) };
    let inner = Path::new(&directory).join("inner");
    fs::create_dir(&inner).unwrap();
    let path = inner.join("outlast.db");
    create_runs(&open_at(place(&path), true).unwrap(), 1);
    fs::set_permissions(&inner, fs::Permissions::from_mode(0o555)).unwrap();
    for (path, create) in [(&path, false), (&path, true), (&inner.join("new.db"), true)] {
        let error = refused_and_unchanged(path, create, "store_open");
        assert!(error.to_string().contains("its directory cannot be written"), "{error}");
    }
    fs::set_permissions(&inner, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(open_at(place(&path), false).unwrap().run_no(&RunId::new("r0").unwrap()).unwrap().is_some());
}

/// Bytes this thread has read from files.
fn bytes_read() -> u64 {
    let io = fs::read_to_string("/proc/thread-self/io").unwrap();
    io.lines().find_map(|l| l.strip_prefix("rchar: ")?.parse().ok()).unwrap()
}

#[test]
fn opening_reads_no_more_of_a_large_store() {
    let reads = |runs: usize| {
        let (_directory, path) = directory();
        create_runs(&open_at(place(&path), true).unwrap(), runs);
        let before = bytes_read();
        let store = open_at(place(&path), false).unwrap();
        let opening = bytes_read() - before;
        let before = bytes_read();
        let no = store.run_no(&RunId::new("r0").unwrap()).unwrap().unwrap();
        store.run(no).unwrap().unwrap();
        (opening, bytes_read() - before, fs::metadata(&path).unwrap().len())
    };
    let (small, large) = (reads(1), reads(5000));
    assert!(large.2 > 10 * small.2, "the large store is large: {} bytes", large.2);
    // Finding a run goes down a few levels of trees: some pages of 4 KiB more, not some per run.
    assert!(
        large.0 <= small.0 + 4 * 4096,
        "opening read {} bytes, and {} of the large one",
        small.0,
        large.0
    );
    assert!(large.1 <= small.1 + 16 * 4096, "a run took {} bytes, and {} in the large one", small.1, large.1);
}

/// Names are stored once, and indexes are small. Noise is not compressed at all.
#[test]
fn a_value_of_a_kilobyte_costs_at_most_half_as_much_again() {
    let hex = |noise: &[u8]| {
        let text: String = noise[..480].iter().map(|b| format!("{b:02x}")).collect();
        format!(r#"{{"action": {{"id": 7}}, "status": "done", "result": "{text}"}}"#).into_bytes()
    };
    let check = |what: &str, most: f64, value: &dyn Fn(&[u8]) -> Vec<u8>| {
        const VALUES: usize = 3000;
        let (_directory, path) = directory();
        let store = open_at(place(&path), true).unwrap();
        let entropy = SeededEntropy::new(1);
        let mut bytes = 0;
        let pending: Vec<_> = (0..VALUES)
            .map(|i| {
                let mut noise = [0; 1024];
                entropy.fill(&mut noise);
                let value = value(&noise);
                bytes += value.len();
                let name = Name::new("namespace", "research-agent-001", format!("step:{}", i / 2));
                let put = Put { changes: vec![Change::set(name, &value)], ..Put::default() };
                let id = format!("txn_0190c0de-0000-7000-8000-{i:012x}");
                store.ask(Put { transaction: Some(id.into()), ..put }, Durability::Committed)
            })
            .collect();
        pending.into_iter().for_each(|p| drop(p.wait().unwrap()));
        drop(store);
        let ratio = fs::metadata(&path).unwrap().len() as f64 / bytes as f64;
        println!("{what}: {ratio:.2} x the values' bytes");
        assert!(ratio <= most, "{what}: {ratio:.2} x the values' bytes");
    };
    check("text of hex digits", 1.5, &hex);
    check("noise of 900 bytes", 1.5, &|noise| noise[..900].to_vec());
    // Three of these values fill a page to three quarters.
    check("noise of 1024 bytes", 1.65, &|noise| noise.to_vec());
}

/// Steps that were done are found by an index, whatever their number.
#[test]
fn a_resume_point_costs_the_same_at_any_number_of_steps() {
    const STEPS: usize = 20_000;
    let (_directory, path) = directory();
    let store = open_at(place(&path), true).unwrap();
    let done =
        |n: usize| Change::set(Name::new("ns", "agent", format!("step:{n}")), br#"{"status": "done"}"#);
    for piece in 0..STEPS / 1000 {
        let changes = (0..1000).map(|i| done(piece * 1000 + i)).collect();
        store.ask(Put { changes, ..Put::default() }, Durability::Committed).wait().unwrap();
    }
    let (began, turns) = (std::time::Instant::now(), 20);
    for _ in 0..turns {
        assert_eq!(store.resume_point("ns", "agent", "step:").unwrap().done, STEPS as i64 - 1);
    }
    let each = began.elapsed() / turns;
    assert!(each.as_millis() < 5, "{each:?} for each");
}
