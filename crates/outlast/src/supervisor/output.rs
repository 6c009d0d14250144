//! What the agent prints: kept in its attempt's log, and passed on unchanged.
//!
//! Each stream has a thread of its own: a reader of ours who is slow holds up his stream alone, as he would
//! hold up the agent itself. Bytes are in the log before they are passed on.

use std::{
    fs::{DirBuilder, File},
    io::{self, Read as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::DirBuilderExt as _,
    },
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

use outlast_core::id::AttemptNo;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags},
    fs::FileType,
    io::Errno,
    pipe::PipeFlags,
};

use crate::{logs::AttemptLog, process::spawn, say::say};

/// What a pipe may still hold when its attempt is over; a process that was left alone may go on writing.
const LAST_BYTES: usize = 1 << 20;

/// A write of this size never blocks on a pipe that says it has room.
const PIPE_BUF: usize = 4096;

/// Everything an attempt prints, until [`Output::finish`].
#[derive(Debug)]
pub struct Output {
    threads: Vec<JoinHandle<()>>,
    over: Arc<Bell>,
    /// Nothing is passed on any more.
    hurry: Arc<Bell>,
}

/// Where a stream of ours leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ours {
    Stdout,
    Stderr,
}

/// A stream of the agent's, as we read it.
pub struct Stream {
    pub from: OwnedFd,
    pub to: Option<Ours>,
}

/// The ends that the agent writes to.
pub struct Ends {
    pub stdout: spawn::Output,
    pub stderr: spawn::Output,
}

/// Pipes for both streams: one where both of ours lead to the same place, so that their order stays.
pub fn pipes(onward: bool) -> io::Result<(Ends, Vec<Stream>)> {
    let pipe = |to: Ours| -> io::Result<(spawn::Output, Stream)> {
        let (from, end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        Ok((spawn::Output::To(Arc::new(end)), Stream { from, to: onward.then_some(to) }))
    };
    let (stdout, out) = pipe(Ours::Stdout)?;
    if !onward || are_one(rustix::stdio::stdout(), rustix::stdio::stderr()) {
        return Ok((Ends { stderr: stdout.clone(), stdout }, vec![out]));
    }
    let (stderr, err) = pipe(Ours::Stderr)?;
    Ok((Ends { stdout, stderr }, vec![out, err]))
}

/// Whether two descriptors lead to the same file, pipe or terminal.
fn are_one(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    let place = |fd| rustix::fs::fstat(fd).map(|s| (s.st_dev, s.st_ino, s.st_rdev));
    matches!((place(a), place(b)), (Ok(a), Ok(b)) if a == b)
}

/// Begins the log of an attempt. A log that cannot be kept stops no agent: it is said.
pub fn log(directory: &Path, attempt: AttemptNo) -> Option<AttemptLog> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    let begun = made.and_then(|()| AttemptLog::begin(directory, attempt));
    begun.map_err(|e| say(&format!("what the agent prints is not kept: {}: {e}", directory.display()))).ok()
}

impl Output {
    /// Reads the streams until they end.
    pub fn begin(streams: Vec<Stream>, log: Option<AttemptLog>) -> io::Result<Output> {
        let kept = Arc::new(Kept { log: Mutex::new(log) });
        let mut output =
            Output { threads: Vec::new(), over: Arc::new(Bell::new()?), hurry: Arc::new(Bell::new()?) };
        for Stream { from, to } in streams {
            let onward = to.map(|to| Onward::new(to, output.hurry.clone()));
            let pump = Pump { from: File::from(from), onward, kept: kept.clone(), over: output.over.clone() };
            let thread = std::thread::Builder::new().name("outlast-output".into());
            output.threads.push(thread.stack_size(256 << 10).spawn(move || pump.run())?);
        }
        Ok(output)
    }

    /// The attempt is over: what is still in the pipes is taken, and no more is waited for.
    ///
    /// Blocks until it is passed on; [`Output::hurry`] ends that.
    pub fn finish(mut self) {
        self.over.ring();
        for thread in self.threads.drain(..) {
            // A panic in it has been printed.
            let _ = thread.join();
        }
    }

    /// Has what is not passed on yet only kept, from any thread.
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

/// Rings once, and is heard from then on.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> io::Result<Bell> {
        Ok(Bell(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub fn ring(&self) {
        // Full: it rings already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

struct Kept {
    log: Mutex<Option<AttemptLog>>,
}

impl Kept {
    fn take(&self, bytes: &[u8]) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Err(e)) = log.as_mut().map(|log| log.write(bytes)) {
            *log = None;
            say(&format!("what the agent prints is not kept any more: {e}"));
        }
    }
}

struct Pump {
    from: File,
    onward: Option<Onward>,
    kept: Arc<Kept>,
    over: Arc<Bell>,
}

impl Pump {
    fn run(mut self) {
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
                // A terminal's last user has gone.
                Ok(0) | Err(_) => return,
                Ok(read) => read,
            };
            if let Some(after) = &mut after {
                *after += read;
            }
            self.kept.take(&bytes[..read]);
            // Nobody reads us any more: the agent is to learn it as it would from a pipe of its own.
            if self.onward.as_mut().is_some_and(|onward| !onward.pass(&bytes[..read])) {
                return;
            }
        }
    }
}

/// Waits for `fd`, or for the bell when `fd` has nothing. Returns which of the two it is.
fn ready(fd: BorrowedFd<'_>, wanted: PollFlags, bell: BorrowedFd<'_>) -> (bool, bool) {
    let mut both = [PollFd::from_borrowed_fd(fd, wanted), PollFd::from_borrowed_fd(bell, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut both, None) {
            Ok(_) => return (!both[0].revents().is_empty(), !both[1].revents().is_empty()),
            Err(Errno::INTR) => {}
            // Out of memory: a read tells more.
            Err(_) => return (true, false),
        }
    }
}

/// A stream of ours that bytes are passed on to.
struct Onward {
    to: Ours,
    hurry: Arc<Bell>,
    /// Of a regular file, every write; of others, what surely does not block.
    most: usize,
    failed: bool,
}

impl Onward {
    fn new(to: Ours, hurry: Arc<Bell>) -> Onward {
        let is_file = |fd| rustix::fs::fstat(fd).is_ok_and(|s| FileType::from_raw_mode(s.st_mode).is_file());
        let most = if is_file(to.fd()) { usize::MAX } else { PIPE_BUF };
        Onward { to, hurry, most, failed: false }
    }

    /// Passes all of it on. False: nobody reads any more.
    fn pass(&mut self, mut bytes: &[u8]) -> bool {
        let fd = self.to.fd();
        while !bytes.is_empty() && !self.failed {
            let (writable, hurry) = ready(fd, PollFlags::OUT, self.hurry.as_fd());
            if hurry && !writable {
                self.failed = true;
                break;
            }
            match rustix::io::write(fd, &bytes[..bytes.len().min(self.most)]) {
                Ok(written) => bytes = &bytes[written..],
                // Others may have made it non-blocking.
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

impl Ours {
    fn fd(self) -> BorrowedFd<'static> {
        match self {
            Ours::Stdout => rustix::stdio::stdout(),
            Ours::Stderr => rustix::stdio::stderr(),
        }
    }
}
