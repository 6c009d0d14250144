//! The mark beside a SQLite store, through what happens to stores: who else writes them, closes, copies and repairs.
//!
//! The files are copied while the store is open and nothing is written: that is what a kill leaves.

use std::{fs, path::PathBuf};

use outlast_core::store::{Durability, Error, Store};
use outlast_store::sqlite::{KeptPart, Repaired, repair};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::{
    beds::{open_at, place},
    log_damage::{Files, beside, count, put},
};

/// A store, and the number of values it has been given.
struct Bench {
    directory: TempDir,
    path: PathBuf,
    put: u64,
}

impl Bench {
    fn new() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("outlast.db");
        drop(open_at(place(&path), true).unwrap());
        Bench { directory, path, put: 0 }
    }

    fn open(&self) -> std::sync::Arc<dyn Store> {
        open_at(place(&self.path), false).unwrap()
    }

    fn write(&mut self, store: &dyn Store, values: u64) {
        for _ in 0..values {
            self.put += 1;
            put(store, self.put, Durability::Synced);
        }
    }

    /// Files as a kill leaves them after `values` more.
    fn killed_after(&mut self, values: u64) -> Files {
        let store = self.open();
        self.write(&*store, values);
        Files::of(&self.path)
    }

    /// Puts the files back, and says what the store then has.
    fn with(&self, files: &Files) -> Result<i64, Error> {
        files.put_at(&self.path);
        open_at(place(&self.path), false).map(|store| count(&*store))
    }

    fn is_whole_with(&self, files: &Files) {
        assert_eq!(self.with(files).unwrap(), self.put as i64);
    }

    fn is_told_with(&self, files: &Files, what: &str) {
        let error = self.with(files).unwrap_err();
        assert!(matches!(&error, Error::Shorter { .. }) && error.to_string().contains(what), "{error}");
    }

    fn repaired(&self) -> Repaired {
        let asked = repair(&self.path, false).unwrap().unwrap();
        let done = repair(&self.path, true).unwrap().unwrap();
        assert_eq!((asked.rest, asked.missing), (done.rest, done.missing.clone()));
        assert_eq!(repair(&self.path, true).unwrap(), None);
        done
    }

    /// A program that knows nothing of marks: sqlite3, or an older outlast.
    fn foreign(&self) -> Connection {
        let conn = Connection::open(&self.path).unwrap();
        // SQLite opens the log with the first read.
        conn.query_row("SELECT count(*) FROM runs", [], |_| Ok(())).unwrap();
        conn
    }
}

/// A commit that leaves the values alone.
fn commit(conn: &Connection, n: i64) {
    conn.execute("INSERT OR REPLACE INTO meta VALUES ('x', ?1)", [n.to_string().repeat(2000)]).unwrap();
}

#[test]
fn a_killed_store_is_whole_with_and_without_its_mark() {
    let mut bench = Bench::new();
    let mut files = bench.killed_after(40);
    bench.is_whole_with(&files);
    files.0.remove("-mark");
    bench.is_whole_with(&files);
}

#[test]
fn a_closed_store_asks_for_no_log() {
    let mut bench = Bench::new();
    bench.killed_after(30);
    let files = Files::of(&bench.path);
    assert!(!files.0.contains_key("-wal"), "the last handle deletes the log");
    bench.is_whole_with(&files);
}

#[test]
fn a_log_that_begins_anew_is_whole_at_each_commit() {
    let mut bench = Bench::new();
    let (ours, theirs) = (bench.open(), bench.open());
    let elsewhere = tempfile::tempdir().unwrap();
    for i in 0..200 {
        bench.write(if i % 3 == 0 { &*theirs } else { &*ours }, 1);
        // Before and after each of the checkpoints among these.
        if i % 5 == 0 {
            let copy = elsewhere.path().join("copy.db");
            Files::of(&bench.path).put_at(&copy);
            assert_eq!(count(&*open_at(place(&copy), false).unwrap()), bench.put as i64);
        }
    }
}

