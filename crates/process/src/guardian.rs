//! The guardian: parent of a supervisor, which ends what the supervisor leaves when it is gone.
//!
//! A killed supervisor ends nobody. The kernel kills its direct child with it, and no process that the child had
//! started: a shell's agent would work on, unmetered and beside its successor. So a process that becomes a supervisor
//! forks first. The child goes on as the supervisor; the parent, which the person knows by its pid, is its guardian:
//!
//! - Subreaper above the supervisor, itself a subreaper: at the supervisor's death every descendant is the guardian's,
//!   whatever session, environment or control group it is in, and all are killed ([`end_tree`]).
//! - Between the person and the supervisor it is not seen: it passes on the signals that only it received, stops and
//!   goes on with the supervisor, and ends as the supervisor ends.
//! - Its own death is learnt through the link, and [`when_lost`] then ends the supervisor and all below it.
//!
//! The supervisor leads a group of its own, so that a signal to the typed command's group (`kill -9 -PGID`) leaves
//! one of the two to act. On a terminal both stay in the terminal's foreground group.
//!
//! The link is a socket. The supervisor says on it what is to be known at its death ([`tell`]), and until when all below
//! it may run ([`trust_until`]). When that moment has passed, the guardian freezes the tree, whatever became of the
//! supervisor: a stopped one cannot. A later moment thaws it. The guardian waits for the link, for signals and for the
//! moment in one `poll`.
//!
//! [`end_tree`]: super::end_tree::end_tree

use std::{
    fs,
    io::{self, IsTerminal as _, Read as _, Write as _},
    mem,
    os::{
        fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags},
    net::SendFlags,
    process::{Pid, Signal, WaitId, WaitIdOptions},
};

use crate::{
    exit::Exit,
    freeze::{Deadline, Frozen},
    proc_table::ProcId,
    reap, signals, spawn,
    tree::Tree,
    wait::poll,
};

/// Name of the guardian's process, as `ps -o comm` shows it.
pub const NAME: &str = "outlast-guard";

/// Signals that a guardian does not act on, and passes on if the supervisor has not received them too.
const PASSED_ON: [i32; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTSTP,
    libc::SIGCONT,
];

/// Signals that a guardian needs for itself. The supervisor receives a terminal's SIGTTIN and SIGTTOU too.
const OWN: [i32; 3] = [libc::SIGCHLD, libc::SIGTTIN, libc::SIGTTOU];

/// Interval at which a frozen tree is looked at, for what was continued by somebody else.
const LOOK: Duration = Duration::from_secs(1);

/// End of a supervisor, as it is passed to the guardian's `bereaved` function.
#[derive(Debug)]
pub struct Bereaved {
    pub exit: Exit,
    /// Last line that the supervisor passed to [`tell`]; empty if there was none.
    pub told: String,
}

/// Forks. The child returns, as the supervisor; the parent becomes its guardian and does not return.
///
/// When the supervisor has ended, the guardian calls `bereaved`, which ends the processes that the supervisor left, and
/// then ends itself by the same code or signal. `tree` completes the tree of all below the supervisor by what was told
/// last, before it is frozen. `speaks`: the guardian keeps standard error open for `bereaved`. Call it while the process
/// holds little memory: the guardian keeps every page that the supervisor changes.
///
/// A process with other threads cannot be forked: it gets no guardian, and returns at once. Errors: no process can be
/// made.
pub fn stand(speaks: bool, tree: fn(&str, Tree) -> Tree, bereaved: impl FnOnce(&Bereaved)) -> io::Result<()> {
    if fs::read_dir("/proc/self/task")?.count() > 1 {
        return Ok(());
    }
    let (ours, theirs) = UnixStream::pair()?;
    let on_terminal = io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal();
    // Blocked before the fork, so that no signal is lost between it and the first look at them.
    let before = signals::change_mask(libc::SIG_BLOCK, &own_signals())?;
    let parent = rustix::process::getpid();
    // SAFETY: this is the process's only thread, so no lock is held by another one and the child may do anything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(ours);
            if !on_terminal {
                rustix::process::setpgid(None, None)?;
            }
            signals::change_mask(libc::SIG_SETMASK, &before)?;
            begin(parent, theirs);
            Ok(())
        }
        pid => {
            drop(theirs);
            let done = Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork returned no pid")).and_then(
                |supervisor| {
                    let guard = Guard::new(supervisor, ours, on_terminal, speaks, tree)?;
                    let end = guard.wait()?;
                    bereaved(&end);
                    Ok(end.exit)
                },
            );
            end_as(done.unwrap_or(Exit::signal(libc::SIGKILL)))
        }
    }
}

