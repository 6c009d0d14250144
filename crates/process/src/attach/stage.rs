//! The supervisor's side of attaching: the clients, and the agent's output sent to them.

use std::{
    collections::VecDeque,
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::{
            fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::{process::Signal, termios::Winsize};

use super::{
    frame::{Frame, Frames, VERSION},
    screen::Screen,
};
use crate::{
    exit::Exit,
    terminal::{self, Pty},
};

/// Largest number of bytes that wait for a client. Beyond it the owner of the run holds the agent up, as a
/// terminal does; other clients, who only watch, are cut off.
const MOST_WAITING: usize = 1 << 20;

/// Time within which the end of an agent is ascribed to a Ctrl-C: as long as a stopped agent has to end.
const AFTER_SIGNAL: Duration = Duration::from_secs(30);
/// The same time for an agent that reads Ctrl-C as an ordinary key, which seldom means that the agent is to
/// end.
const AFTER_KEY: Duration = Duration::from_secs(3);

/// Time that clients have to receive the last messages.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Supervisor's side of attaching: the clients, and the terminal of the agent that they see.
#[derive(Debug, Default)]
pub struct Stage {
    inner: Mutex<Inner>,
    /// Signalled when bytes start or stop waiting for a client.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    screen: Screen,
    pty: Option<Pty>,
    size: Option<Winsize>,
    /// Frame that announced the running attempt to the clients; `None` while no attempt runs.
    begun: Option<Frame>,
    pressed: Option<Pressed>,
    clients: Vec<Client>,
    next: u64,
}

/// Most recent Ctrl-C that a person typed.
#[derive(Clone, Copy, Debug)]
struct Pressed {
    at: Instant,
    is_signal: bool,
}

#[derive(Debug)]
struct Client {
    no: u64,
    /// Whether the client is the terminal that the run was started from.
    is_owner: bool,
    waiting: VecDeque<Arc<[u8]>>,
    bytes: usize,
    /// Whether the client gets no further messages, and is removed once it has received those that wait.
    leaves: bool,
}

/// Way in which a client left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The client detached: the run goes on without it.
    Detached,
    /// The terminal that the run was started from was closed.
    Hangup,
}

impl Stage {
    /// Prepares the stage for an attempt, whose agent has the terminal `pty`; `None`: it has no terminal of its own.
    pub fn open(&self, pty: Option<Pty>) {
        let mut inner = self.inner.lock();
        inner.screen = Screen::default();
        inner.pressed = None;
        inner.pty = pty;
    }

    /// Returns the size for an agent's terminal: the clients' latest, or [`terminal::USUAL`].
    pub fn size(&self) -> Winsize {
        self.inner.lock().size.unwrap_or(terminal::USUAL)
    }

    pub fn resize(&self, size: Winsize) {
        let mut inner = self.inner.lock();
        inner.size = Some(size);
        if let Some(pty) = &inner.pty {
            pty.resize(size);
        }
    }

    /// Tells the clients that the attempt has begun.
    pub fn begun(&self, run: &str, attempt: i64) {
        let mut inner = self.inner.lock();
        let begun = Frame::Begun { pty: inner.pty.is_some(), attempt, run: run.to_owned() };
        inner.begun = Some(begun.clone());
        self.tell_all(inner, &begun);
    }

    /// Sends output of the agent to the clients. Waits while the run's own terminal does not take it, unless `hurries`
    /// returns true.
    pub fn print(&self, bytes: &[u8], hurries: &dyn Fn() -> bool) {
        let mut inner = self.inner.lock();
        inner.screen.print(bytes);
        let holds_up = |c: &Client| c.is_owner && !c.leaves && c.bytes > MOST_WAITING;
        while inner.clients.iter().any(holds_up) && !hurries() {
            // Polls with a timeout, because a change of `hurries` does not signal this condition.
            self.changed.wait_for(&mut inner, Duration::from_millis(200));
        }
        self.tell_all(inner, &Frame::Printed(bytes.to_vec()));
    }

    /// Sends a line of the supervisor's text to the clients.
    pub fn say(&self, text: &str) {
        self.tell_all(self.inner.lock(), &Frame::Said(text.to_owned()));
    }

    /// Ends the attempt, and tells the clients how to undo its terminal modes.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        inner.pty = None;
        if inner.begun.take().is_some() {
            let undo = inner.screen.undo();
            inner.screen = Screen::default();
            self.tell_all(inner, &Frame::Ended { undo });
        }
    }

    /// Returns whether the agent's exit follows a Ctrl-C that a person typed.
    pub fn is_interrupted(&self, exit: Option<Exit>) -> bool {
        let Some(pressed) = self.inner.lock().pressed else { return false };
        is_interruption(pressed.is_signal, pressed.at.elapsed(), exit)
    }

    /// Tells the clients that the supervisor ends with this exit code. Returns when they have read it, or after 2 s.
    pub fn over(&self, code: u8) {
        let until = Instant::now() + LAST_WORDS;
        let mut inner = self.inner.lock();
        for client in &mut inner.clients {
            client.put(&Frame::Over(code).encode().into());
            client.leaves = true;
        }
        self.changed.notify_all();
        while !inner.clients.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.changed.wait_for(&mut inner, left);
        }
    }

    /// Serves a client until it leaves. Blocks; a separate thread writes to the client.
    ///
    /// The client first sends its version, and then gets what is on the screen. Errors: the client cannot be read, or
    /// has another version.
    pub fn serve(self: &Arc<Self>, socket: UnixStream, is_owner: bool) -> io::Result<Left> {
        let mut frames = Frames::default();
        let mut from = socket.try_clone()?;
        match frames.read(&mut from)? {
            Some(Frame::Hello { version: VERSION }) => {}
            Some(Frame::Hello { version }) => {
                let why = format!("this run's supervisor speaks version {VERSION}, and the client {version}");
                (&socket).write_all(&Frame::Said(why.clone()).encode())?;
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        let no = self.join(is_owner);
        let stage = self.clone();
        let to = socket.try_clone()?;
        let writer = std::thread::Builder::new().name("outlast-client".into()).stack_size(128 << 10);
        writer.spawn(move || stage.write(no, to))?;
        let left = self.listen(&mut frames, &mut from, is_owner);
        let mut inner = self.inner.lock();
        inner.clients.retain(|c| c.no != no);
        self.changed.notify_all();
        Ok(left)
    }

    fn join(&self, is_owner: bool) -> u64 {
        let mut inner = self.inner.lock();
        inner.next += 1;
        let mut client =
            Client { no: inner.next, is_owner, waiting: VecDeque::new(), bytes: 0, leaves: false };
        if let Some(begun) = &inner.begun {
            client.put(&begun.encode().into());
        }
        // An agent may print before it is told that it runs.
        let shown = inner.screen.replay();
        if !shown.is_empty() {
            client.put(&Frame::Printed(shown).encode().into());
        }
        inner.clients.push(client);
        self.changed.notify_all();
        if let Some(pty) = inner.pty.as_ref().filter(|_| !is_owner) {
            pty.redraw();
        }
        inner.next
    }

    fn listen(&self, frames: &mut Frames, from: &mut UnixStream, is_owner: bool) -> Left {
        loop {
            let pty = || self.inner.lock().pty.clone();
            match frames.read(from) {
                Ok(Some(Frame::Keys(keys))) => {
                    let Some(pty) = pty() else { continue };
                    if keys.contains(&0x03) {
                        let is_signal = pty.raises_signals();
                        self.inner.lock().pressed = Some(Pressed { at: Instant::now(), is_signal });
                    }
                    // Done without the lock: an agent that does not read then holds up only the client that
                    // types. An agent that has gone reads no keys.
                    let _ = pty.types(&keys);
                }
                Ok(Some(Frame::Size { rows, columns })) if rows > 0 && columns > 0 => {
                    self.resize(Winsize { ws_row: rows, ws_col: columns, ..terminal::USUAL });
                }
                Ok(Some(Frame::Signal(number))) if is_owner => {
                    // Handled as if the signal had been sent to this process.
                    if let Some(signal) = Signal::from_named_raw(number) {
                        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
                    }
                }
                Ok(Some(Frame::Detach)) => return Left::Detached,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) if is_owner => return Left::Hangup,
                Ok(None) | Err(_) => return Left::Detached,
            }
        }
    }

    /// Writes the bytes that wait for a client, until the client is gone.
    fn write(&self, no: u64, mut to: UnixStream) {
        loop {
            let mut inner = self.inner.lock();
            let bytes = loop {
                let Some(client) = inner.clients.iter_mut().find(|c| c.no == no) else { return };
                if let Some(bytes) = client.waiting.pop_front() {
                    client.bytes -= bytes.len();
                    break Some(bytes);
                }
                if client.leaves {
                    break None;
                }
                self.changed.wait(&mut inner);
            };
            self.changed.notify_all();
            if bytes.is_none() {
                inner.clients.retain(|c| c.no != no);
            }
            drop(inner);
            if bytes.is_none_or(|bytes| to.write_all(&bytes).is_err()) {
                // The shutdown ends the client's reader, which removes it from the stage.
                let _ = to.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    }

    fn tell_all(&self, mut inner: MutexGuard<'_, Inner>, frame: &Frame) {
        if inner.clients.is_empty() {
            return;
        }
        let bytes: Arc<[u8]> = frame.encode().into();
        for client in &mut inner.clients {
            if !client.is_owner && client.bytes > MOST_WAITING {
                let slow = "you were too slow to watch: attach again";
                client.waiting.clear();
                client.bytes = 0;
                client.put(&Frame::Said(slow.into()).encode().into());
                client.leaves = true;
            }
            client.put(&bytes);
        }
        self.changed.notify_all();
    }
}

impl Client {
    fn put(&mut self, bytes: &Arc<[u8]>) {
        if !self.leaves {
            self.bytes += bytes.len();
            self.waiting.push_back(bytes.clone());
        }
    }
}

/// Returns whether the exit is by a signal that no Ctrl-C leads to, directly or as a shell reports it.
fn is_crash(exit: Exit) -> bool {
    const CRASHES: [i32; 7] = [4, 6, 7, 8, 9, 11, 31];
    let signal = exit.signal.or_else(|| exit.code.map(|code| code - 128));
    signal.is_some_and(|signal| CRASHES.contains(&signal))
}

/// Returns whether an end this long after a Ctrl-C was caused by it.
fn is_interruption(is_signal: bool, since: Duration, exit: Option<Exit>) -> bool {
    let by_itself = exit.is_some_and(|e| e.signal == Some(2) || e.code == Some(130));
    if exit.is_some_and(is_crash) {
        return false;
    }
    by_itself || since <= if is_signal { AFTER_SIGNAL } else { AFTER_KEY }
}

// --- The socket of a run, `attach.sock` in its own directory.
//
// The directory is private to the user (0700), and so is the socket (0600); the user of each peer is checked
// all the same. The socket is addressed through the directory's descriptor, because a socket's address has
// room for only 107 bytes, and a run's directory may have a longer name.

const NAME: &str = "attach.sock";

/// Listening socket of a run. Dropping it removes the socket's file.
#[derive(Debug)]
pub struct Listening {
    path: PathBuf,
    inode: u64,
}

/// Listens in `directory`, and serves clients on the stage. Replaces an older socket, left by a supervisor that died.
pub fn listen(directory: &Path, stage: Arc<Stage>) -> io::Result<Listening> {
    let path = directory.join(NAME);
    match fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let by = open(directory)?;
    let listener = UnixListener::bind(short(&by))?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    let inode = fs::metadata(&path)?.ino();
    let thread = std::thread::Builder::new().name("outlast-attach".into()).stack_size(128 << 10);
    thread.spawn(move || accept(&listener, &stage))?;
    Ok(Listening { path, inode })
}

/// Connects to a run's supervisor. Errors: `NotFound` and `ConnectionRefused` if no supervisor listens.
pub fn connect(directory: &Path) -> io::Result<UnixStream> {
    let by = open(directory)?;
    UnixStream::connect(short(&by))
}

fn open(directory: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC).open(directory)
}

fn short(directory: &File) -> PathBuf {
    format!("/proc/self/fd/{}/{NAME}", directory.as_raw_fd()).into()
}

fn accept(listener: &UnixListener, stage: &Arc<Stage>) {
    loop {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => {
                tracing::warn!(error = %e, "nobody can attach to this run any more");
                return;
            }
        };
        if !is_ours(&client) {
            continue;
        }
        let stage = stage.clone();
        let thread = std::thread::Builder::new().name("outlast-client".into()).stack_size(128 << 10);
        let served = thread.spawn(move || {
            if let Err(e) = stage.serve(client, false) {
                tracing::info!(error = %e, "a client was not served");
            }
        });
        if let Err(e) = served {
            tracing::warn!(error = %e, "a client was not served");
        }
    }
}

