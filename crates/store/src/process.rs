//! This process's number, asked of the kernel once in each process.
//!
//! Handles tell by it whether they were carried into a forked child, several times in each step.

use std::sync::{
    Once,
    atomic::{AtomicU32, Ordering},
};

/// 0: to be asked.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// This process's number. A child has its own from its `fork` on.
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
        // No memory: it is asked each time.
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
