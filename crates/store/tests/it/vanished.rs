//! Files of a SQLite store that are taken away from under a live process.
//!
//! Bug: a store that was removed, moved or replaced was served on.
//! Consequence: what was acknowledged from then on was found by no later process, which paid for it again; and a moved
//! store admitted in two places.
//! Cause: an open file outlives its name, and nobody looked at the name.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use outlast_core::{
    engine::run::start::Start,
    store::{Ask as _, Durability, Error, Store},
    words::{
        clock::{Clock, ManualClock, SeededEntropy},
        id::{Micros, RunId},
    },
};
use outlast_store::{Options, STORE_WAIT, open};

use crate::{
    bed::BEGINNING,
    beds::{open_at, place},
};

fn start(store: &dyn Store, id: &str) -> Result<(), Error> {
    store.ask(Start::new(RunId::new(id).unwrap()), Durability::Synced).wait().map(drop)
}

fn has(store: &dyn Store, id: &str) -> Result<bool, Error> {
    Ok(store.run_no(&RunId::new(id).unwrap())?.is_some())
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    format!("{}{suffix}", place(path)).into()
}

/// A store in a directory of its own, with one run in it.
struct Scene {
    directory: tempfile::TempDir,
    path: PathBuf,
    store: Arc<dyn Store>,
}

impl Scene {
    fn new() -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("here/outlast.db");
        fs::create_dir(directory.path().join("here")).unwrap();
        let store = open_at(place(&path), true).unwrap();
        start(&*store, "kept").unwrap();
        Scene { directory, path, store }
    }

    /// Each face of the store refuses, and names `file`.
    #[track_caller]
    fn is_refused(&self, file: &Path) {
        let store = &*self.store;
        // Looks at the files in any case: what promises nothing durable may go by an earlier look for a moment.
        let checked = store.check();
        let ahead = loop {
            // Given back while the thread that wrote last is not done with its group.
            if let Ok(answered) = store.ahead(Start::new(RunId::new("ahead").unwrap()).into()) {
                break answered;
            }
        };
        let refusals = [
            checked,
            start(store, "lost"),
            store
                .submit_here(Start::new(RunId::new("here").unwrap()).into(), Durability::Synced)
                .wait()
                .map(drop),
            ahead.map(drop),
            has(store, "kept").map(drop),
        ];
        for refusal in refusals {
            let error = refusal.unwrap_err();
            assert_eq!(error.code(), "store_vanished", "{error}");
            assert!(error.to_string().contains(&format!("{} was", place(file))), "{error}");
        }
    }
}

/// A way to take a file from its place.
type Take = fn(&Path);

#[test]
fn a_store_whose_file_or_log_is_removed_moved_or_replaced_is_refused() {
    for suffix in ["", "-wal", "-shm"] {
        let ways: [(&str, Take); 3] = [
            ("removed", |file| fs::remove_file(file).unwrap()),
            ("moved", |file| fs::rename(file, beside(file, ".away")).unwrap()),
            ("replaced", |file| {
                let copy = beside(file, ".copy");
                fs::copy(file, &copy).unwrap();
                fs::rename(copy, file).unwrap();
            }),
        ];
        for (way, take) in ways {
            println!("outlast.db{suffix} {way}");
            let scene = Scene::new();
            scene.store.check().unwrap();
            take(&beside(&scene.path, suffix));
            scene.is_refused(&beside(&scene.path, suffix));
        }
    }
}

/// Sets the time of the directory's last change.
fn changed_at(scene: &Scene, time: SystemTime) {
    let directory = fs::File::open(scene.path.parent().unwrap()).unwrap();
    directory.set_modified(time).unwrap();
}

/// The directory has not changed for a while, so that its files need no look each.
fn settled(scene: &Scene) {
    changed_at(scene, SystemTime::now() - Duration::from_secs(60));
    scene.store.check().unwrap();
    scene.store.check().unwrap();
}

#[test]
fn a_change_at_the_same_time_as_the_last_one_is_seen() {
    let scene = Scene::new();
    // A time that is not long past, however slow this machine is.
    let time = SystemTime::now() + Duration::from_secs(60);
    changed_at(&scene, time);
    scene.store.check().unwrap();
    fs::remove_file(&scene.path).unwrap();
    changed_at(&scene, time);
    scene.is_refused(&scene.path);
}

#[test]
fn a_change_after_a_quiet_time_is_seen() {
    for suffix in ["", "-wal", "-shm"] {
        let scene = Scene::new();
        settled(&scene);
        fs::write(scene.path.with_file_name("another"), "file").unwrap();
        scene.store.check().unwrap();
        settled(&scene);
        fs::remove_file(beside(&scene.path, suffix)).unwrap();
        scene.is_refused(&beside(&scene.path, suffix));
    }
}

