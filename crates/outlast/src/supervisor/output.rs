//! The agent's output: kept in its attempt's log, and passed on unchanged.
//!
//! Each stream has a thread of its own: a slow reader of ours holds up only that stream, as it would hold up
//! the agent. Bytes are in the log before they are passed on.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
    thread::JoinHandle,
};

use outlast_core::words::{AttemptNo, Clock};
use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags},
    fs::FileType,
    io::Errno,
    pipe::PipeFlags,
};

use crate::{
    agent::eyes::{Patterns, Screen, Sight},
    logs::AttemptLog,
    program::say::say,
};
use outlast_process::{attach::stage::Stage, spawn, terminal::Pty, wait::Bell};

/// Most bytes read from a pipe after its attempt is over. A process that was left alone may go on writing.
const LAST_BYTES: usize = 1 << 20;

/// Largest write that never blocks on a pipe that reports room.
const PIPE_BUF: usize = 4096;

/// Reader of everything that an attempt prints, until [`Output::finish`].
#[derive(Debug)]
pub struct Output {
    threads: Vec<JoinHandle<()>>,
    over: Arc<Bell>,
    /// Raised when no output is to be passed on any more.
    hurry: Arc<Bell>,
}

/// Descriptors to which the agent's output is passed on, besides attached viewers; `None`: it is not passed on.
#[derive(Clone, Debug, Default)]
pub struct Onward {
    pub stdout: Option<Arc<OwnedFd>>,
    pub stderr: Option<Arc<OwnedFd>>,
}

/// Supervisor's reading end of one of the agent's output streams.
pub struct Stream {
    from: OwnedFd,
    to: Option<Arc<OwnedFd>>,
}

/// Agent's ends of its output streams.
pub struct Ends {
    /// Terminal of the agent's own; `None` if its output goes to pipes or to the supervisor's streams.
    pub terminal: Option<Arc<OwnedFd>>,
    pub stdout: spawn::Output,
    pub stderr: spawn::Output,
}

impl Onward {
    /// Returns this process's own standard streams, duplicated.
    pub fn ours() -> io::Result<Onward> {
        let stdout = rustix::stdio::stdout().try_clone_to_owned()?;
        let stderr = rustix::stdio::stderr().try_clone_to_owned()?;
        Ok(Onward { stdout: Some(Arc::new(stdout)), stderr: Some(Arc::new(stderr)) })
    }

    /// Makes pipes for the agent's output and error. If both lead to the same place, one pipe serves both, so that
    /// their order is kept.
    pub fn pipes(&self) -> io::Result<(Ends, Vec<Stream>)> {
        let (stdout, out) = pipe(self.stdout.clone())?;
        if self.are_one() {
            return Ok((Ends { terminal: None, stderr: stdout.clone(), stdout }, vec![out]));
        }
        let (stderr, err) = pipe(self.stderr.clone())?;
        Ok((Ends { terminal: None, stdout, stderr }, vec![out, err]))
    }

    /// Uses a terminal for the agent's output and error; a standard error that leads elsewhere gets a pipe. `theirs`:
    /// the agent's side of the terminal.
    pub fn terminal(&self, pty: &Pty, theirs: OwnedFd) -> io::Result<(Ends, Vec<Stream>)> {
        let theirs = Arc::new(theirs);
        let mut streams = vec![Stream { from: pty.reader()?, to: self.stdout.clone() }];
        let stdout = spawn::Output::To(theirs.clone());
        let mut ends = Ends { terminal: Some(theirs), stderr: stdout.clone(), stdout };
        if !self.are_one() {
            let (stderr, err) = pipe(self.stderr.clone())?;
            ends.stderr = stderr;
            streams.push(err);
        }
        Ok((ends, streams))
    }

