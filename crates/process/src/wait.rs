//! Waiting for descriptors, and a descriptor that one thread raises and others wait for.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec},
    io::Errno,
};

/// Waits until a descriptor is ready, a signal has come, or `longest` is over. Returns how many are ready.
pub fn poll(watched: &mut [PollFd], longest: Option<Duration>) -> io::Result<usize> {
    let longest = longest.map(|longest| Timespec {
        tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: longest.subsec_nanos().into(),
    });
    match rustix::event::poll(watched, longest.as_ref()) {
        Err(Errno::INTR) => Ok(0),
        ready => Ok(ready?),
    }
}

/// Event that any thread can raise once and that stays raised.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> io::Result<Bell> {
        Ok(Bell(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Raises the event. Idempotent, and cannot be undone.
    pub fn ring(&self) {
        // A full counter means that it has rung already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub fn rings(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&at_once)).is_ok_and(|n| n > 0)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