#[test]
fn a_store_opened_by_a_link_is_refused_when_its_file_or_the_link_is_taken() {
    let takes: [fn(&Path, &Path); 3] = [
        |link, _| fs::remove_file(link).unwrap(),
        |_, file| fs::remove_file(file).unwrap(),
        |_, file| fs::remove_file(beside(file, "-wal")).unwrap(),
    ];
    for take in takes {
        let mut scene = Scene::new();
        let link = scene.directory.path().join("link.db");
        symlink(&scene.path, &link).unwrap();
        scene.store = open_at(place(&link), false).unwrap();
        settled(&scene);
        start(&*scene.store, "linked").unwrap();
        take(&link, &scene.path);
        assert_eq!(start(&*scene.store, "lost").unwrap_err().code(), "store_vanished");
    }
}

#[test]
fn a_store_that_was_moved_away_and_back_is_refused_until_it_is_opened_again() {
    let scene = Scene::new();
    let (here, there) = (scene.path.parent().unwrap(), scene.directory.path().join("there"));
    fs::rename(here, &there).unwrap();
    scene.is_refused(&scene.path);
    // The log was moved with the file: the store at the new place has everything that was acknowledged, and only that
    // store admits.
    let moved = open_at(place(&there.join("outlast.db")), false).unwrap();
    assert!(has(&*moved, "kept").unwrap() && !has(&*moved, "lost").unwrap());
    start(&*moved, "more").unwrap();
    drop(moved);
    fs::rename(&there, here).unwrap();
    scene.is_refused(&scene.path);
    let again = open_at(place(&scene.path), false).unwrap();
    assert!(has(&*again, "kept").unwrap() && has(&*again, "more").unwrap());
}

#[test]
fn a_store_whose_log_alone_was_removed_is_whole_after_its_end() {
    let Scene { directory: _directory, path, store } = Scene::new();
    fs::remove_file(beside(&path, "-wal")).unwrap();
    // Looks in any case. A group right after an earlier look is refused after its commit, and may be found stored.
    assert!(store.check().is_err());
    assert!(start(&*store, "lost").is_err());
    // SQLite writes back what is in the log that it still has open.
    drop(store);
    let again = open_at(place(&path), false).unwrap();
    assert!(has(&*again, "kept").unwrap() && !has(&*again, "lost").unwrap());
}

#[test]
fn the_end_of_a_replaced_store_leaves_the_log_of_the_new_one() {
    let scene = Scene::new();
    let here = scene.path.parent().unwrap();
    fs::rename(here, scene.directory.path().join("there")).unwrap();
    fs::create_dir(here).unwrap();
    let new = open_at(place(&scene.path), true).unwrap();
    start(&*new, "new").unwrap();
    drop(scene.store);
    assert!(beside(&scene.path, "-wal").exists());
    start(&*new, "newer").unwrap();
    let second = open_at(place(&scene.path), false).unwrap();
    assert!(has(&*second, "new").unwrap() && has(&*second, "newer").unwrap());
    assert_eq!(new.check(), Ok(()));
}

/// Clock that does something once, when it is next asked: within a group's transaction, before its commit.
struct Saboteur {
    clock: ManualClock,
    act: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Clock for Saboteur {
    fn now(&self) -> Micros {
        if let Some(act) = self.act.lock().unwrap().take() {
            act();
        }
        self.clock.now()
    }

    fn monotonic_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    fn boottime_ms(&self) -> u64 {
        self.clock.boottime_ms()
    }
}

#[test]
fn a_commit_to_files_that_went_meanwhile_is_not_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("outlast.db");
    let clock = Arc::new(Saboteur { clock: ManualClock::new(BEGINNING), act: Mutex::new(None) });
    let entropy = Arc::new(SeededEntropy::new(7));
    let options = Options {
        clock: clock.clone(),
        entropy,
        create: true,
        durability: Default::default(),
        store_wait: STORE_WAIT,
    };
    let store = open(place(&path), options).unwrap();
    start(&*store, "kept").unwrap();
    let taken = path.clone();
    *clock.act.lock().unwrap() = Some(Box::new(move || fs::rename(&taken, beside(&taken, ".away")).unwrap()));
    assert_eq!(start(&*store, "lost").unwrap_err().code(), "store_vanished");
    assert_eq!(start(&*store, "later").unwrap_err().code(), "store_vanished");
}

// Bug: a store whose file was moved away was made anew at its place.
// Consequence: the log that was left there was taken for the new store's, and put its pages over it.
// Cause: SQLite knows a log by its name.
//
// Bug: a store whose file and log were deleted was made anew, though its mark lay there.
// Consequence: a restart was a fresh start, which paid again for all that was recorded, without a word.
// Cause: the mark of a missing store was deleted as saying nothing about the new one.
#[test]
fn a_store_is_not_made_beside_what_is_left_of_a_missing_one() {
    for suffix in ["-wal", "-shm", "-mark"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("outlast.db");
        fs::write(beside(&path, suffix), "what is left").unwrap();
        let error = open_at(place(&path), true).map(drop).unwrap_err();
        assert_eq!(error.code(), "store_corrupt", "{error}");
        assert!(error.to_string().contains("is missing"), "{error}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        fs::remove_file(beside(&path, suffix)).unwrap();
        start(&*open_at(place(&path), true).unwrap(), "fresh").unwrap();
    }
}