    /// Returns whether both streams lead to the same file, pipe or terminal.
    fn are_one(&self) -> bool {
        let place = |fd: &Option<Arc<OwnedFd>>| {
            let stat = fd.as_ref().map(rustix::fs::fstat)?.ok()?;
            Some((stat.st_dev, stat.st_ino, stat.st_rdev))
        };
        self.stderr.is_none() || place(&self.stdout).is_some() && place(&self.stdout) == place(&self.stderr)
    }
}

fn pipe(to: Option<Arc<OwnedFd>>) -> io::Result<(spawn::Output, Stream)> {
    let (from, end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    Ok((spawn::Output::To(Arc::new(end)), Stream { from, to }))
}

/// Begins the log of an attempt; `None` if that fails, which is printed: the agent then runs without a log.
pub fn log(directory: &Path, attempt: AttemptNo) -> Option<AttemptLog> {
    let begun = AttemptLog::begin(directory, attempt);
    begun.map_err(|e| say(&format!("what the agent prints is not kept: {}: {e}", directory.display()))).ok()
}

impl Output {
    /// Starts threads that log the streams and pass them on until they end. `eyes` report what they find before that.
    pub fn begin(
        streams: Vec<Stream>,
        log: Option<AttemptLog>,
        stage: Arc<Stage>,
        eyes: Option<Eyes>,
    ) -> io::Result<Output> {
        let eyes = eyes.map(Arc::new);
        let mut output =
            Output { threads: Vec::new(), over: Arc::new(Bell::new()?), hurry: Arc::new(Bell::new()?) };
        let kept = Arc::new(Kept { log: Mutex::new(log), stage, hurry: output.hurry.clone() });
        for Stream { from, to } in streams {
            let onward = to.map(|to| Way::new(to, output.hurry.clone()));
            let (kept, over) = (kept.clone(), output.over.clone());
            let look = eyes.clone().map(|eyes| (eyes, Screen::default()));
            let pump = Pump { from: File::from(from), onward, kept, look, over };
            output.threads.push(in_thread(move || pump.run())?);
        }
        Ok(output)
    }

    /// Reads what is left in the pipes after the attempt is over, without waiting for more.
    ///
    /// Blocks until everything is passed on; [`Output::hurry`] ends that early.
    pub fn finish(mut self) {
        self.over.ring();
        for thread in self.threads.drain(..) {
            // A panic in the thread has been printed already.
            let _ = thread.join();
        }
    }

    /// Returns a function that any thread may call: from then on remaining output is only logged and not passed on.
    pub fn hurry(&self) -> impl Fn() + Send + 'static {
        let hurry = self.hurry.clone();
        move || hurry.ring()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.over.ring();
    }
}

struct Kept {
    log: Mutex<Option<AttemptLog>>,
    stage: Arc<Stage>,
    hurry: Arc<Bell>,
}

impl Kept {
    fn take(&self, bytes: &[u8]) {
        let mut log = self.log.lock();
        if let Some(Err(e)) = log.as_mut().map(|log| log.write(bytes)) {
            *log = None;
            say(&format!("what the agent prints is not kept any more: {e}"));
        }
        drop(log);
        self.stage.print(bytes, &|| self.hurry.rings());
    }
}

struct Pump {
    from: File,
    onward: Option<Way>,
    kept: Arc<Kept>,
    look: Option<(Arc<Eyes>, Screen)>,
    over: Arc<Bell>,
}

/// Search of an output stream for an agent's session id and usage limit.
pub struct Eyes {
    pub patterns: Patterns,
    pub clock: Arc<dyn Clock>,
    pub tell: Box<dyn Fn(Sight) + Send + Sync>,
}

impl Eyes {
    fn tell(&self, sights: Vec<Sight>) {
        sights.into_iter().for_each(|sight| (self.tell)(sight));
    }
}

impl Pump {
    fn run(mut self) {
        self.pass_on();
        if let Some((eyes, screen)) = &mut self.look {
            eyes.tell(screen.end(&eyes.patterns, eyes.clock.now()));
        }
    }

