//! Terminals: the person's own, whose state is saved and restored after an agent that died and left it changed, and
//! pseudo-terminals for agents.
//!
//! A killed agent leaves the terminal in the modes it had set (no echo, raw), and, if it gave the terminal to a group
//! of its own as shells do, in the hands of a group that is gone: the next attempt could not read.
//!
//! Keys are bytes written to a pseudo-terminal. Its line discipline turns Ctrl-C and Ctrl-Z into signals, or passes them to
//! an agent that has asked for every key.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    process::{Pid, Signal},
    pty::OpenptFlags,
    termios::{LocalModes, OptionalActions, Termios, Winsize},
};

use crate::signals;

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

/// Size of a terminal whose size is not known: 80 columns and 24 rows.
pub const USUAL: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };

/// The supervisor's side of a pseudo-terminal.
#[derive(Clone, Debug)]
pub struct Pty {
    ours: Arc<OwnedFd>,
}

impl Pty {
    /// Opens a pseudo-terminal of this size, and also returns the agent's side. Reads from the supervisor's side fail
    /// once nobody has the agent's side open.
    ///
    /// Errors: the system has no more pseudo-terminals.
    pub fn open(size: Winsize) -> io::Result<(Pty, OwnedFd)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = rustix::pty::openpt(flags)?;
        rustix::pty::grantpt(&ours)?;
        rustix::pty::unlockpt(&ours)?;
        // Opened by descriptor: /dev/pts may belong to another instance here.
        let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags)?;
        rustix::termios::tcsetwinsize(&theirs, size)?;
        Ok((Pty { ours: Arc::new(ours) }, theirs))
    }

    /// Returns a descriptor for reading the agent's output.
    pub fn reader(&self) -> io::Result<OwnedFd> {
        self.ours.try_clone()
    }

    /// Writes typed keys to the agent. Blocks while the agent does not read. Errors: nobody has the agent's side open.
    pub fn types(&self, mut keys: &[u8]) -> io::Result<()> {
        while !keys.is_empty() {
            match rustix::io::write(&self.ours, keys) {
                Ok(written) => keys = &keys[written..],
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Sets the terminal's size. The agent gets SIGWINCH if the size changes.
    pub fn resize(&self, size: Winsize) {
        // A terminal whose agent has gone has no size that matters.
        let _ = rustix::termios::tcsetwinsize(&self.ours, size);
    }

    /// Makes a full-screen program draw its screen again.
    pub fn redraw(&self) {
        if let Ok(front) = rustix::termios::tcgetpgrp(&self.ours) {
            let _ = rustix::process::kill_process_group(front, Signal::WINCH);
        }
    }

    /// Returns whether Ctrl-C is currently a signal to the agent, and not a key that it reads.
    pub fn raises_signals(&self) -> bool {
        rustix::termios::tcgetattr(self.ours.as_fd())
            .is_ok_and(|modes| modes.local_modes.contains(LocalModes::ISIG))
    }
}

#[cfg(test)]
mod tests_of_pty {
    use std::io::Read as _;

    use super::*;
    use crate::{
        exit::Exit,
        spawn::{self, Spawner, Stdin},
        testing::{self, sh},
    };

    fn start(script: &str) -> (Pty, spawn::Child) {
        let size = Winsize { ws_row: 30, ws_col: 100, ..USUAL };
        let (pty, theirs) = Pty::open(size).unwrap();
        let theirs = Arc::new(theirs);
        let mut command = sh(script);
        command.stdin = Stdin::To(theirs.clone());
        command.stdout = spawn::Output::To(theirs.clone());
        command.stderr = spawn::Output::To(theirs.clone());
        command.terminal = Some(theirs);
        let child = Spawner::start().unwrap().spawn(command).unwrap();
        (pty, child)
    }

    /// Reads until the text appears; returns everything read.
    fn until_printed(pty: &Pty, wanted: &str) -> String {
        let mut file = std::fs::File::from(pty.reader().unwrap());
        let mut text = String::new();
        let mut bytes = [0; 1024];
        while !text.contains(wanted) {
            let read = file.read(&mut bytes).unwrap();
            text.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
        text
    }

    #[test]
    fn agent_leads_a_session_on_a_terminal_of_its_size() {
        let (pty, child) =
            start("tty <&0; stty size; [ $(ps -o sid= $$) = $$ ] && [ -t 0 ] && : > /dev/tty && echo well");
        let text = until_printed(&pty, "well");
        assert!(text.contains("30 100") && text.contains("/dev/pts/"), "{text}");
        assert_eq!(child.wait().unwrap(), Exit::code(0));
        // The last user of the other side has gone.
        assert!(std::fs::File::from(pty.reader().unwrap()).read(&mut [0; 8]).is_err());
    }

    #[test]
    fn keys_are_read_and_ctrl_c_is_a_signal_unless_the_agent_wants_every_key() {
        let (pty, child) = start("echo up; read line; echo got:$line; stty raw; echo raw; read x; exit 9");
        until_printed(&pty, "up");
        assert!(pty.raises_signals());
        pty.types(b"hello\n").unwrap();
        assert!(until_printed(&pty, "raw").contains("got:hello"));
        assert!(!pty.raises_signals());
        child.signal(Signal::KILL).unwrap();
        child.wait().unwrap();
        let (pty, child) = start("echo up; sleep 300");
        until_printed(&pty, "up");
        // A shell that is just forking can lose one.
        let exit = testing::until("Ctrl-C ends it", || {
            let _ = pty.types(b"\x03");
            child.try_wait().unwrap()
        });
        assert_eq!(exit, Exit::signal(2));
    }

    #[test]
    fn a_new_size_is_told() {
        let (pty, child) = start("trap 'stty size; exit 0' WINCH; echo up; while :; do sleep 0.01; done");
        until_printed(&pty, "up");
        pty.resize(Winsize { ws_row: 11, ws_col: 22, ..USUAL });
        until_printed(&pty, "11 22");
        assert_eq!(child.wait().unwrap(), Exit::code(0));
    }
}
