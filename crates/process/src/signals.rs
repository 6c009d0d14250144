//! Signal handling of a supervisor: handlers set a flag and wake a descriptor, nothing more.
//!
//! State is written ahead, never in a handler. Meaning of each signal:
//!
//! | signal | the supervisor |
//! |---|---|
//! | SIGINT, SIGQUIT | a person wants it stopped; a second one means now |
//! | SIGTERM, SIGHUP | the machine does; the run may be resumed by itself |
//! | SIGTSTP, SIGCONT | pass on, and [`suspend_self`] |
//! | SIGCHLD | reap adopted orphans |
//!
//! SIGWINCH is not handled by a supervisor: processes that share the terminal get it from there, and a client
//! of an agent's own terminal handles it itself ([`Signals::of`]).

use std::{
    fs,
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::process::Signal;
use signal_hook::{SigId, low_level};

use crate::guardian;

/// Signals in the order in which [`Signals::take`] reports them: stopping before continuing.
const HANDLED: [Signal; 7] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::TSTP, Signal::CONT, Signal::CHILD];

/// Signals that ask this process to end, in the order in which they are reported.
pub const ENDING: [Signal; 4] = [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP];

/// Ends this process by `signal`, also where whoever executed it had blocked or ignored that signal. Returns only if the
/// signal ends no process.
pub fn die_by(signal: i32) -> io::Result<()> {
    // SAFETY: the default action is no code of ours.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    change_mask(libc::SIG_UNBLOCK, &set_of([signal]))?;
    low_level::raise(signal)
}

