//! Server's process of a recorder, and pipes of lines.

use std::{
    ffi::OsString,
    io::{self, BufRead as _, BufReader, Read, Write},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc as channel},
    thread,
    time::{Duration, Instant},
};

use crate::program::error::CliError;

/// Longest line that the server or the client may send, in bytes.
const MAX_LINE: u64 = 256 << 20;

/// Time that a server has to end by itself after its standard input is closed.
const GRACE: Duration = Duration::from_secs(2);

/// MCP server that runs as a process started by this one.
pub struct Process {
    child: Arc<Mutex<Child>>,
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
        if let Some(variables) = variables {
            command.env_clear().envs(variables.iter().map(|(name, value)| (name, value)));
            command.stderr(Stdio::piped());
        }
        let mut child =
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|e| {
                CliError::usage(
                    format!("the server {} cannot be started: {e}", program.to_string_lossy()),
                    Some("give its command behind --: outlast mcp -- CMD"),
                )
            })?;
        if let Some(stderr) = child.stderr.take() {
            let server = program.to_string_lossy().into_owned();
            thread::spawn(move || {
                read_lines(BufReader::new(stderr), |line| {
                    tracing::info!(server, "{}", String::from_utf8_lossy(&line));
                    true
                });
            });
        }
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the server has no pipes").into());
        };
        let child = Arc::new(Mutex::new(child));
        let waited = child.clone();
        thread::spawn(move || {
            read_lines(BufReader::new(stdout), each);
            // All that it said is heard, so nothing of it comes after its end.
            ended(end(&waited));
        });
        Ok(Process { child, stdin: Writer::start(stdin) })
    }

    pub fn send(&self, line: Vec<u8>) {
        self.stdin.write(line, || {});
    }

    /// Closes the server's input, and ends it if it does not end by itself. Waits for that.
    pub fn close(self) {
        self.stdin.finish();
        end(&self.child);
    }
}

/// Waits until a server has ended, and returns how. One that still runs after [`GRACE`] is killed.
fn end(child: &Mutex<Child>) -> String {
    let until = Instant::now() + GRACE;
    loop {
        let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
        match child.try_wait() {
            Ok(Some(status)) => return status.to_string(),
            Ok(None) if Instant::now() < until => {}
            _ => {
                let _ = child.kill();
                return child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
            }
        }
        drop(child);
        thread::sleep(Duration::from_millis(5));
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

type Line = (Vec<u8>, Box<dyn FnOnce() + Send>);

/// Thread that writes lines in order, so that a slow reader delays no other work.
pub struct Writer {
    lines: channel::Sender<Line>,
    thread: thread::JoinHandle<()>,
}

impl Writer {
    pub fn start(mut to: impl Write + Send + 'static) -> Writer {
        let (lines, queue) = channel::channel::<Line>();
        let thread = thread::spawn(move || {
            for (mut line, written) in queue {
                line.push(b'\n');
                // Nobody reads any more: its end is noticed by whoever reads from it.
                if to.write_all(&line).and_then(|()| to.flush()).is_ok() {
                    written();
                }
            }
        });
        Writer { lines, thread }
    }

    /// Queues a line. `written` is called once the line was written to the pipe.
    pub fn write(&self, line: Vec<u8>, written: impl FnOnce() + Send + 'static) {
        let _ = self.lines.send((line, Box::new(written)));
    }

    /// Writes the queued lines, and closes the pipe. Gives up on a reader that reads nothing.
    pub fn finish(self) {
        drop(self.lines);
        let until = Instant::now() + GRACE;
        while !self.thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
    }
}