#[test]
fn a_commit_by_a_program_without_marks_is_no_damage() {
    let mut bench = Bench::new();
    let files = bench.killed_after(20);
    for (commits, checkpoints) in [(0, false), (1, false), (1, true), (50, true)] {
        files.put_at(&bench.path);
        let conn = bench.foreign();
        (0..commits).for_each(|n| commit(&conn, n));
        if checkpoints {
            conn.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
            commit(&conn, commits);
        }
        let as_killed = Files::of(&bench.path);
        drop(conn);
        let closed = Files::of(&bench.path);
        assert!(!closed.0.contains_key("-wal"));
        bench.is_whole_with(&as_killed);
        bench.is_whole_with(&closed);
    }
}

#[test]
fn a_torn_tail_behind_the_mark_is_cut_in_silence() {
    let mut bench = Bench::new();
    let files = bench.killed_after(20);
    let mut longer = {
        let path = bench.directory.path().join("longer.db");
        files.put_at(&path);
        let conn = Connection::open(&path).unwrap();
        commit(&conn, 7);
        Files::of(&path)
    };
    // One commit of several frames, the first of them torn: the crash came in mid-write.
    let end = files.clone().log().len();
    let changed = (0..end).find(|&i| files.0["-wal"][i] != longer.log()[i]).unwrap();
    longer.log()[changed + 100] ^= 1;
    longer.0.insert("-mark", files.0["-mark"].clone());
    bench.is_whole_with(&longer);
}

#[test]
fn a_mark_that_is_damaged_asks_nothing_and_verify_tells() {
    let mut bench = Bench::new();
    let mut files = bench.killed_after(20);
    files.0.get_mut("-mark").unwrap()[40] ^= 4;
    files.put_at(&bench.path);
    let store = bench.open();
    assert_eq!(count(&*store), 20);
    let damage = store.damage(false).unwrap();
    assert!(damage.len() == 1 && damage[0].contains("-mark cannot be read"), "{damage:?}");
    bench.put = 20;
    bench.write(&*store, 1);
    assert_eq!(store.damage(false).unwrap(), Vec::<String>::new());
}

#[test]
fn damage_under_a_log_of_a_program_without_marks_is_told_if_commits_follow_it() {
    let mut bench = Bench::new();
    let mut files = bench.killed_after(20);
    files.0.remove("-mark");
    bench.is_whole_with(&files);
    for at in [18, 40, 32 + 24 + 4096 + 100] {
        let mut damaged = files.clone();
        damaged.log()[at] ^= 1;
        bench.is_told_with(&damaged, "-wal ");
    }
}

// The mark after a loss of power may be an old one, and nothing can be followed over a page that was lost.
#[test]
fn a_hole_in_the_log_is_told_by_its_trailer_where_the_mark_is_old_or_gone() {
    let mut bench = Bench::new();
    let store = bench.open();
    bench.write(&*store, 3);
    let old = Files::of(&bench.path);
    bench.write(&*store, 17);
    let mut files = Files::of(&bench.path);
    drop(store);
    let end = old.0["-wal"].iter().rposition(|byte| *byte != 0).unwrap() + 2 * 4096;
    for mark in [Some(old.0["-mark"].clone()), None] {
        match mark {
            Some(bytes) => files.0.insert("-mark", bytes),
            None => files.0.remove("-mark"),
        };
        bench.is_whole_with(&files);
        let mut damaged = files.clone();
        damaged.log()[end..end + 3 * 4096].fill(0);
        bench.is_told_with(&damaged, "was committed up to byte");
    }
}

#[test]
fn a_live_store_tells_damage_to_its_log() {
    let mut bench = Bench::new();
    let store = bench.open();
    bench.write(&*store, 20);
    assert_eq!(store.damage(false).unwrap(), Vec::<String>::new());
    let mut log = fs::read(beside(&bench.path, "-wal")).unwrap();
    log[60] ^= 1;
    fs::write(beside(&bench.path, "-wal"), &log).unwrap();
    let damage = store.damage(false).unwrap();
    assert!(damage[0].contains("is whole up to byte"), "{damage:?}");
}