    fn pass_on(&mut self) {
        let mut bytes = vec![0; 32 << 10];
        let mut after = None;
        loop {
            let (readable, over) = ready(self.from.as_fd(), PollFlags::IN, self.over.as_fd());
            if over && after.is_none() {
                after = Some(0);
            }
            if !readable || after.is_some_and(|after| after > LAST_BYTES) {
                return;
            }
            let read = match self.from.read(&mut bytes) {
                // The last user of the terminal has gone.
                Ok(0) | Err(_) => return,
                Ok(read) => read,
            };
            if let Some(after) = &mut after {
                *after += read;
            }
            self.kept.take(&bytes[..read]);
            if let Some((eyes, screen)) = &mut self.look {
                eyes.tell(screen.print(&bytes[..read], &eyes.patterns, eyes.clock.now()));
            }
            // Our reader has gone: stop reading, so that the agent learns it as it would from a pipe of its
            // own.
            if self.onward.as_mut().is_some_and(|onward| !onward.pass(&bytes[..read])) {
                return;
            }
        }
    }
}

/// Waits for `fd`, or for the bell if `fd` has nothing. Returns which of the two is ready.
fn ready(fd: BorrowedFd<'_>, wanted: PollFlags, bell: BorrowedFd<'_>) -> (bool, bool) {
    let mut both = [PollFd::from_borrowed_fd(fd, wanted), PollFd::from_borrowed_fd(bell, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut both, None) {
            Ok(_) => return (!both[0].revents().is_empty(), !both[1].revents().is_empty()),
            Err(Errno::INTR) => {}
            // Out of memory: the following read reports more.
            Err(_) => return (true, false),
        }
    }
}

/// Descriptor to which bytes are passed on.
struct Way {
    to: Arc<OwnedFd>,
    hurry: Arc<Bell>,
    /// Largest single write: any size for a regular file, otherwise one that cannot block.
    most: usize,
    failed: bool,
}

impl Way {
    fn new(to: Arc<OwnedFd>, hurry: Arc<Bell>) -> Way {
        let stat = rustix::fs::fstat(&to);
        let is_file = stat.is_ok_and(|s| FileType::from_raw_mode(s.st_mode).is_file());
        Way { to, hurry, most: if is_file { usize::MAX } else { PIPE_BUF }, failed: false }
    }

    /// Writes all bytes to the descriptor. Returns false if its reader is gone.
    fn pass(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() && !self.failed {
            let (writable, hurry) = ready(self.to.as_fd(), PollFlags::OUT, self.hurry.as_fd());
            if hurry && !writable {
                self.failed = true;
                break;
            }
            match rustix::io::write(&self.to, &bytes[..bytes.len().min(self.most)]) {
                Ok(written) => bytes = &bytes[written..],
                // Another process may have made the descriptor non-blocking.
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::PIPE) => return false,
                Err(e) => {
                    self.failed = true;
                    say(&format!("what the agent prints is kept, but cannot be passed on: {e}"));
                }
            }
        }
        true
    }
}

/// Starts a thread that reads an agent's output. It has a stack of the usual size: whoever looks at the words parses zones
/// and regular expressions in it, and what is not touched costs nothing.
fn in_thread<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name("outlast-output".into()).spawn(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug: a printed limit that names a zone, "4am (Asia/Tokyo)", ended the supervisor by SIGABRT. Cause: the thread that
    /// reads the output had 256 KiB of stack, and the parser of zones needs more.
    #[test]
    fn a_thread_that_reads_output_has_room_to_parse_a_zone() {
        let mut tzif = [b"TZif" as &[u8], &[0; 16]].concat();
        for count in [0_u32, 0, 0, 0, 1, 4] {
            tzif.extend(count.to_be_bytes());
        }
        tzif.extend(32_400_i32.to_be_bytes());
        tzif.extend(b"\0\0JST\0");
        let zone = in_thread(move || jiff::tz::TimeZone::tzif("Asia/Tokyo", &tzif)).unwrap();
        let offset = zone.join().unwrap().unwrap().to_offset(jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(offset.seconds(), 32_400);
    }
}