/// Returns whether the process at the other end belongs to this user.
fn is_ours(client: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(client.as_fd());
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root())
}

impl Drop for Listening {
    fn drop(&mut self) {
        // A socket of another supervisor, which took the run over, stays.
        if fs::metadata(&self.path).is_ok_and(|m| m.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::attach::frame::{Frame, Frames, VERSION};

    #[test]
    fn an_end_after_ctrl_c_is_a_persons_doing() {
        let s = Duration::from_secs;
        for (is_signal, since, exit, wanted) in [
            (true, s(0), Exit::signal(2), true),
            (true, s(29), Exit::code(0), true),
            (true, s(31), Exit::code(0), false),
            (true, s(3600), Exit::code(130), true),
            (true, s(1), Exit::signal(9), false),
            (true, s(1), Exit::code(128 + 11), false),
            (false, s(1), Exit::code(0), true),
            (false, s(4), Exit::signal(9), false),
            (false, s(4), Exit::signal(2), true),
        ] {
            assert_eq!(is_interruption(is_signal, since, Some(exit)), wanted, "{is_signal} {since:?} {exit}");
        }
    }

    fn client(stage: &Arc<Stage>, is_owner: bool) -> (UnixStream, std::thread::JoinHandle<Left>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&ours).write_all(&Frame::Hello { version: VERSION }.encode()).unwrap();
        let stage = stage.clone();
        (ours, std::thread::spawn(move || stage.serve(theirs, is_owner).unwrap()))
    }

    /// All frames up to `last`.
    fn until(from: &mut UnixStream, last: &Frame) -> Vec<Frame> {
        let mut frames = Frames::default();
        let mut all = Vec::new();
        while all.last() != Some(last) {
            all.push(frames.read(from).unwrap().expect("another frame"));
        }
        all
    }

    #[test]
    fn who_comes_later_is_shown_what_was_printed_before_and_all_that_follows() {
        let stage = Arc::new(Stage::default());
        stage.open(None);
        stage.begun("r", 1);
        stage.print(b"before\n", &|| false);
        let (mut socket, served) = client(&stage, false);
        let begun = Frame::Begun { pty: false, attempt: 1, run: "r".into() };
        let before = Frame::Printed(b"before\n".to_vec());
        assert_eq!(until(&mut socket, &before), [begun, before]);
        stage.print(b"\x1b[?25l", &|| false);
        stage.close();
        let ended = Frame::Ended { undo: b"\x1b[?25h".to_vec() };
        assert_eq!(until(&mut socket, &ended), [Frame::Printed(b"\x1b[?25l".to_vec()), ended]);
        stage.over(75);
        until(&mut socket, &Frame::Over(75));
        assert_eq!(served.join().unwrap(), Left::Detached);
    }

    #[test]
    fn one_who_watches_and_is_slow_is_cut_off_and_the_owner_loses_nothing() {
        let stage = Arc::new(Stage::default());
        let (mut owner, owned) = client(&stage, true);
        let (mut slow, watched) = client(&stage, false);
        while stage.inner.lock().clients.len() < 2 {
            std::thread::yield_now();
        }
        let printer = {
            let stage = stage.clone();
            std::thread::spawn(move || {
                for n in 0..400u32 {
                    stage.print(&vec![n as u8; 10_000], &|| false);
                }
                stage.over(0);
            })
        };
        // The owner is behind by more than is kept for any other client.
        let is_behind = || stage.inner.lock().clients.iter().any(|c| c.is_owner && c.bytes > MOST_WAITING);
        while !is_behind() && !printer.is_finished() {
            std::thread::yield_now();
        }
        let got = until(&mut owner, &Frame::Over(0));
        assert_eq!(got.len(), 401);
        assert!(got.iter().enumerate().take(400).all(|(n, f)| *f == Frame::Printed(vec![n as u8; 10_000])));
        printer.join().unwrap();
        let mut frames = Frames::default();
        let mut last = None;
        while let Ok(Some(frame)) = frames.read(&mut slow) {
            last = Some(frame);
        }
        assert!(matches!(last, Some(Frame::Said(_))), "{last:?}");
        assert_eq!(watched.join().unwrap(), Left::Detached);
        // It was told that all is over, and nothing was detached.
        assert_eq!(owned.join().unwrap(), Left::Hangup);
    }

    #[test]
    fn a_run_is_reached_by_its_directory_however_long_its_name_is() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(120));
        fs::create_dir(&long).unwrap();
        assert!(connect(&long).is_err());
        let stage = Arc::new(Stage::default());
        let first = listen(&long, stage.clone()).unwrap();
        assert_eq!(fs::metadata(long.join(NAME)).unwrap().permissions().mode() & 0o777, 0o600);
        // The second one takes the place of the first, and dropping the first does not touch it.
        let second = listen(&long, stage.clone()).unwrap();
        drop(first);
        let mut client = connect(&long).unwrap();
        client.write_all(&Frame::Hello { version: VERSION }.encode()).unwrap();
        stage.begun("r", 1);
        let begun = Frame::Begun { pty: false, attempt: 1, run: "r".into() };
        assert_eq!(Frames::default().read(&mut client).unwrap(), Some(begun));
        drop(second);
        assert!(connect(&long).is_err());
    }
}