#[test]
fn an_older_log_put_back_is_told_and_accepted() {
    let mut bench = Bench::new();
    let store = bench.open();
    bench.write(&*store, 10);
    let older = Files::of(&bench.path);
    bench.write(&*store, 10);
    let mut files = Files::of(&bench.path);
    drop(store);
    *files.log() = older.0["-wal"].clone();
    bench.is_told_with(&files, "was committed up to byte");
    let done = bench.repaired();
    assert!(matches!(done.rest, KeptPart::Before { .. }), "{done:?}");
    assert_eq!(fs::read(done.kept.unwrap()).unwrap(), older.0["-wal"]);
    assert_eq!(count(&*bench.open()), 10);
    goes_on(&mut bench, 10);
}

#[test]
fn an_older_file_put_back_is_told_and_accepted() {
    let mut bench = Bench::new();
    bench.killed_after(10);
    let older = Files::of(&bench.path);
    bench.killed_after(300);
    let mut files = Files::of(&bench.path);
    *files.0.get_mut("").unwrap() = older.0[""].clone();
    bench.is_told_with(&files, "change counter");
    assert_eq!(bench.repaired().rest, KeptPart::File);
    assert_eq!(count(&*bench.open()), 10);
    goes_on(&mut bench, 10);
}

#[test]
fn a_backup_without_a_mark_is_opened() {
    let mut bench = Bench::new();
    let mut files = bench.killed_after(10);
    files.0.remove("-mark");
    let restored = bench.directory.path().join("restored.db");
    files.put_at(&restored);
    assert_eq!(count(&*open_at(place(&restored), false).unwrap()), 10);
}

#[test]
fn a_deleted_log_is_told_and_what_is_left_is_accepted() {
    let mut bench = Bench::new();
    bench.killed_after(10);
    let mut files = bench.killed_after(10);
    files.0.remove("-wal");
    bench.is_told_with(&files, "is gone");
    let done = bench.repaired();
    assert_eq!((done.rest, done.kept), (KeptPart::File, None));
    assert_eq!(count(&*bench.open()), 10);
    goes_on(&mut bench, 10);
}

// The file is ahead of what is left of the log: its older pages must not go over the newer ones.
#[test]
fn a_log_that_was_in_the_file_is_given_up_without_loss() {
    let mut bench = Bench::new();
    let store = bench.open();
    bench.write(&*store, 20);
    bench.foreign().query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
    let mut files = Files::of(&bench.path);
    drop(store);
    files.log()[32 + 2 * (24 + 4096) + 500] ^= 8;
    bench.is_told_with(&files, "is whole up to byte");
    assert_eq!(bench.repaired().rest, KeptPart::Everything);
    assert_eq!(count(&*bench.open()), 20);
    goes_on(&mut bench, 20);
}

#[test]
fn a_repair_waits_for_nobody() {
    let mut bench = Bench::new();
    let mut files = bench.killed_after(10);
    files.log().truncate(5000);
    files.put_at(&bench.path);
    let _other = bench.foreign();
    let error = repair(&bench.path, true).unwrap_err();
    assert_eq!(error.code(), "store_unavailable", "{error}");
}

/// A repaired store is one like any other: it is killed and found whole, and its damage is told again.
fn goes_on(bench: &mut Bench, had: u64) {
    bench.put = had;
    let mut files = bench.killed_after(5);
    bench.is_whole_with(&files);
    let end = files.log().len() / 2;
    files.log().truncate(end.min(9000));
    bench.is_told_with(&files, "was committed up to byte");
}

