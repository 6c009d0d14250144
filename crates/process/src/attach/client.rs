//! The person's side: a terminal that is lent to an agent for a time, and the keys on their way to the agent. All go to it
//! except `Ctrl-\ d`, which detaches.

use std::{
    collections::VecDeque,
    io::{self, IsTerminal as _, Read as _, Write as _},
    os::{fd::AsFd as _, unix::net::UnixStream},
};

use rustix::{
    event::{PollFd, PollFlags},
    process::Signal,
    termios::Winsize,
};

use super::{
    frame::{Frame, Frames, VERSION},
    screen::Screen,
};
use crate::{
    signals::{Signals, suspend_self},
    terminal::Terminal,
    wait::poll,
};

/// Largest number of bytes of keys that wait for a supervisor; more are left in the terminal.
const MOST_KEYS: usize = 64 << 10;

/// Reason why [`attend`] returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Detached,
    /// The supervisor ended. The value is the exit code for this process.
    Over(u8),
    /// The connection to the supervisor was lost without a message.
    Lost,
    /// An attempt has begun. Only a `Starter` returns for this reason.
    Begun {
        run: String,
        attempt: i64,
    },
}

/// Role of the client, which decides what signals to it mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The terminal that the run was started from. Signals to the client are passed to the supervisor.
    Owner,
    /// An owner that detaches as soon as an attempt has begun.
    Starter,
    /// A client that only watches. A signal to the client ends the client, and is not passed on.
    Watcher,
}

/// Lends this process's terminal to the run behind the socket, until either side ends it.
///
/// The terminal's modes are restored when this returns, and between two attempts. Errors: the terminal cannot be read
/// or written any more.
pub fn attend(socket: UnixStream, who: Who) -> io::Result<End> {
    let signals = Signals::of(&[
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::TSTP,
        Signal::CONT,
        Signal::WINCH,
    ])?;
    socket.set_nonblocking(true)?;
    let mut client = Client {
        who,
        socket,
        frames: Frames::default(),
        waiting: VecDeque::new(),
        keys: Keys::default(),
        terminal: Terminal::of_stdin(),
        has_keys: false,
        is_raw: false,
        mid_line: false,
        screen: Screen::default(),
    };
    client.send(&Frame::Hello { version: VERSION });
    client.send_size();
    let end = client.run(&signals);
    client.give_back();
    // After detaching, or when the supervisor was killed, the agent's modes must not be left to the shell. An
    // error means that the terminal has gone and needs none of it.
    let _ = print(&client.screen.undo());
    end
}

struct Client {
    who: Who,
    socket: UnixStream,
    frames: Frames,
    /// Bytes to be sent to the supervisor.
    waiting: VecDeque<u8>,
    keys: Keys,
    /// State of the terminal before it was lent. `None`: standard input is no terminal.
    terminal: Option<Terminal>,
    /// Whether an attempt is running that reads the keys typed here.
    has_keys: bool,
    is_raw: bool,
    /// Whether the last output lacks the end of its line.
    mid_line: bool,
    /// Output shown while an attempt has the terminal.
    screen: Screen,
}

impl Client {
    fn run(&mut self, signals: &Signals) -> io::Result<End> {
        loop {
            let mut wanted = PollFlags::IN;
            if !self.waiting.is_empty() {
                wanted |= PollFlags::OUT;
            }
            let stdin = io::stdin();
            let mut fds = vec![
                PollFd::new(&self.socket, wanted),
                PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            ];
            if self.is_raw && self.waiting.len() < MOST_KEYS {
                fds.push(PollFd::new(&stdin, PollFlags::IN));
            }
            poll(&mut fds, None)?;
            let is_typed = fds.get(2).is_some_and(|fd| !fd.revents().is_empty());
            drop(fds);
            for signal in signals.take() {
                if let Some(end) = self.on_signal(signal)? {
                    return Ok(end);
                }
            }
            if is_typed && let Some(end) = self.on_keys()? {
                return Ok(end);
            }
            if let Some(end) = self.write().and_then(|()| self.read())? {
                return Ok(end);
            }
        }
    }