/// State of the guardian process.
struct Guard {
    supervisor: Pid,
    /// Connection to the supervisor; `None` once the supervisor has closed it.
    link: Option<UnixStream>,
    /// Beginning of a line whose end has not come yet.
    begun: Vec<u8>,
    told: String,
    /// Moment until which the processes below the supervisor may run.
    trusted: Deadline,
    frozen: Frozen,
    tree: fn(&str, Tree) -> Tree,
    signals: OwnedFd,
    /// Whether the supervisor is in the guardian's process group, and receives what the group does.
    shares_group: bool,
    /// Whether both were asked to stop (Ctrl-Z), and the guardian stops when the supervisor has.
    stopping: bool,
}

impl Guard {
    fn new(
        supervisor: Pid,
        link: UnixStream,
        shares_group: bool,
        speaks: bool,
        tree: fn(&str, Tree) -> Tree,
    ) -> io::Result<Guard> {
        reap::become_subreaper()?;
        rustix::thread::set_name(&std::ffi::CString::new(NAME)?)?;
        link.set_nonblocking(true)?;
        // SAFETY: a set of signals and a default action, both plain data. A parent that ignores SIGCHLD hands that
        // on, and the supervisor's end would then not be told.
        let signals = unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            libc::signalfd(-1, &own_signals(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if signals < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it for us.
        let signals = unsafe { OwnedFd::from_raw_fd(signals) };
        let guard = Guard {
            supervisor,
            link: Some(link),
            begun: Vec::new(),
            told: String::new(),
            trusted: Deadline::new()?,
            frozen: Frozen::default(),
            tree,
            signals,
            shares_group,
            stopping: false,
        };
        guard.let_go(speaks)?;
        shrink()?;
        Ok(guard)
    }

    /// Closes the guardian's copies of what the supervisor has open: a program that waits until the supervisor has
    /// closed a pipe must not wait for the guardian, too.
    fn let_go(&self, speaks: bool) -> io::Result<()> {
        let null = fs::File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        if !speaks {
            rustix::stdio::dup2_stderr(&null)?;
        }
        drop(null);
        let link = self.link.as_ref().map(|link| link.as_raw_fd());
        let kept = [Some(self.signals.as_raw_fd()), Some(self.trusted.as_fd().as_raw_fd()), link];
        let open: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|fd| *fd > 2 && !kept.contains(&Some(*fd)))
            .collect();
        // SAFETY: whatever owned these descriptors belongs to the supervisor's life, and is not used in this one:
        // `stand` does not return here.
        open.into_iter().for_each(|fd| {
            unsafe { libc::close(fd) };
        });
        std::env::set_current_dir("/")
    }

    /// Waits until the supervisor has ended, reaps the supervisor, and returns how it ended and its last
    /// line.
    fn wait(mut self) -> io::Result<Bereaved> {
        loop {
            if let Some(exit) = self.look()? {
                self.listen()?;
                return Ok(Bereaved { exit, told: self.told });
            }
            let mut watched = vec![
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::from_borrowed_fd(self.trusted.as_fd(), PollFlags::IN),
            ];
            watched.extend(self.link.as_ref().map(|link| PollFd::new(link, PollFlags::IN)));
            poll(&mut watched, self.trusted.has_passed().then_some(LOOK))?;
            self.trusted.heard();
            self.listen()?;
            self.hold_or_let_go();
            while let Some(came) = self.next_signal() {
                self.hear(&came)?;
            }
        }
    }

    /// Checks whether the supervisor has ended, and returns its exit if so. If the supervisor was suspended,
    /// suspends the guardian too.
    fn look(&mut self) -> io::Result<Option<Exit>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        while let Some(status) = rustix::process::waitid(WaitId::Pid(self.supervisor), options)? {
            if !status.stopped() {
                return Ok(Some(Exit::of(&status)));
            }
            if mem::take(&mut self.stopping) {
                // The shell sees its job stopped, and takes its terminal back.
                signals::suspend_self()?;
                self.pass_on(libc::SIGCONT)?;
            }
        }
        Ok(None)
    }

