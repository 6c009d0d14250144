//! Stores and processes that are forked.
//!
//! Bug: a forked child opened a store that its parent had open, as the documentation advised.
//! Consequence: its acknowledged commits were lost when the parent closed the store; or it waited for ever for a lock.
//! Cause: SQLite keeps its locks and the index of its log per inode and process. A fork copies what it knows of them, and
//! not the locks.

use std::{
    os::unix::fs::symlink,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use outlast_core::{
    engine::run::start::Start,
    store::{Ask as _, Durability, Error, Store},
    words::id::RunId,
};

use crate::{
    beds::{open_at, place},
    private_postgres::Database,
};

fn start(store: &dyn Store, id: &str) -> Result<(), Error> {
    store.ask(Start::new(RunId::new(id).unwrap()), Durability::Synced).wait().map(drop)
}

#[track_caller]
fn has(store: &dyn Store, ids: &[&str]) {
    for id in ids {
        assert!(store.run_no(&RunId::new(id).unwrap()).unwrap().is_some(), "{id} is lost");
    }
}

/// Runs `body` in a forked child, which ends without the cleanup of its parent. Returns how it ended.
fn fork(body: impl FnOnce()) -> Child {
    // SAFETY: the child works with stores only, which is what is tested.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if ended.is_ok() { 7 } else { 1 }) };
    }
    Child(child)
}

struct Child(libc::pid_t);

impl Child {
    #[track_caller]
    fn succeeds(self) {
        let mut status = 0;
        // SAFETY: a child of this process that is waited for once.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        assert_eq!(libc::WEXITSTATUS(status), 7, "the child panicked");
    }
}

#[track_caller]
fn refused<T>(result: Result<T, Error>) {
    let error = result.map(drop).unwrap_err();
    assert_eq!(error.code(), "store_forked", "{error}");
    assert!(error.to_string().contains("was open in process") && error.hint().is_some(), "{error}");
}

/// The only handle of a store, to be dropped by a child too.
type Slot = Mutex<Option<Arc<dyn Store>>>;

fn only_handle(store: Arc<dyn Store>) -> Slot {
    Mutex::new(Some(store))
}

fn in_slot(slot: &Slot, id: &str) {
    start(&**slot.lock().unwrap().as_ref().unwrap(), id).unwrap();
}

/// An inherited handle does nothing in a child, not even when it is dropped.
fn inherited_is_refused(slot: &Slot) {
    let store = slot.lock().unwrap().take().unwrap();
    let op = || Start::new(RunId::new("child").unwrap()).into();
    refused(store.check());
    refused(start(&*store, "child"));
    refused(store.submit_here(op(), Durability::Synced).wait());
    if let Ok(answered) = store.ahead(op()) {
        refused(answered);
    }
    refused(store.runs(&Default::default()));
    drop(store);
}

#[test]
fn a_file_that_was_open_at_a_fork_is_refused_in_the_child_under_any_name() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let store = only_handle(open_at(place(&at("a.db")), true).unwrap());
    in_slot(&store, "before");
    has(&**store.lock().unwrap().as_ref().unwrap(), &["before"]);
    symlink(at("a.db"), at("link.db")).unwrap();
    drop(open_at(place(&at("link.db")), false).unwrap());
    assert!(at("a.db.ballast").exists() && !at("link.db.ballast").exists(), "one reserve of one file");
    let refusals = || {
        for name in ["a.db", "link.db"] {
            refused(open_at(place(&at(name)), false));
        }
    };
    fork(|| {
        refusals();
        inherited_is_refused(&store);
        // A process may use the stores that it opened itself; so may a child.
        let own = open_at(place(&at("own.db")), true).unwrap();
        start(&*own, "child").unwrap();
        fork(|| {
            refusals();
            refused(open_at(place(&at("own.db")), false));
            start(&*open_at(place(&at("third.db")), true).unwrap(), "grandchild").unwrap();
        })
        .succeeds();
        drop(own);
        fork(|| start(&*open_at(place(&at("own.db")), false).unwrap(), "grandchild").unwrap()).succeeds();
        refusals();
    })
    .succeeds();
    in_slot(&store, "after");
    drop(store);
    // Nobody has it open now, and a later child may.
    let path = directory.path().join("a.db");
    fork(|| start(&*open_at(place(&path), false).unwrap(), "later").unwrap()).succeeds();
    has(&*open_at(place(&path), false).unwrap(), &["before", "after", "later"]);
}

#[test]
fn a_store_that_was_closed_before_the_fork_is_whole_on_both_sides() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let open = || open_at(place(&path), true).unwrap();
    start(&*open(), "before").unwrap();
    let child = fork(|| {
        let store = open();
        (0..50).for_each(|n| start(&*store, &format!("child-{n}")).unwrap());
        // Ends as a kill would: what was acknowledged is there.
    });
    // Opens and closes beside the child, whose log no end may take away.
    (0..50).for_each(|n| start(&*open(), &format!("parent-{n}")).unwrap());
    child.succeeds();
    let store = open();
    has(&*store, &["before"]);
    for n in 0..50 {
        has(&*store, &[&format!("child-{n}"), &format!("parent-{n}")]);
    }
}

/// Writes on from several threads until told to stop.
fn busy<T>(store: &dyn Store, meanwhile: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let over = &over;
            scope.spawn(move || {
                for n in 0.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    start(store, &format!("busy-{thread}-{n}")).unwrap();
                }
            });
        }
        let out = meanwhile();
        over.store(true, Ordering::Relaxed);
        out
    })
}

fn open_elsewhere(path: &Path, n: usize) {
    let store = open_at(place(&path.with_file_name(format!("child-{n}.db"))), true).unwrap();
    start(&*store, "child").unwrap();
}

#[test]
fn a_child_forked_within_a_transaction_is_refused_and_waits_for_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let store = open_at(place(&path), true).unwrap();
    busy(&*store, || {
        for n in 0..20 {
            fork(|| {
                refused(open_at(place(&path), false));
                inherited_is_refused(&only_handle(store.clone()));
                open_elsewhere(&path, n);
            })
            .succeeds();
        }
    });
    start(&*store, "after").unwrap();
}

#[test]
fn a_forked_child_uses_no_connection_of_its_parents_to_postgres() {
    let database = Database::new();
    let url = database.url();
    let store = only_handle(open_at(&url, true).unwrap());
    in_slot(&store, "before");
    for n in 0..5 {
        fork(|| {
            inherited_is_refused(&store);
            let own = open_at(&url, false).unwrap();
            start(&*own, &format!("child-{n}")).unwrap();
            has(&*own, &["before"]);
        })
        .succeeds();
        in_slot(&store, &format!("parent-{n}"));
    }
    let store = store.lock().unwrap().take().unwrap();
    has(&*store, &["before", "child-0", "child-4", "parent-0", "parent-4"]);
}
