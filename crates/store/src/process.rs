//! Identity of the current process, told apart from the processes it was forked from.
//!
//! Handles compare it several times in each step to notice that a fork carried them into a child.

use std::sync::{
    Once,
    atomic::{AtomicU32, Ordering},
};

use outlast_core::store::Error;

/// Cached process id. 0 means not asked yet.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Number of forks between the first process of this program and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Returns the id of this process. In a forked child, that is the child's own id.
pub fn id() -> u32 {
    match NUMBER.load(Ordering::Relaxed) {
        0 => ask(),
        number => number,
    }
}

/// Process that made a handle.
///
/// The number of forks tells a child from an ancestor that had the same id, as after a wrap-around or in another pid
/// namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maker {
    pub id: u32,
    forks: u32,
}

impl Maker {
    /// Returns the current process.
    pub fn here() -> Maker {
        Maker { id: id(), forks: FORKS.load(Ordering::Relaxed) }
    }

    /// Returns whether a fork has carried the handle into another process.
    pub fn is_forked(&self) -> bool {
        *self != Maker::here()
    }

    /// Refuses the handle's store in a forked process. Errors: `OpenAtFork`.
    pub fn refuse_forked(&self, place: impl FnOnce() -> String) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::OpenAtFork { place: place(), opener: self.id });
        }
        Ok(())
    }
}

#[cold]
fn ask() -> u32 {
    static REGISTERED: Once = Once::new();
    static FORGETS: AtomicU32 = AtomicU32::new(1);
    extern "C" fn in_child() {
        NUMBER.store(0, Ordering::Relaxed);
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: what runs in the child does no more than store two numbers.
    REGISTERED.call_once(|| match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
        0 => {}
        // Without the fork handler, the id is asked for each time.
        _ => FORGETS.store(0, Ordering::Relaxed),
    });
    let number = std::process::id();
    if FORGETS.load(Ordering::Relaxed) == 1 {
        NUMBER.store(number, Ordering::Relaxed);
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_knows_its_own_number() {
        assert_eq!(id(), std::process::id());
        let parent = Maker::here();
        assert!(!parent.is_forked());
        // SAFETY: the child calls nothing that may hold a lock of the parent's.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_own = id() == std::process::id() && id() != 0;
            // An ancestor's id may come back.
            let of_same_id = Maker { id: id(), ..parent };
            let is_told = parent.is_forked() && of_same_id.is_forked() && !Maker::here().is_forked();
            // SAFETY: ends the child without the parent's cleanup.
            unsafe { libc::_exit(if is_own && is_told { 7 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `child` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7, "the child took itself for its parent");
        assert_eq!(id(), std::process::id());
        assert!(!parent.is_forked());
    }
}