/// Returns the set of these signals.
pub(super) fn set_of(signals: impl IntoIterator<Item = i32>) -> libc::sigset_t {
    // SAFETY: a set of signals is plain data, made empty before it is used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// Changes the set of signals that this thread blocks, by `how` (SIG_BLOCK, SIG_UNBLOCK, SIG_SETMASK). Returns those that
/// were blocked before.
pub(super) fn change_mask(how: i32, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    // SAFETY: both sets are plain data.
    unsafe {
        let mut before = std::mem::zeroed();
        match libc::pthread_sigmask(how, set, &raw mut before) {
            0 => Ok(before),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Installed handlers of this process. Once dropped they do nothing (the default action does not come back).
#[derive(Debug)]
pub struct Signals {
    came: Vec<(Signal, Arc<AtomicBool>)>,
    woken: UnixStream,
    registered: Vec<SigId>,
}

impl Signals {
    /// Installs the handlers. A signal that was ignored when this process started stays ignored (`nohup`, a script's
    /// background job), with two exceptions: SIGCONT is always handled, and so is SIGCHLD, because exit statuses would
    /// be lost.
    pub fn install() -> io::Result<Signals> {
        Signals::of(&HANDLED)
    }

    /// Installs handlers for `handled`, as [`Signals::install`] does. Signals are reported in this order.
    pub fn of(handled: &[Signal]) -> io::Result<Signals> {
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        let ignored = ignored(&fs::read_to_string("/proc/self/status")?);
        let mut signals = Signals { came: Vec::new(), woken, registered: Vec::new() };
        for &signal in handled {
            let needed = matches!(signal, Signal::CHILD | Signal::CONT);
            if !needed && ignored & (1 << (signal.as_raw() - 1)) != 0 {
                continue;
            }
            let flag = Arc::new(AtomicBool::new(false));
            // Actions run in this order: a woken reader finds the flag set.
            signals.registered.push(set_on(signal, flag.clone())?);
            signals.registered.push(low_level::pipe::register(signal.as_raw(), wake.try_clone()?)?);
            signals.came.push((signal, flag));
        }
        Ok(signals)
    }

    /// Returns the signals received since the last call, each once however often it came. Does not block.
    pub fn take(&self) -> Vec<Signal> {
        // Emptied before the flags are read: a signal that comes in between wakes again.
        let mut bytes = [0; 64];
        while matches!((&self.woken).read(&mut bytes), Ok(read) if read > 0) {}
        self.came
            .iter()
            .filter(|(_, flag)| flag.swap(false, Ordering::SeqCst))
            .map(|&(signal, _)| signal)
            .collect()
    }

    /// Returns a function that tells whether one of `these` was received and not taken yet. It takes no signal.
    pub fn peek(&self, these: &[Signal]) -> impl Fn() -> bool + Send + Sync + use<> {
        let flags: Vec<_> = self
            .came
            .iter()
            .filter(|(signal, _)| these.contains(signal))
            .map(|(_, flag)| flag.clone())
            .collect();
        move || flags.iter().any(|flag| flag.load(Ordering::SeqCst))
    }

    /// Waits for at least one signal, and takes those received. Cancel-safe: a received signal stays until it is taken.
    ///
    /// Needs a tokio runtime with I/O enabled.
    pub async fn next(&self) -> io::Result<Vec<Signal>> {
        let ready = super::readiness(self.woken.as_fd())?;
        loop {
            let mut guard = ready.readable().await?;
            let came = self.take();
            if !came.is_empty() {
                return Ok(came);
            }
            guard.clear_ready();
        }
    }
}

/// Sets `flag` at each `signal`, except when the guardian passes on a signal that this process has received itself. A
/// shell signals both processes, and a second request to stop would mean to stop at once.
fn set_on(signal: Signal, flag: Arc<AtomicBool>) -> io::Result<SigId> {
    let is_told_of = AtomicBool::new(false);
    let note = move |info: &libc::siginfo_t| {
        let is_known = match info.si_code {
            libc::SI_USER => {
                is_told_of.store(true, Ordering::SeqCst);
                false
            }
            _ => guardian::is_second_hand(info) && is_told_of.swap(false, Ordering::SeqCst),
        };
        flag.fetch_or(!is_known, Ordering::SeqCst);
    };
    // SAFETY: the handler only reads what the kernel gave it, and sets flags.
    unsafe { signal_hook_registry::register_sigaction(signal.as_raw(), note) }
}

/// Gives a descriptor that is readable once a signal was received.
impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for &id in &self.registered {
            low_level::unregister(id);
        }
    }
}

/// Stops this process as an unhandled SIGTSTP would have, so that the shell gets its terminal back. Returns
/// when it is continued. Heartbeats stop meanwhile: other instances may declare this one dead.
pub fn suspend_self() -> io::Result<()> {
    low_level::raise(signal_hook::consts::SIGSTOP)
}

/// Returns the bits of `SigIgn` in `/proc/self/status`: signal n at bit n - 1.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        spawn::Spawner,
        testing::{self, sh},
    };

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap()
    }

    #[test]
    fn each_handled_signal_is_told_once_and_kills_nobody() {
        testing::in_own_process(
            concat!(module_path!(), "::each_handled_signal_is_told_once_and_kills_nobody"),
            || {
                let signals = Signals::install().unwrap();
                assert_eq!(signals.take(), []);
                for signal in HANDLED {
                    low_level::raise(signal.as_raw()).unwrap();
                    low_level::raise(signal.as_raw()).unwrap();
                    assert_eq!(signals.take(), [signal]);
                    assert_eq!(signals.take(), []);
                }
            },
        );
    }

    #[test]
    fn signals_wake_an_async_waiter() {
        testing::in_own_process(concat!(module_path!(), "::signals_wake_an_async_waiter"), || {
            let signals = Signals::install().unwrap();
            runtime().block_on(async {
                let (came, ()) = tokio::join!(signals.next(), async { low_level::raise(15).unwrap() });
                assert_eq!(came.unwrap(), [Signal::TERM]);
                low_level::raise(2).unwrap();
                low_level::raise(1).unwrap();
                assert_eq!(signals.next().await.unwrap(), [Signal::INT, Signal::HUP]);
            });
        });
    }

    #[test]
    fn end_of_a_child_is_a_signal() {
        testing::in_own_process(concat!(module_path!(), "::end_of_a_child_is_a_signal"), || {
            let signals = Signals::install().unwrap();
            let child = Spawner::start().unwrap().spawn(sh("exit 0")).unwrap();
            assert_eq!(runtime().block_on(signals.next()).unwrap(), [Signal::CHILD]);
            child.wait().unwrap();
        });
    }

    #[test]
    fn what_was_ignored_at_the_start_stays_ignored() {
        let name = concat!(module_path!(), "::what_was_ignored_at_the_start_stays_ignored");
        testing::in_process_under(name, "trap '' HUP", || {
            let signals = Signals::install().unwrap();
            low_level::raise(1).unwrap();
            low_level::raise(15).unwrap();
            assert_eq!(signals.take(), [Signal::TERM]);
        });
    }

    #[test]
    fn handlers_are_not_inherited_by_children() {
        testing::in_own_process(concat!(module_path!(), "::handlers_are_not_inherited_by_children"), || {
            let _signals = Signals::install().unwrap();
            let child = Spawner::start().unwrap().spawn(sh("kill -INT $$; exit 3")).unwrap();
            assert_eq!(child.wait().unwrap().to_string(), "killed by SIGINT");
        });
    }

    #[test]
    fn ignored_mask_is_read_from_status() {
        assert_eq!(ignored("Name:\tx\nSigBlk:\tff\nSigIgn:\t0000000000001001\nSigCgt:\t0\n"), 0x1001);
        assert_eq!(ignored("Name:\tx\n"), 0);
    }
}
