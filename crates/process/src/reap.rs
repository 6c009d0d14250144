//! Reaping of children by identity: a status belongs to the code that started the child.
//!
//! A subreaper inherits every orphan below it, and each becomes a zombie when it ends. "Wait for any child"
//! would clear them, but also steal the statuses of children that others wait for. So the children the
//! [`Spawner`] forked are listed here, from inside the fork until their own `wait`; every other child of this
//! process is an orphan.
//!
//! [`Spawner`]: super::spawn::Spawner

use std::{
    collections::BTreeSet,
    io,
    os::fd::OwnedFd,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use rustix::{
    io::Errno,
    process::{PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid},
};

use super::{
    exit::Exit,
    proc_table::{self, ProcId, Stat},
};

/// Pids of children that somebody waits for. Held locked across fork and across reaping, so that no orphan
/// sweep sees a child before its pid is listed, or a pid that was freed and given to another process.
static AWAITED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

pub(super) fn awaited() -> MutexGuard<'static, BTreeSet<u32>> {
    AWAITED.lock()
}

/// Makes this process the parent of every orphan below it (`PR_SET_CHILD_SUBREAPER`), so that a process that lost its
/// parent and cleared its environment is still found among this process's children. Children do not inherit this; it
/// ends with this process.
pub fn become_subreaper() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Reaps the adopted orphans that have ended, and returns their ids and exits. Call it on SIGCHLD.
///
/// Any child that was started neither by a [`Spawner`](super::spawn::Spawner) nor as a [`Helper`](super::helper::Helper)
/// counts as adopted: a process that calls this must start children only so. Errors: `/proc` cannot be read.
pub fn reap_adopted() -> io::Result<Vec<(ProcId, Exit)>> {
    let awaited = awaited();
    let mut reaped = Vec::new();
    loop {
        // Asks the kernel which child has ended, without taking its status: a walk over `/proc` would read a
        // file of every process of the machine.
        let Ok(Some(pid)) = ended_child() else { return Ok(reaped) };
        if awaited.contains(&pid) {
            // An awaited child stays visible until its own `wait`, and hides other ended children.
            reaped.extend(reap_found(&awaited)?);
            return Ok(reaped);
        }
        // A zombie keeps its line in `/proc` until it is reaped, which nobody else does while the lock is held.
        let (Some(id), Some(exit)) = (ProcId::of(pid)?, reap(pid)) else { return Ok(reaped) };
        reaped.push((id, exit));
    }
}

/// Does the work of [`reap_adopted`] by a walk over `/proc`.
fn reap_found(awaited: &BTreeSet<u32>) -> io::Result<Vec<(ProcId, Exit)>> {
    let own = proc_table::own_pid();
    // Every kernel supports the walk; `/proc/self/task/*/children` exists only on some (CONFIG_PROC_CHILDREN).
    let orphans =
        proc_table::walk()?.into_iter().filter(|stat| stat.ppid == own && !awaited.contains(&stat.pid));
    Ok(orphans.filter(Stat::is_dead).filter_map(|stat| Some((stat.id(), reap(stat.pid)?))).collect())
}

/// Returns whether this process has no descendants and can get none, as the kernel reports it, without a walk.
/// Reaps the adopted orphans that have ended.
///
/// A subreaper becomes the parent of every orphan below it at the instant in which the orphan loses its own
/// parent. So every descendant has a living or unreaped ancestor among this process's children, whatever
/// sessions, environments or control groups it has left. (One in a pid namespace below goes to that namespace's
/// init, which is a descendant too, and cannot die before it.) Without a child there is therefore no
/// descendant, and none that could fork one.
pub(super) fn is_nobody_below() -> io::Result<bool> {
    if rustix::process::child_subreaper()?.is_none() {
        return Ok(false);
    }
    reap_adopted()?;
    Ok(ended_child() == Err(Errno::CHILD))
}

