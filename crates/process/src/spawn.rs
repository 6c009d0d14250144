//! Starting children, and waiting for each by its identity.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io::{self, IsTerminal},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags},
    fs::Mode,
    process::{PidfdFlags, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions},
};

use super::{
    exec::Image,
    exit::Exit,
    proc_table::{self, ProcId},
    reap::awaited,
    start_error::{self, Error},
    wait::poll,
};

/// Child to start. Nothing is inherited from this process except where a field says so.
#[derive(Clone, Debug)]
pub struct Command {
    /// Program and its arguments. The program is looked up in `env`'s PATH if it has no slash; a relative path starts
    /// from `cwd`.
    pub argv: Vec<OsString>,
    pub cwd: PathBuf,
    /// File mode mask as in umask(2): the bits removed from the modes of new files.
    pub umask: u32,
    /// The child's whole environment.
    pub env: BTreeMap<OsString, OsString>,
    pub stdin: Stdin,
    pub stdout: Output,
    pub stderr: Output,
    /// Terminal that becomes the child's own, on which it leads a session; `None`: the child gets none.
    pub terminal: Option<Arc<OwnedFd>>,
    pub limits: Limits,
}

/// Limits on the child and everything it starts, in force before its first instruction.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Open directory of the control group that the child begins in; `None`: it stays in this process's group.
    pub cgroup: Option<Arc<OwnedFd>>,
    /// Limit of each process's address space (RLIMIT_AS), in bytes; `None`: no limit.
    pub address_space: Option<u64>,
}

/// Standard input of a child.
#[derive(Clone, Debug)]
pub enum Stdin {
    /// The same standard input as this process's.
    Inherit,
    /// File read from its first byte, with a file position of the child's own, because another attempt may still be
    /// reading it. The file may have been unlinked.
    File(Arc<File>),
    Null,
    To(Arc<OwnedFd>),
}

/// Standard output or standard error of a child.
#[derive(Clone, Debug, Default)]
pub enum Output {
    /// The same stream as this process's.
    #[default]
    Inherit,
    To(Arc<OwnedFd>),
}

/// Thread that forks all children.
///
/// PR_SET_PDEATHSIG fires when the forking **thread** ends, and idle threads of a runtime's pool do end: children
/// forked there would be killed at random. This thread ends when the `Spawner` and every [`Child`] from it are dropped;
/// a child that still runs then is killed.
#[derive(Debug)]
pub struct Spawner {
    jobs: mpsc::Sender<Job>,
}

#[derive(Debug)]
struct Job {
    command: Command,
    reply: mpsc::SyncSender<Result<(ProcId, OwnedFd, bool), Error>>,
}

impl Spawner {
    /// Starts the thread that forks.
    pub fn start() -> io::Result<Spawner> {
        keep_statuses()?;
        let (jobs, queue) = mpsc::channel::<Job>();
        thread::Builder::new().name("outlast-spawn".into()).spawn(move || {
            for Job { command, reply } in queue {
                // The caller may have given up: the pidfd is dropped, the child runs on unwaited and is reaped
                // as an orphan.
                if let Err(mpsc::SendError(Ok((id, ..)))) = reply.send(fork_and_exec(&command)) {
                    awaited().remove(&id.pid);
                }
            }
        })?;
        Ok(Spawner { jobs })
    }

    /// Starts a child, and returns once its program runs (after about a millisecond).
    ///
    /// The kernel kills the child (SIGKILL) when this process dies. That covers neither processes that the child forks
    /// nor a child that execs a setuid program. With a terminal as standard input the child stays in this process's
    /// group: in a group of its own, SIGTTIN would stop it when it reads. Otherwise the child leads its own group.
    ///
    /// Errors distinguish a command not found, one not executable, a missing directory, and a failing system.
    pub fn spawn(&self, command: Command) -> Result<Child, Error> {
        let program = start_error::program(&command.argv);
        let (reply, answer) = mpsc::sync_channel(1);
        // If the thread has ended, so has the reply's sender: both cases give the same error.
        let _ = self.jobs.send(Job { command, reply });
        let (id, pidfd, own_group) = answer.recv().unwrap_or_else(|_| {
            Err(Error::Start { program, source: io::Error::other("the forking thread has ended") })
        })?;
        Ok(Child { id, pidfd, own_group, exit: Mutex::new(None), _thread: self.jobs.clone() })
    }
}

/// Started child. A child that is dropped without a wait runs on, and is reaped as an orphan.
#[derive(Debug)]
pub struct Child {
    id: ProcId,
    pidfd: OwnedFd,
    own_group: bool,
    exit: Mutex<Option<Exit>>,
    /// Keeps the forking thread, and with it the child, alive.
    _thread: mpsc::Sender<Job>,
}

