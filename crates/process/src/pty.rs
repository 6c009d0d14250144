//! Pseudo-terminal for an agent.
//!
//! Keys are bytes written to it. The line discipline turns Ctrl-C and Ctrl-Z into signals, or passes them to an
//! agent that has asked for every key.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    process::Signal,
    pty::OpenptFlags,
    termios::{LocalModes, Winsize},
};

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
mod tests {
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