    fn on_signal(&mut self, signal: Signal) -> io::Result<Option<End>> {
        match signal {
            Signal::WINCH => self.send_size(),
            Signal::TSTP => {
                self.give_back();
                suspend_self()?;
                self.lend();
                self.send_size();
            }
            // Brought to the foreground, or continued in the background.
            Signal::CONT => {
                self.lend();
                self.send_size();
            }
            Signal::HUP => return Ok(Some(self.leave())),
            _ if self.who == Who::Watcher => return Ok(Some(self.leave())),
            // Like a shell's Ctrl-C: where the agent reads no keys, the signal is meant for the run.
            signal => self.send(&Frame::Signal(signal.as_raw())),
        }
        Ok(None)
    }

    fn on_keys(&mut self) -> io::Result<Option<End>> {
        let mut typed = [0; 4096];
        let read = match io::stdin().lock().read(&mut typed) {
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(None),
            // The terminal has gone.
            Err(_) => 0,
        };
        if read == 0 {
            return Ok(Some(self.leave()));
        }
        let meant = self.keys.take(&typed[..read]);
        if !meant.keys.is_empty() {
            self.send(&Frame::Keys(meant.keys));
        }
        if meant.detach {
            return Ok(Some(self.detach()));
        }
        Ok(None)
    }

    /// Tells the supervisor and does not wait for an answer, since it may be busy printing to this client.
    fn detach(&mut self) -> End {
        self.send(&Frame::Detach);
        // Only a few bytes are left; a supervisor that does not even take these has gone.
        let _ = self.socket.set_nonblocking(false);
        let rest: Vec<u8> = self.waiting.drain(..).collect();
        let _ = self.socket.write_all(&rest);
        End::Detached
    }

    /// Ends the connection: a watcher detaches; any other client sends nothing, which the supervisor takes as
    /// a hangup.
    fn leave(&mut self) -> End {
        match self.who {
            Who::Watcher => self.detach(),
            _ => End::Lost,
        }
    }