impl Child {
    pub fn pid(&self) -> u32 {
        self.id.pid
    }

    pub fn id(&self) -> ProcId {
        self.id
    }

    /// Returns whether the child leads a process group of its own. If not, the terminal's signals (Ctrl-C,
    /// Ctrl-Z) reach it directly and must not be sent a second time.
    pub fn leads_own_group(&self) -> bool {
        self.own_group
    }

    /// Waits until the child has ended, reaps it, and returns its exit. Blocks; may be called again, and from several
    /// threads.
    ///
    /// Errors: other code took the exit status (`ECHILD`).
    pub fn wait(&self) -> io::Result<Exit> {
        loop {
            if let Some(exit) = self.try_wait()? {
                return Ok(exit);
            }
            // Polls instead of calling waitid, which would block with the lock held.
            poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], None)?;
        }
    }

    /// Waits like [`Child::wait`], without blocking the runtime. Cancel-safe. Needs a tokio runtime with I/O
    /// enabled.
    pub async fn exited(&self) -> io::Result<Exit> {
        let ready = super::readiness(self.pidfd.as_fd())?;
        loop {
            let mut guard = ready.readable().await?;
            if let Some(exit) = self.try_wait()? {
                return Ok(exit);
            }
            guard.clear_ready();
        }
    }

    /// Reaps the child if it has ended and returns its exit; `None` while it runs.
    pub fn try_wait(&self) -> io::Result<Option<Exit>> {
        let mut exit = self.exit.lock();
        if exit.is_none() {
            let mut awaited = awaited();
            let id = WaitId::PidFd(self.pidfd.as_fd());
            if let Some(status) = rustix::process::waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOHANG)?
            {
                awaited.remove(&self.id.pid);
                *exit = Some(Exit::of(&status));
            }
        }
        Ok(*exit)
    }

    /// Sends a signal only to the child. If the child has ended, nothing is sent, and that is no error.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Sends a signal to the child's process group, as a terminal does; only to the child if that is this process's
    /// group.
    pub fn signal_group(&self, signal: Signal) -> io::Result<()> {
        // While the lock is held and there is no exit, the child is unreaped, so neither its pid nor its group's
        // is reused.
        let exit = self.exit.lock();
        match proc_table::raw(self.id.pid) {
            Some(group) if self.own_group && exit.is_none() => {
                match rustix::process::kill_process_group(group, signal) {
                    Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
                    Err(e) => Err(e.into()),
                }
            }
            _ => self.signal(signal),
        }
    }
}

/// The pidfd: readable once the child has ended.
impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.exit.get_mut().is_none() {
            awaited().remove(&self.id.pid);
        }
    }
}

/// Set when this process starts no more children.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Makes every later start of a child fail. A fork that is under way is over when this returns.
pub(super) fn close() {
    let _awaited = awaited();
    CLOSED.store(true, Ordering::SeqCst);
}

/// Keeps exit statuses. A parent that ignores SIGCHLD hands that on to this process, and the kernel then
/// discards statuses: a handler that does nothing keeps them. Children get the default back with exec.
fn keep_statuses() -> io::Result<()> {
    static ONCE: Once = Once::new();
    let mut result = Ok(());
    ONCE.call_once(|| {
        let flag = Arc::new(AtomicBool::new(false));
        result = signal_hook::flag::register(signal_hook::consts::SIGCHLD, flag).map(drop);
    });
    result
}

