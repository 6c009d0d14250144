//! Children that work for this process and belong to no run: notification commands, git.
//!
//! A supervisor reaps whatever it has adopted, and ends whatever stands below it. Helpers it leaves alone.

use std::{
    collections::BTreeSet,
    io,
    os::fd::OwnedFd,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{PidfdFlags, pidfd_open};

use crate::{proc_table, reap::awaited};

/// Pids of helpers that are not reaped, so that none of them can be another process's.
static HELPERS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn helpers() -> MutexGuard<'static, BTreeSet<u32>> {
    HELPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether a process is a helper of this one.
pub(super) fn is_helper(pid: u32) -> bool {
    helpers().contains(&pid)
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
        helpers().insert(child.id());
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
        helpers().remove(&self.0.id());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        proc_table::ProcId,
        reap::{become_subreaper, reap_adopted},
        testing,
        tree::{Marker, Tree},
    };

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
                assert!(helpers().is_empty() && awaited().is_empty());
            },
        );
    }
}
