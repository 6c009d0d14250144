//! Saving of the terminal's state, and restoring it after an agent that died and left it changed.
//!
//! A killed agent leaves the terminal in the modes it had set (no echo, raw), and, if it gave the terminal to a group
//! of its own as shells do, in the hands of a group that is gone: the next attempt could not read.

use std::{io, os::fd::AsFd};

use rustix::{
    process::{Pid, Signal},
    termios::{OptionalActions, Termios},
};

use super::signals;

/// Saved modes of standard input's terminal.
#[derive(Clone, Debug)]
pub struct Terminal {
    modes: Termios,
}

impl Terminal {
    /// Saves the terminal's current modes; `None` if standard input is no terminal.
    pub fn of_stdin() -> Option<Terminal> {
        let modes = rustix::termios::tcgetattr(io::stdin()).ok()?;
        Some(Terminal { modes })
    }

    /// Makes the terminal raw: every key is read as it is typed, without echo and signals. Returns whether that worked.
    pub fn make_raw(&self) -> bool {
        let mut raw = self.modes.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw).is_ok()
    }

    /// Returns whether this process is in the terminal's foreground and may read from it.
    pub fn is_in_front(&self) -> bool {
        rustix::termios::tcgetpgrp(io::stdin()).is_ok_and(|front| front == rustix::process::getpgrp())
    }

    /// Restores the saved modes, and takes the terminal back from a process group that is gone.
    ///
    /// Does nothing in the background, where the terminal belongs to the shell. A terminal that is itself gone is no
    /// error.
    pub fn restore(&self) {
        let stdin = io::stdin();
        let own = rustix::process::getpgrp();
        let Ok(front) = rustix::termios::tcgetpgrp(&stdin) else { return };
        if front != own && is_there(front) {
            return;
        }
        // A process that changes a terminal from the background is stopped by SIGTTOU, unless it is blocked.
        let _blocked = Blocked::new(Signal::TTOU);
        if front != own {
            let _ = rustix::termios::tcsetpgrp(&stdin, own);
        }
        let _ = rustix::termios::tcsetattr(stdin.as_fd(), OptionalActions::Now, &self.modes);
    }
}

fn is_there(group: Pid) -> bool {
    rustix::process::test_kill_process_group(group) != Err(rustix::io::Errno::SRCH)
}

/// Blocks a signal in this thread until dropped.
struct Blocked {
    before: Option<libc::sigset_t>,
}

impl Blocked {
    fn new(signal: Signal) -> Blocked {
        let set = signals::set_of([signal.as_raw()]);
        Blocked { before: signals::change_mask(libc::SIG_BLOCK, &set).ok() }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let _ = self.before.map(|before| signals::change_mask(libc::SIG_SETMASK, &before));
    }
}