fn fork_and_exec(command: &Command) -> Result<(ProcId, OwnedFd, bool), Error> {
    let program = || start_error::program(&command.argv);
    if command.argv.is_empty() {
        return Err(Error::NoCommand);
    }
    if !command.cwd.is_dir() {
        return Err(Error::NoDirectory { cwd: command.cwd.clone() });
    }
    let reads_terminal = matches!(command.stdin, Stdin::Inherit) && io::stdin().is_terminal();
    let stdin = stdin(&command.stdin).map_err(|source| Error::Stdin { program: program(), source })?;
    let failed = |source: io::Error| Error::Start { program: program(), source };
    let [stdout, stderr] = [&command.stdout, &command.stderr].map(output);
    let stdio = [stdin, stdout.map_err(failed)?, stderr.map_err(failed)?];
    let image = Image::new(&command.argv, &command.env, &command.cwd, stdio).map_err(failed)?;
    let terminal = command.terminal.as_ref();
    // The leader of a group cannot begin a session, and the leader of a session leads a group anyway.
    let leads_group = !reads_terminal && terminal.is_none();
    let parent = rustix::process::getpid();
    let umask = Mode::from_raw_mode(command.umask & 0o777);
    let in_child = || {
        if leads_group {
            rustix::process::setpgid(None, None)?;
        }
        rustix::process::umask(umask);
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the line above: then no signal will come.
        if rustix::process::getppid() != Some(parent) {
            return Err(rustix::io::Errno::SRCH.into());
        }
        if let Some(terminal) = terminal {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(terminal)?;
        }
        if let Some(bytes) = command.limits.address_space {
            let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
            rustix::process::setrlimit(Resource::As, limit)?;
        }
        Ok(())
    };
    let mut awaited = awaited();
    if CLOSED.load(Ordering::SeqCst) {
        return Err(failed(io::Error::other("this supervisor is being ended")));
    }
    let group = command.limits.cgroup.as_ref().map(|group| group.as_fd());
    // SAFETY: `in_child` makes plain system calls, which neither allocate nor lock.
    let pid = unsafe { image.start(group, in_child) }.map_err(|e| start_error::explain(command, e))?;
    awaited.insert(pid);
    drop(awaited);
    // The child is ours and unreaped: the pid cannot have been reused.
    match identify(pid) {
        Ok((id, pidfd)) => Ok((id, pidfd, !reads_terminal)),
        Err(e) => {
            // A child that can be neither waited for nor ended later must not run.
            if let Some(child) = proc_table::raw(pid) {
                let _ = rustix::process::kill_process(child, Signal::KILL);
                let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
            }
            self::awaited().remove(&pid);
            Err(failed(e))
        }
    }
}

fn identify(pid: u32) -> io::Result<(ProcId, OwnedFd)> {
    let gone = || io::Error::new(io::ErrorKind::NotFound, format!("no process {pid} in /proc"));
    let id = ProcId::of(pid)?.ok_or_else(gone)?;
    let pidfd = rustix::process::pidfd_open(proc_table::raw(pid).ok_or_else(gone)?, PidfdFlags::empty())
        .map_err(|e| {
            io::Error::new(io::Error::from(e).kind(), format!("pidfd_open failed ({e}); it needs Linux 5.4"))
        })?;
    Ok((id, pidfd))
}

/// Returns the descriptor that becomes the child's standard input; `None`: this process's own.
fn stdin(stdin: &Stdin) -> io::Result<Option<OwnedFd>> {
    Ok(match stdin {
        Stdin::Inherit => None,
        Stdin::Null => Some(File::open("/dev/null")?.into()),
        // Opened anew: a duplicate would share its position with every other reader.
        Stdin::File(file) => Some(File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into()),
        Stdin::To(fd) => Some(fd.try_clone()?),
    })
}