    /// Freezes the tree while it may not run, and thaws it when it may. What fails is tried again at the next look.
    fn hold_or_let_go(&mut self) {
        if !self.trusted.has_passed() {
            let _ = self.frozen.thaw();
            return;
        }
        let pid = self.supervisor.as_raw_nonzero().get().unsigned_abs();
        if let Ok(Some(supervisor)) = ProcId::of(pid) {
            let _ = self.frozen.freeze(&(self.tree)(&self.told, Tree::below(supervisor)));
        }
    }

    /// Reads what the supervisor has sent.
    fn listen(&mut self) -> io::Result<()> {
        let Some(mut link) = self.link.as_ref() else { return Ok(()) };
        let mut bytes = [0; 4096];
        loop {
            match link.read(&mut bytes) {
                Ok(0) => {
                    self.link = None;
                    break;
                }
                Ok(read) => self.begun.extend_from_slice(&bytes[..read]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if let Some(end) = self.begun.iter().rposition(|b| *b == b'\n') {
            let lines: Vec<u8> = self.begun.drain(..=end).collect();
            for line in String::from_utf8_lossy(&lines).lines() {
                if let Some(told) = line.strip_prefix(TOLD) {
                    told.clone_into(&mut self.told);
                } else if let Some(at_ms) = line.strip_prefix(TRUST) {
                    self.trusted.set(at_ms.parse().ok())?;
                }
            }
        }
        Ok(())
    }

    fn next_signal(&self) -> Option<libc::signalfd_siginfo> {
        let mut bytes = [0; mem::size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(self.signals.as_fd(), &mut bytes) {
            // SAFETY: the kernel wrote one whole `signalfd_siginfo`, which is plain data.
            Ok(read) if read == bytes.len() => Some(unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) }),
            _ => None,
        }
    }

    fn hear(&mut self, came: &libc::signalfd_siginfo) -> io::Result<()> {
        let signal = came.ssi_signo.cast_signed();
        match signal {
            libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => self.stopping = true,
            libc::SIGCONT => self.stopping = false,
            _ => {}
        }
        // A terminal signals the whole group.
        let had_it = self.shares_group && came.ssi_code == libc::SI_KERNEL;
        match PASSED_ON.contains(&signal) && !had_it {
            true => self.pass_on(signal),
            false => Ok(()),
        }
    }

    /// Sends a signal on to the supervisor, which is not reaped yet. A supervisor in the same process group may have
    /// received the signal itself, since a signal to a group cannot be told from one to a process; so the signal is
    /// marked as passed on (see [`is_second_hand`]).
    fn pass_on(&self, signal: i32) -> io::Result<()> {
        let pid = self.supervisor.as_raw_nonzero().get();
        // SAFETY: plain system calls on a child of ours.
        let done = unsafe {
            match self.shares_group {
                true => libc::sigqueue(pid, signal, libc::sigval { sival_ptr: ptr::null_mut() }),
                false => libc::kill(pid, signal),
            }
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Gives back memory that this process needed only to become a supervisor: freed pages of the heap, the stack below
/// this frame, and pages of programs and libraries, which are read again from their files when they are needed.
fn shrink() -> io::Result<()> {
    const RED_ZONE: usize = 64 << 10;
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
    let maps = fs::read_to_string("/proc/self/maps")?;
    let here = (&raw const maps).addr();
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(may), Some(offset)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let ends = range.split_once('-').map(|(low, high)| (usize::from_str_radix(low, 16), high));
        let Some((Ok(low), high)) = ends else { continue };
        let is_stack = line.ends_with("[stack]");
        // Relocations are written to later parts of a file only, before those become read-only.
        let is_file =
            line.contains(" /") && (may == "r-xp" || may == "r--p" && offset.bytes().all(|b| b == b'0'));
        let high = match is_stack {
            true => Some(here.saturating_sub(RED_ZONE)),
            false => usize::from_str_radix(high, 16).ok().filter(|_| is_file),
        };
        if let Some(length) = high.and_then(|high| high.checked_sub(low)) {
            // SAFETY: nothing lives below the frame of a function that is running (the kernel rounds the length up
            // by less than the red zone), and a page of a file that was never written is the same when it comes back.
            unsafe { libc::madvise(ptr::with_exposed_provenance_mut(low), length, libc::MADV_DONTNEED) };
        }
    }
    Ok(())
}

fn own_signals() -> libc::sigset_t {
    signals::set_of(PASSED_ON.into_iter().chain(OWN))
}

/// Ends this process as another one ended, without running what its memory still holds.
fn end_as(exit: Exit) -> ! {
    if let Some(signal) = exit.signal {
        // SAFETY: a plain system call. Core dumps are off, because the supervisor has left its own.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
        let _ = signals::die_by(signal);
    }
    // SAFETY: ends the process.
    unsafe { libc::_exit(exit.shell_code()) }
}

/// First byte of a line that replaces what is told at the supervisor's death.
const TOLD: char = 't';

/// First byte of a line with the moment until which the tree may run; without a number there is no such moment.
const TRUST: char = 'u';

/// Guardian of this process.
static GUARDIAN: OnceLock<Guardian> = OnceLock::new();

/// The guardian process, as seen by the supervisor.
struct Guardian {
    pid: Pid,
    link: UnixStream,
    told: Mutex<String>,
}

/// Makes this process one that is guarded, by the process `pid` at the other end of `link`.
fn begin(pid: Pid, link: UnixStream) {
    let _ = GUARDIAN.set(Guardian { pid, link, told: Mutex::default() });
}

/// Returns the pid of the guardian of this process; `None` if there is none.
pub fn pid() -> Option<u32> {
    GUARDIAN.get().map(|guardian| guardian.pid.as_raw_nonzero().get().unsigned_abs())
}

/// Gives the guardian the line that it needs at this process's death; each line replaces the one before. Does nothing
/// without a guardian.
pub fn tell(line: &str) -> io::Result<()> {
    let Some(guardian) = GUARDIAN.get() else { return Ok(()) };
    let mut told = guardian.told.lock();
    line.clone_into(&mut told);
    (&guardian.link).write_all(format!("{TOLD}{line}\n").as_bytes())
}

/// Tells the guardian until when the processes below this one may run, in milliseconds of CLOCK_BOOTTIME; `None`: for
/// ever. Does nothing without a guardian.
///
/// Never blocks: a guardian that is stopped does not read, and a renewal must not wait for it. It then acts by an older
/// moment when it goes on, until the next one comes. Errors: the link is full or broken.
pub fn trust_until(at_ms: Option<u64>) -> io::Result<()> {
    let Some(guardian) = GUARDIAN.get() else { return Ok(()) };
    let line = at_ms.map_or_else(|| format!("{TRUST}\n"), |at_ms| format!("{TRUST}{at_ms}\n"));
    // A line is sent whole or not at all: the kernel finds room for all of a small write, or refuses it.
    rustix::net::send(&guardian.link, line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Whether the guardian has died, and this process is about to end.
static LOST: AtomicBool = AtomicBool::new(false);

/// Stops the calling thread for good if the guardian has died: this process is about to be killed.
///
/// The recorder of a child's end calls this first: after the guardian's death this process ends its children, and that is
/// not how they ended by themselves.
pub fn stop_if_lost() {
    while LOST.load(Ordering::SeqCst) {
        thread::park();
    }
}

/// Starts a thread that waits for the guardian's death. Then no child can be started any more, `end` gets the last line
/// passed to [`tell`] and must end all processes below, and this process is killed: a signal to the pid that the person
/// knows, the guardian's, thus ends it too.
pub fn when_lost(end: impl FnOnce(&str) + Send + 'static) -> io::Result<()> {
    let Some(guardian) = GUARDIAN.get() else { return Ok(()) };
    let watch = move || {
        // The guardian never writes: this returns at its death.
        let _ = (&guardian.link).read(&mut [0]);
        LOST.store(true, Ordering::SeqCst);
        spawn::close();
        end(&guardian.told.lock());
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    };
    thread::Builder::new().name("outlast-guarded".into()).stack_size(256 << 10).spawn(watch).map(drop)
}

/// Returns whether a signal was passed on by this process's guardian, in the same group. Called in signal handlers.
pub(super) fn is_second_hand(info: &libc::siginfo_t) -> bool {
    // SAFETY: with this code the kernel has filled in the sender.
    info.si_code == libc::SI_QUEUE && unsafe { info.si_pid() == libc::getppid() }
}
