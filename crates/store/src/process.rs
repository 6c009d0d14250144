//! Id of the current process, cached, and asked of the kernel anew after a fork.
//!
//! Handles compare it several times in each step to notice that a fork carried them into a child.

use std::sync::{
    Once,
    atomic::{AtomicU32, Ordering},
};

/// Cached id. 0 means not asked yet.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Returns the id of this process. A forked child gets its own.
pub fn id() -> u32 {
    match NUMBER.load(Ordering::Relaxed) {
        0 => ask(),
        number => number,
    }
}

#[cold]
fn ask() -> u32 {
    static REGISTERED: Once = Once::new();
    static FORGETS: AtomicU32 = AtomicU32::new(1);
    extern "C" fn in_child() {
        NUMBER.store(0, Ordering::Relaxed);
    }
    // SAFETY: what runs in the child does no more than store a number.
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
        // SAFETY: the child calls nothing that may hold a lock of the parent's.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_own = id() == std::process::id() && id() != 0;
            // SAFETY: ends the child without the parent's cleanup.
            unsafe { libc::_exit(if is_own { 7 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `child` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7, "the child took itself for its parent");
        assert_eq!(id(), std::process::id());
    }
}
