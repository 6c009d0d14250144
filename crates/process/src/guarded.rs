//! A supervisor's side of its guardian: what it says to it, and what becomes of it without one.
//!
//! [`super::guardian`] is the other side, and says what the two are for. All functions do nothing in a process that has
//! no guardian.

use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    sync::{Mutex, OnceLock, PoisonError},
    thread,
};

use rustix::{
    net::SendFlags,
    process::{Pid, Signal},
};

use super::spawn;

/// First byte of a line that replaces what is told at the supervisor's death.
pub(super) const TOLD: char = 't';

/// First byte of a line with the moment until which the tree may run; without a number there is no such moment.
pub(super) const TRUST: char = 'u';

/// Guardian of this process.
static GUARDIAN: OnceLock<Guardian> = OnceLock::new();

/// The guardian process, as seen by the supervisor.
struct Guardian {
    pid: Pid,
    link: UnixStream,
    told: Mutex<String>,
}

/// Makes this process one that is guarded, by the process `pid` at the other end of `link`.
pub(super) fn begin(pid: Pid, link: UnixStream) {
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
    let mut told = guardian.told.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Starts a thread that waits for the guardian's death. Then no child can be started any more, `end` gets the last line
/// passed to [`tell`] and must end all processes below, and this process is killed: a signal to the pid that the person
/// knows, the guardian's, thus ends it too.
pub fn when_lost(end: impl FnOnce(&str) + Send + 'static) -> io::Result<()> {
    let Some(guardian) = GUARDIAN.get() else { return Ok(()) };
    let watch = move || {
        // The guardian never writes: this returns at its death.
        let _ = (&guardian.link).read(&mut [0]);
        spawn::close();
        end(&guardian.told.lock().unwrap_or_else(PoisonError::into_inner));
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    };
    thread::Builder::new().name("outlast-guarded".into()).stack_size(256 << 10).spawn(watch).map(drop)
}

/// Returns whether a signal was passed on by this process's guardian, in the same group. Called in signal handlers.
pub(super) fn is_second_hand(info: &libc::siginfo_t) -> bool {
    // SAFETY: with this code the kernel has filled in the sender.
    info.si_code == libc::SI_QUEUE && unsafe { info.si_pid() == libc::getppid() }
}