// Bug: an older copy of the store's file, or another store's file, lay under a younger log.
// Consequence: the log was put over it: a file of two times that nobody could read, or the other store's content gone, in
// silence.
// Cause: a log was held to its mark, and not to the file that it changes.
#[test]
fn a_file_that_is_not_the_one_of_its_log_is_told_and_left_as_it_is() {
    let mut bench = Bench::new();
    bench.killed_after(30);
    let old = Files::of(&bench.path);
    let (had, mut other) = (bench.put as i64, Bench::new());
    other.killed_after(90);
    bench.killed_after(300);
    let young = bench.killed_after(3);
    bench.is_whole_with(&young);
    for (file, has) in [(&old, had), (&Files::of(&other.path), 90)] {
        let mut mixed = young.clone();
        mixed.0.insert("", file.0[""].clone());
        bench.is_told_with(&mixed, "another one");
        assert_eq!(fs::read(&bench.path).unwrap(), file.0[""], "nothing is written into it");
        let done = bench.repaired();
        assert_eq!(
            (done.rest, fs::read(done.kept.unwrap()).unwrap()),
            (KeptPart::File, young.0["-wal"].clone())
        );
        assert_eq!(count(&*bench.open()), has);
    }
}

#[test]
fn another_stores_file_under_the_first_log_of_a_store_is_told() {
    let mut other = Bench::new();
    other.killed_after(90);
    let other = Files::of(&other.path);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outlast.db");
    // All but the first page of this store is in its log alone.
    let store = open_at(place(&path), true).unwrap();
    put(&*store, 1, Durability::Synced);
    let mut files = Files::of(&path);
    drop(store);
    let bench = Bench { directory, path, put: 1 };
    bench.is_whole_with(&files);
    files.0.insert("", other.0[""].clone());
    bench.is_told_with(&files, "another one");
}

// Bug, consequence: as above, where the other store's file was moved in with the mark beside it.
// Cause: the mark that came along says that its store was closed, and knows nothing of the log.
#[test]
fn another_stores_file_that_comes_with_its_own_mark_is_told() {
    let (mut bench, mut other) = (Bench::new(), Bench::new());
    bench.killed_after(30);
    let young = bench.killed_after(3);
    other.killed_after(90);
    drop(other.open());
    let other = Files::of(&other.path);
    assert!(!other.0.contains_key("-wal"), "the other store is closed");
    let mut mixed = young.clone();
    mixed.0.insert("", other.0[""].clone());
    mixed.0.insert("-mark", other.0["-mark"].clone());
    bench.is_told_with(&mixed, "another one");
    assert_eq!(fs::read(&bench.path).unwrap(), other.0[""], "nothing is written into it");
    let done = bench.repaired();
    assert_eq!((done.rest, fs::read(done.kept.unwrap()).unwrap()), (KeptPart::File, young.0["-wal"].clone()));
    assert_eq!(count(&*bench.open()), 90);
}

#[test]
fn a_file_that_has_got_a_part_of_its_log_is_the_logs_own() {
    let mut bench = Bench::new();
    bench.killed_after(30);
    // Checkpoints bring the file forward, while a reader keeps the log from beginning anew.
    let store = bench.open();
    bench.write(&*store, 5);
    let reader = bench.foreign();
    reader.execute_batch("BEGIN; SELECT count(*) FROM meta").unwrap();
    for _ in 0..20 {
        bench.write(&*store, 3);
        let conn = bench.foreign();
        conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
        let elsewhere = bench.directory.path().join("copy.db");
        Files::of(&bench.path).put_at(&elsewhere);
        assert_eq!(count(&*open_at(place(&elsewhere), false).unwrap()), bench.put as i64);
    }
}

#[test]
fn a_file_that_was_made_smaller_under_its_log_is_the_logs_own() {
    let mut bench = Bench::new();
    bench.killed_after(200);
    let store = bench.open();
    bench.write(&*store, 2);
    let conn = bench.foreign();
    conn.execute_batch("DELETE FROM items; VACUUM").unwrap();
    conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
    let files = Files::of(&bench.path);
    drop((conn, store));
    files.put_at(&bench.path);
    open_at(place(&bench.path), false).unwrap();
}