    fn read(&mut self) -> io::Result<Option<End>> {
        let mut bytes = [0; 64 << 10];
        let gone = match self.socket.read(&mut bytes) {
            Ok(0) => true,
            Ok(read) => {
                self.frames.put(&bytes[..read]);
                false
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => false,
            Err(_) => true,
        };
        while let Some(frame) = self.frames.whole()? {
            if let Some(end) = self.take(frame)? {
                return Ok(Some(end));
            }
        }
        Ok(gone.then_some(End::Lost))
    }

    fn take(&mut self, frame: Frame) -> io::Result<Option<End>> {
        match frame {
            // A starter shows no output.
            Frame::Printed(_) if self.who == Who::Starter => {}
            Frame::Printed(bytes) => {
                self.mid_line = bytes.last().map_or(self.mid_line, |last| *last != b'\n');
                if self.has_keys {
                    self.screen.print(&bytes);
                }
                print(&bytes)?;
            }
            Frame::Said(text) => self.say(&text),
            Frame::Begun { run, attempt, .. } if self.who == Who::Starter => {
                self.detach();
                return Ok(Some(End::Begun { run, attempt }));
            }
            Frame::Begun { pty, .. } => {
                self.has_keys = pty;
                self.lend();
                self.send_size();
            }
            Frame::Ended { undo } => {
                print(&undo)?;
                self.screen = Screen::default();
                self.has_keys = false;
                self.give_back();
            }
            Frame::Over(code) => return Ok(Some(End::Over(code))),
            _ => {}
        }
        Ok(None)
    }

    fn say(&mut self, text: &str) {
        let end = if self.is_raw { "\r\n" } else { "\n" };
        if std::mem::take(&mut self.mid_line) && self.terminal.is_some() {
            let _ = write!(io::stderr(), "{end}");
        }
        // If stderr is closed there is nobody to tell.
        let _ = write!(io::stderr(), "{}{end}", text.replace('\n', end));
    }

    fn send(&mut self, frame: &Frame) {
        self.waiting.extend(frame.encode());
    }

    fn send_size(&mut self) {
        if let Some(Winsize { ws_row: rows, ws_col: columns, .. }) = size() {
            self.send(&Frame::Size { rows, columns });
        }
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            match self.socket.write(self.waiting.make_contiguous()) {
                Ok(written) => drop(self.waiting.drain(..written)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // The supervisor's last words may still be there to be read.
                Err(_) => self.waiting.clear(),
            }
        }
        Ok(())
    }

    /// Makes the terminal raw, so that the agent gets every key. Does nothing in the background, where the terminal
    /// belongs to another program.
    fn lend(&mut self) {
        if let Some(terminal) = self.terminal.as_ref().filter(|t| self.has_keys && t.is_in_front()) {
            self.is_raw = terminal.make_raw();
        }
    }

    fn give_back(&mut self) {
        if std::mem::take(&mut self.is_raw)
            && let Some(terminal) = &self.terminal
        {
            terminal.restore();
        }
    }
}

/// Restores the terminal, also after a panic.
impl Drop for Client {
    fn drop(&mut self) {
        self.give_back();
    }
}

fn print(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Returns the size of this process's terminal; `None` if standard output is none, or its size is not known.
pub fn size() -> Option<Winsize> {
    let out = io::stdout();
    let size = out.is_terminal().then(|| rustix::termios::tcgetwinsize(&out).ok()).flatten();
    size.filter(|s| s.ws_row > 0 && s.ws_col > 0)
}

/// Ctrl-\.
const PREFIX: u8 = 0x1c;

/// Result of reading typed bytes: the keys to pass to the agent, and whether the person detaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meant {
    pub keys: Vec<u8>,
    pub detach: bool,
}

/// State of the key reader, which remembers a `Ctrl-\` until the next key.
#[derive(Debug, Default)]
pub struct Keys {
    prefixed: bool,
}

impl Keys {
    /// Returns what the typed bytes mean. Keys after a detach are dropped.
    ///
    /// `Ctrl-\` typed twice is sent once; before any other key but `d` it is sent as it is.
    pub fn take(&mut self, typed: &[u8]) -> Meant {
        let mut meant = Meant::default();
        for &key in typed {
            match (std::mem::replace(&mut self.prefixed, false), key) {
                (true, b'd' | b'D') => {
                    meant.detach = true;
                    return meant;
                }
                (true, PREFIX) => meant.keys.push(PREFIX),
                (true, _) => meant.keys.extend([PREFIX, key]),
                (false, PREFIX) => self.prefixed = true,
                (false, _) => meant.keys.push(key),
            }
        }
        meant
    }
}

#[cfg(test)]
mod tests_of_keys {
    use super::*;

    #[test]
    fn all_keys_are_the_agents_but_for_the_one_that_detaches() {
        for (typed, keys, detach) in [
            (&["hello\x03\x1a"][..], "hello\x03\x1a", false),
            (&["x\x1cdy"], "x", true),
            (&["\x1c", "d"], "", true),
            (&["\x1c\x1c", "d"], "\x1cd", false),
            (&["\x1c", "x\x1c\x03"], "\x1cx\x1c\x03", false),
            (&["dD"], "dD", false),
        ] {
            let mut state = Keys::default();
            let mut all = Meant::default();
            for part in typed {
                let meant = state.take(part.as_bytes());
                all.keys.extend(meant.keys);
                all.detach |= meant.detach;
            }
            assert_eq!(all, Meant { keys: keys.into(), detach }, "{typed:?}");
        }
    }
}
