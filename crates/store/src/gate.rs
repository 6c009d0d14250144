//! Gate that makes a fork wait until no thread of the process is inside SQLite, and the list of files open there.
//!
//! A fork copies SQLite's mutexes as they are. A child could then wait for ever for a mutex whose holder exists only in
//! the parent, whichever store it opens. Whoever enters here must not enter again before it leaves, and must not wait
//! for anything that a forking thread may hold, such as Python's interpreter lock.

use std::{
    cell::Cell,
    sync::{Condvar, Mutex, MutexGuard, Once, PoisonError},
};

use crate::process::Maker;

static TRAFFIC: Mutex<Traffic> = Mutex::new(Traffic { inside: 0, forking: 0, open: Vec::new() });
static CHANGED: Condvar = Condvar::new();

struct Traffic {
    /// Number of threads inside SQLite.
    inside: usize,
    /// Number of threads that are about to fork. No thread enters SQLite meanwhile.
    forking: usize,
    open: Vec<OpenFile>,
}

/// Device and inode of a file.
pub type FileId = (u64, u64);

/// A file that a handle of `maker` has open. Once a fork has copied the file into a child, it stays in the child's
/// list, as it does in SQLite's own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OpenFile {
    pub id: FileId,
    pub maker: Maker,
}

/// Reads or changes the list of open files, one for each handle. No fork copies the list while it is locked.
pub fn with_open_files<T>(act: impl FnOnce(&mut Vec<OpenFile>) -> T) -> T {
    act(&mut traffic().open)
}

/// Stay of a thread inside SQLite. Dropping it ends the stay.
pub struct Inside(());

/// Enters SQLite, after waiting for forks that are under way.
pub fn enter() -> Inside {
    static REGISTERED: Once = Once::new();
    // SAFETY: the handlers take no lock but ours, which every fork takes and gives back here. If they cannot be
    // registered, forks do not wait.
    REGISTERED.call_once(|| unsafe {
        libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child));
    });
    let mut traffic = wait_while(traffic(), |traffic| traffic.forking > 0);
    traffic.inside += 1;
    Inside(())
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut traffic = traffic();
        traffic.inside -= 1;
        if traffic.inside == 0 && traffic.forking > 0 {
            CHANGED.notify_all();
        }
    }
}

fn traffic() -> MutexGuard<'static, Traffic> {
    TRAFFIC.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait_while(
    traffic: MutexGuard<'static, Traffic>,
    busy: impl Fn(&Traffic) -> bool,
) -> MutexGuard<'static, Traffic> {
    CHANGED.wait_while(traffic, |traffic| busy(traffic)).unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// Lock held across the fork, so that the child's copy of it belongs to the only thread there.
    static HELD: Cell<Option<MutexGuard<'static, Traffic>>> = const { Cell::new(None) };
}

extern "C" fn before_fork() {
    let mut traffic = traffic();
    traffic.forking += 1;
    let traffic = wait_while(traffic, |traffic| traffic.inside > 0);
    HELD.set(Some(traffic));
}

extern "C" fn after_fork_in_parent() {
    if let Some(mut traffic) = HELD.take() {
        traffic.forking -= 1;
        CHANGED.notify_all();
    }
}

extern "C" fn after_fork_in_child() {
    if let Some(mut traffic) = HELD.take() {
        // Other threads that were about to fork exist in the parent only.
        traffic.forking = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    // Bug: a process forked while another of its threads was inside SQLite.
    // Consequence: the child waited for ever for one of SQLite's mutexes when it opened a store of its own.
    // Cause: a fork copies a mutex as it is, and its holder is not in the child.
    #[test]
    fn a_fork_waits_until_nobody_is_inside() {
        let (tell, told) = mpsc::channel();
        let other = thread::spawn(move || {
            let inside = enter();
            tell.send(()).unwrap();
            while traffic().forking == 0 {
                thread::yield_now();
            }
            drop(inside);
        });
        told.recv().unwrap();
        // SAFETY: the child takes no lock but the gate's.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let was_empty = traffic().inside == 0;
            let _inside = enter();
            // SAFETY: ends the child without the parent's cleanup.
            unsafe { libc::_exit(if was_empty { 7 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `child` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7, "a thread was inside at the fork");
        other.join().unwrap();
        drop(enter());
    }
}