fn output(output: &Output) -> io::Result<Option<OwnedFd>> {
    Ok(match output {
        Output::Inherit => None,
        Output::To(fd) => Some(fd.try_clone()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, sh};

    #[track_caller]
    fn check(command: Command, shown: &str) {
        let exit = Spawner::start().unwrap().spawn(command).unwrap().wait().unwrap();
        assert_eq!(exit.to_string(), shown);
    }

    #[test]
    fn exit_tells_code_or_signal() {
        check(sh("exit 0"), "finished");
        check(sh("exit 3"), "exited with 3");
        check(sh("kill -9 $$"), "killed by SIGKILL");
        check(sh("kill -TERM $$"), "killed by SIGTERM");
    }

    #[test]
    fn child_has_its_standard_streams_where_this_process_has_none() {
        let name = concat!(module_path!(), "::child_has_its_standard_streams_where_this_process_has_none");
        testing::in_own_process(name, || {
            let (input, said) = (testing::file_with("one\n"), tempfile::NamedTempFile::new().unwrap());
            let mut command = sh("read line && echo $line && echo two >&2");
            command.stdin = Stdin::File(Arc::new(input));
            let to = || Output::To(Arc::new(File::options().append(true).open(said.path()).unwrap().into()));
            (command.stdout, command.stderr) = (to(), to());
            // SAFETY: nothing of this process uses the streams before they are put back.
            let kept = unsafe { [0, 1, 2].map(|fd| (libc::fcntl(fd, libc::F_DUPFD, 3), libc::close(fd)).0) };
            let ended = Spawner::start().and_then(|spawner| {
                spawner.spawn(command).map_err(io::Error::other).and_then(|child| child.wait())
            });
            // SAFETY: as above.
            kept.iter().zip(0..).for_each(|(kept, fd)| unsafe { assert_eq!(libc::dup2(*kept, fd), fd) });
            assert_eq!(ended.unwrap(), Exit::code(0));
            assert_eq!(std::fs::read_to_string(said.path()).unwrap(), "one\ntwo\n");
        });
    }

    #[test]
    fn child_ignores_and_blocks_no_signal_that_this_process_does() {
        testing::in_own_process(
            concat!(module_path!(), "::child_ignores_and_blocks_no_signal_that_this_process_does"),
            || {
                // SAFETY: plain system calls on a set of this frame. Threads that are started inherit what is blocked.
                unsafe {
                    let mut all = std::mem::zeroed();
                    libc::sigfillset(&raw mut all);
                    libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
                }
                check(sh("kill -PIPE $$"), "killed by SIGPIPE");
            },
        );
    }

    #[test]
    fn child_gets_exactly_what_the_command_says() {
        let dir = tempfile::tempdir().unwrap();
        let mut command =
            sh("[ \"$(pwd -P)\" = \"$WANT\" ] && [ $(umask) = 0077 ] && [ -z \"$HOME\" ] && ! read line");
        command.env.insert("WANT".into(), dir.path().canonicalize().unwrap().into());
        command.cwd = dir.path().into();
        command.umask = 0o077;
        check(command, "finished");
    }

    #[test]
    fn each_child_reads_stdin_from_the_first_byte() {
        let file = Arc::new(testing::file_with("one\ntwo\n"));
        for _ in 0..2 {
            let mut command = sh("read a && read b && ! read c && [ $a$b = onetwo ]");
            command.stdin = Stdin::File(file.clone());
            check(command, "finished");
        }
    }

    #[test]
    fn without_a_terminal_the_child_leads_its_own_group() {
        let child = Spawner::start().unwrap().spawn(sh("trap 'exit 9' INT; kill -STOP $$; exit 1")).unwrap();
        assert!(child.leads_own_group());
        let group = rustix::process::getpgid(proc_table::raw(child.pid())).unwrap();
        assert_eq!(Some(group), proc_table::raw(child.pid()));
        let stopped = || proc_table::read_stat(child.pid()).unwrap().unwrap().is_stopped().then_some(());
        testing::until("the child has set its trap", stopped);
        child.signal_group(Signal::INT).unwrap();
        child.signal_group(Signal::CONT).unwrap();
        assert_eq!(child.wait().unwrap(), Exit::code(9));
        child.signal(Signal::KILL).unwrap();
        child.signal_group(Signal::KILL).unwrap();
        assert_eq!(child.wait().unwrap(), Exit::code(9));
    }

    #[test]
    fn on_a_terminal_the_child_stays_in_our_group_and_can_read() {
        let name = concat!(module_path!(), "::on_a_terminal_the_child_stays_in_our_group_and_can_read");
        testing::in_process_under(name, "exec script -qec \"$*\" /dev/null", || {
            // In a group of its own it would be stopped before it saw that there is nothing to read.
            let mut command = sh("[ -t 0 ] && ! read line && [ $(ps -o pgid= $$) = $(ps -o pgid= $PPID) ]");
            command.stdin = Stdin::Inherit;
            let child = Spawner::start().unwrap().spawn(command).unwrap();
            assert!(!child.leads_own_group());
            assert_eq!(child.wait().unwrap(), Exit::code(0));
        });
    }

    #[test]
    fn end_of_a_child_wakes_an_async_waiter() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let child = Spawner::start().unwrap().spawn(sh("exec sleep 300")).unwrap();
        assert_eq!(child.try_wait().unwrap(), None);
        let exit = runtime.block_on(async {
            let (exit, killed) = tokio::join!(child.exited(), async { child.signal(Signal::KILL) });
            killed.unwrap();
            exit.unwrap()
        });
        assert_eq!(exit, Exit::signal(9));
        assert_eq!(runtime.block_on(child.exited()).unwrap(), Exit::signal(9));
    }

    #[test]
    fn child_outlives_the_thread_that_asked_for_it_and_dies_with_the_one_that_forked_it() {
        let spawner = Arc::new(Spawner::start().unwrap());
        let asked = spawner.clone();
        let child = thread::spawn(move || asked.spawn(sh("exec sleep 300")).unwrap()).join().unwrap();
        drop(spawner);
        let pidfd = child.as_fd().try_clone_to_owned().unwrap();
        assert!(child.id().is_running().unwrap());
        drop(child);
        testing::until_ended(&pidfd);
    }

    #[test]
    fn child_is_killed_with_a_killed_supervisor() {
        let name = concat!(module_path!(), "::child_is_killed_with_a_killed_supervisor");
        if let Some(file) = testing::inner_file() {
            let spawner = Spawner::start().unwrap();
            let child = spawner.spawn(sh("exec sleep 300")).unwrap();
            testing::publish(&file, &child.pid().to_string());
            child.wait().unwrap();
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let mut supervisor = testing::start_inner(name, &file);
        let pid: u32 =
            testing::until("the child runs", || std::fs::read_to_string(&file).ok()).parse().unwrap();
        let pidfd = rustix::process::pidfd_open(proc_table::raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();
        testing::until_ended(&pidfd);
    }
}
