//! Server's process of a recorder, and pipes of lines.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io::{self, BufRead as _, BufReader, Read, Write},
    os::fd::OwnedFd,
    process::{ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use outlast_process::{reap::Helper, wait};
use outlast_server::mcp::recorder::OutgoingLine;
use rustix::{
    event::{PollFd, PollFlags},
    process::{Signal, pidfd_send_signal},
};
use tokio::sync::mpsc;

use crate::{program::error::CliError, settings::no_proxy};

/// Longest line that the server or the client may send, in bytes.
const MAX_LINE: u64 = 256 << 20;

/// Time that a server has to end by itself after its standard input is closed.
const GRACE: Duration = Duration::from_secs(2);

/// MCP server that runs as a process started by this one, which may be a supervisor: an attempt's end leaves it alone.
pub struct Process {
    /// Descriptor of the process, by which it is killed.
    process: OwnedFd,
    /// Thread that reads what the server says, and waits for its end.
    reader: thread::JoinHandle<()>,
    stdin: Writer,
}

impl Process {
    /// Starts a server's process. With `variables`, these are its whole environment, and its standard error goes to the
    /// log, because the terminal is an agent's. Without, it inherits this process's environment and standard error.
    /// `each` gets its lines, and `ended` how it ended, after the last of them.
    pub fn start(
        command: &[OsString],
        variables: Option<&[(OsString, OsString)]>,
        each: impl Fn(Vec<u8>) -> bool + Send + 'static,
        ended: impl FnOnce(String) + Send + 'static,
    ) -> Result<Process, CliError> {
        let (program, arguments) = command.split_first().ok_or_else(|| io::Error::other("no command"))?;
        let mut command = Command::new(program);
        let mut known: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        if let Some(variables) = variables {
            known = variables.iter().cloned().collect();
            command.env_clear().envs(&known);
            command.stderr(Stdio::piped());
        }
        let straight = no_proxy::list(|name| known.get(OsStr::new(name)).cloned(), |_| true);
        command.envs(no_proxy::NAMES.map(|name| (name, straight.clone())));
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Helper::start(&mut command).map_err(|e| {
            CliError::usage(
                format!("the server {} cannot be started: {e}", program.to_string_lossy()),
                Some("give its command behind --: outlast mcp -- CMD"),
            )
        })?;
        if let Some(stderr) = child.stderr() {
            let server = program.to_string_lossy().into_owned();
            thread::spawn(move || {
                read_lines(BufReader::new(stderr), |line| {
                    tracing::info!(server, "{}", String::from_utf8_lossy(&line));
                    true
                });
            });
        }
        let (Some(stdin), Some(pipe)) = (child.stdin(), child.stdout()) else {
            return Err(io::Error::other("the server has no pipes").into());
        };
        let process = child.descriptor()?;
        let output = Output { pipe, process: process.try_clone()?, ended: false };
        let reader = thread::spawn(move || {
            read_lines(BufReader::new(output), each);
            // All that it said is heard, so nothing of it comes after its end.
            ended(match child.ends_within(GRACE) {
                Ok(Some(status)) => status.to_string(),
                Ok(None) => format!("killed: {} s after its output it still ran", GRACE.as_secs()),
                Err(e) => e.to_string(),
            });
        });
        Ok(Process { process, reader, stdin: Writer::start(stdin) })
    }

    pub fn send(&self, line: Vec<u8>) {
        let _ = self.stdin.lines.send(OutgoingLine { line, mark: None });
    }

    /// Closes the server's input, and ends it if it does not end by itself. Waits for that.
    pub fn close(self) {
        self.stdin.finish();
        give_grace(&self.reader);
        // One that has ended by itself is not there to be killed.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        let _ = self.reader.join();
    }
}

/// Waits until a thread has ended, or [`GRACE`] is over.
fn give_grace(thread: &thread::JoinHandle<()>) {
    let until = Instant::now() + GRACE;
    while !thread.is_finished() && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
}

/// Output of a process, which ends with the process: a process of its own that outlives it may keep the pipe open.
struct Output {
    pipe: ChildStdout,
    process: OwnedFd,
    ended: bool,
}

impl Read for Output {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.ended {
            let mut watched =
                [PollFd::new(&self.pipe, PollFlags::IN), PollFd::new(&self.process, PollFlags::IN)];
            wait::poll(&mut watched, None)?;
            let [has_output, has_ended] = watched.map(|fd| !fd.revents().is_empty());
            if has_ended {
                // What it wrote is in the pipe by now.
                rustix::io::ioctl_fionbio(&self.pipe, true)?;
                self.ended = true;
            } else if has_output {
                break;
            }
        }
        match self.pipe.read(buffer) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
            read => read,
        }
    }
}

/// Calls `each` with each line, without its end, until the input ends or `each` returns false.
pub fn read_lines(mut from: impl io::BufRead, mut each: impl FnMut(Vec<u8>) -> bool) {
    loop {
        let mut line = Vec::new();
        let read = from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        // A line that was cut off is no message.
        if read.is_err() || line.pop() != Some(b'\n') {
            return;
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        if !each(line) {
            return;
        }
    }
}

/// Thread that writes lines in order, so that a slow reader delays no other work.
pub struct Writer {
    lines: mpsc::UnboundedSender<OutgoingLine>,
    thread: thread::JoinHandle<()>,
}

impl Writer {
    pub fn start(mut to: impl Write + Send + 'static) -> Writer {
        let (lines, mut queue) = mpsc::unbounded_channel::<OutgoingLine>();
        let thread = thread::spawn(move || {
            while let Some(OutgoingLine { mut line, mark }) = queue.blocking_recv() {
                line.push(b'\n');
                // Nobody reads any more: its end is noticed by whoever reads from it.
                if to.write_all(&line).and_then(|()| to.flush()).is_ok()
                    && let Some(written) = mark
                {
                    written();
                }
            }
        });
        Writer { lines, thread }
    }

    /// Returns the sender of lines. A line's mark is called once it was written to the pipe.
    pub fn lines(&self) -> mpsc::UnboundedSender<OutgoingLine> {
        self.lines.clone()
    }

    /// Writes the queued lines, and closes the pipe. Gives up on a reader that reads nothing.
    pub fn finish(self) {
        drop(self.lines);
        give_grace(&self.thread);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc as channel;

    use rustix::process::Pid;

    use super::*;

    /// Bug: a server whose process had ended was waited for. Consequence: its calls hung for ever. Cause: its end was the
    /// end of its pipe, which a process that it had started kept open.
    #[test]
    fn a_server_ends_with_its_process_although_another_holds_its_pipe() {
        let ((line, lines), (end, ends)) = (channel::channel(), channel::channel());
        let argv = ["sh", "-c", "sleep 1000 & echo $!; exit 3"].map(OsString::from);
        let each = move |text: Vec<u8>| line.send(String::from_utf8(text).unwrap()).is_ok();
        let server = Process::start(&argv, None, each, move |how| end.send(how).unwrap()).unwrap();
        let how = ends.recv().unwrap();
        let holder = Pid::from_raw(lines.recv().unwrap().parse().unwrap()).unwrap();
        rustix::process::kill_process(holder, rustix::process::Signal::KILL).unwrap();
        assert!(how.contains('3'), "what it had said is heard, and then how it ended: {how}");
        server.close();
    }
}