/// Returns a child that has ended, without reaping it; `None`: all children live. Errors: `CHILD`: there is
/// none.
fn ended_child() -> Result<Option<u32>, Errno> {
    // `__WALL` includes children cloned without SIGCHLD: one that is not asked about would count as none.
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: `siginfo_t` is plain data, and waitid fills it in or leaves it; rustix's does not tell whose
    // status it is.
    let (done, pid) = unsafe {
        let mut status: libc::siginfo_t = std::mem::zeroed();
        (libc::waitid(libc::P_ALL, 0, &raw mut status, options), status.si_pid())
    };
    match done {
        0 => Ok(u32::try_from(pid).ok().filter(|pid| *pid != 0)),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Reaps the adopted orphans among `dead`, the processes that a walk has just found dead.
pub(super) fn reap_dead<'a>(dead: impl IntoIterator<Item = &'a ProcId>) {
    let awaited = awaited();
    for id in dead {
        // A process that is no child of ours is not waited for; a pid is not reused before its zombie is
        // reaped.
        if !awaited.contains(&id.pid) {
            reap(id.pid);
        }
    }
}

fn reap(pid: u32) -> Option<Exit> {
    let id = WaitId::Pid(proc_table::raw(pid)?);
    let status = waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    // ECHILD: the status was taken elsewhere; the process is gone all the same.
    status.ok().flatten().map(|status| Exit::of(&status))
}

// --- helpers: children that work for this process and belong to no run, such as notification commands and git. A supervisor
// reaps whatever it has adopted, and ends whatever stands below it. Helpers it leaves alone.

/// Pids of helpers that are not reaped, so that none of them can be another process's.
static HELPERS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Returns whether a process is a helper of this one.
pub(super) fn is_helper(pid: u32) -> bool {
    HELPERS.lock().contains(&pid)
}

/// Child that is neither reaped as an orphan nor ended with a run's processes. One that is dropped alive is killed.
#[derive(Debug)]
pub struct Helper(Child);

impl Helper {
    /// Starts a command. Errors: it cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Helper> {
        // Nobody reaps or walks before the pid is listed.
        let mut awaited = awaited();
        let child = command.spawn()?;
        awaited.insert(child.id());
        HELPERS.lock().insert(child.id());
        Ok(Helper(child))
    }

    /// Takes the pipe to its standard input, if the command has one.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.0.stdin.take()
    }

    /// Takes the pipe from its standard output, if the command has one.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// Takes the pipe from its standard error, if the command has one.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.0.stderr.take()
    }

    /// Returns a descriptor of the process, which is readable once the process has ended.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        let pid = proc_table::raw(self.0.id()).ok_or_else(|| io::Error::other("it has no id"))?;
        Ok(pidfd_open(pid, PidfdFlags::empty())?)
    }

    /// Waits for its end. Kills it, and returns `None`, if it does not end in time.
    pub fn ends_within(mut self, longest: Duration) -> io::Result<Option<ExitStatus>> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            if began.elapsed() >= longest {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Neither does anything for a child whose end was seen.
        let _ = self.0.kill();
        let _ = self.0.wait();
        let mut awaited = awaited();
        awaited.remove(&self.0.id());
        HELPERS.lock().remove(&self.0.id());
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::Signal;

    use super::*;
    use crate::{
        proc_table::ProcId,
        reap::{become_subreaper, reap_adopted},
        spawn::Spawner,
        testing::{self, sh},
        tree::{Marker, Tree},
    };

    #[test]
    fn adopted_orphans_are_reaped_and_awaited_children_are_not() {
        testing::in_own_process(
            concat!(module_path!(), "::adopted_orphans_are_reaped_and_awaited_children_are_not"),
            || {
                become_subreaper().unwrap();
                let spawner = Spawner::start().unwrap();
                let child = spawner.spawn(sh("(exit 7 & (exit 8 &) ); exit 3")).unwrap();
                let mut codes = Vec::new();
                testing::until("both orphans are reaped", || {
                    codes.extend(reap_adopted().unwrap().into_iter().filter_map(|(_, exit)| exit.code));
                    (codes.len() >= 2).then_some(())
                });
                codes.sort();
                assert_eq!(codes, [7, 8]);
                assert_eq!(child.wait().unwrap(), Exit::code(3));
                assert!(reap_adopted().unwrap().is_empty());
            },
        );
    }

    #[test]
    fn nobody_is_below_when_the_last_orphan_is_gone_whatever_it_had_left() {
        testing::in_own_process(
            concat!(module_path!(), "::nobody_is_below_when_the_last_orphan_is_gone_whatever_it_had_left"),
            || {
                assert!(!is_nobody_below().unwrap(), "who is no subreaper cannot know");
                become_subreaper().unwrap();
                assert!(is_nobody_below().unwrap());
                let spawner = Spawner::start().unwrap();
                let dir = tempfile::tempdir().unwrap();
                let pid = dir.path().join("pid");
                // Two forks, a session of its own and no environment.
                let orphan = format!("(env -i setsid sh -c 'echo $$ > {}; exec sleep 300' &)", pid.display());
                let child = spawner.spawn(sh(&orphan)).unwrap();
                assert_eq!(child.wait().unwrap(), Exit::code(0));
                let orphan: u32 = testing::until("the orphan is up", || {
                    assert!(!is_nobody_below().unwrap());
                    std::fs::read_to_string(&pid).ok()?.trim().parse().ok()
                });
                rustix::process::kill_process(proc_table::raw(orphan).unwrap(), Signal::KILL).unwrap();
                testing::until("nobody is below", || is_nobody_below().unwrap().then_some(()));
                // A child that somebody waits for stays a zombie until then.
                let child = spawner.spawn(sh("exit 0")).unwrap();
                testing::until("it is a zombie", || (!child.id().is_running().unwrap()).then_some(()));
                assert!(!is_nobody_below().unwrap());
                child.wait().unwrap();
                assert!(is_nobody_below().unwrap());
            },
        );
    }

    #[test]
    fn dropped_child_is_reaped_with_the_orphans() {
        testing::in_own_process(
            concat!(module_path!(), "::dropped_child_is_reaped_with_the_orphans"),
            || {
                let spawner = Spawner::start().unwrap();
                let child = spawner.spawn(sh("exit 5")).unwrap();
                let id = child.id();
                testing::until("it is a zombie", || (!id.is_running().unwrap()).then_some(()));
                assert!(reap_adopted().unwrap().is_empty());
                drop(child);
                assert_eq!(reap_adopted().unwrap(), [(id, Exit::code(5))]);
            },
        );
    }

    // Bug: a supervisor reaped its notification command as an orphan. Consequence: the push had "failed" and was sent again
    // and again, and the digest had no commits. Cause: only the agent's own processes were listed as awaited.
    #[test]
    fn a_helper_is_neither_reaped_nor_ended_with_what_is_below() {
        testing::in_own_process(
            concat!(module_path!(), "::a_helper_is_neither_reaped_nor_ended_with_what_is_below"),
            || {
                become_subreaper().unwrap();
                let ended = Helper::start(Command::new("sh").args(["-c", "exit 7"])).unwrap();
                let id = ProcId::of(ended.0.id()).unwrap().unwrap();
                testing::until("it is a zombie", || (!id.is_running().unwrap()).then_some(()));
                assert!(reap_adopted().unwrap().is_empty());
                let lives = Helper::start(Command::new("sleep").arg("300")).unwrap();
                assert!(Tree::of_ours(Marker::new([])).unwrap().survivors().unwrap().is_empty());
                assert_eq!(ended.ends_within(Duration::MAX).unwrap().unwrap().code(), Some(7));
                assert!(lives.ends_within(Duration::ZERO).unwrap().is_none());
                assert!(HELPERS.lock().is_empty() && awaited().is_empty());
            },
        );
    }
}
