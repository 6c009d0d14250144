//! Freezing of a tree of processes, and the moment at which it is due.
//!
//! A frozen process does nothing until it is thawed or killed. Control groups are frozen by the kernel, with whatever
//! is forked in them; processes outside are stopped (SIGSTOP), the parents first, so that no shell sees a child of its
//! own stopped. They are continued the other way round. What was stopped before is left stopped.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    thread,
    time::Duration,
};

use rustix::{
    process::Signal,
    time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};

use super::{
    cgroup,
    end_tree::send,
    proc_table::{self, ProcId, Stat},
    tree::Tree,
};

/// Largest number of walks in one go. A process that hangs in the kernel shows no stop before it comes back.
const MOST_WALKS: usize = 200;

/// Pause between two walks: a stop takes effect when the process next runs.
const WALK: Duration = Duration::from_millis(1);

/// Processes and control groups that this process has frozen.
#[derive(Debug, Default)]
pub struct Frozen {
    groups: BTreeSet<PathBuf>,
    stopped: BTreeSet<ProcId>,
}

impl Frozen {
    /// Freezes the tree, and returns whether nobody in it runs. What runs again meanwhile is frozen again, so call it
    /// from time to time while the tree is to stand still.
    ///
    /// A process that runs is one that a walk shows running: two walks in a row that show none are the proof, because
    /// only a running process forks. Processes of other users outside the groups cannot be frozen. Errors: `/proc` is
    /// not readable.
    pub fn freeze(&mut self, tree: &Tree) -> io::Result<bool> {
        for group in &tree.groups {
            if cgroup::freeze(group, true) {
                self.groups.insert(group.clone());
            }
        }
        let mut quiet = 0;
        for _ in 0..MOST_WALKS {
            let running = self.running(tree)?;
            let stands = running.is_empty() && tree.groups.iter().all(|group| cgroup::stands_still(group));
            quiet = if stands { quiet + 1 } else { 0 };
            if quiet == 2 {
                return Ok(true);
            }
            for found in running {
                send(found.id(), Signal::STOP)?;
                self.stopped.insert(found.id());
            }
            if quiet == 0 {
                thread::sleep(WALK);
            }
        }
        Ok(false)
    }

    /// Returns the processes that run, the oldest first: a process is older than what it has started.
    ///
    /// A process that waits in vfork for a stopped child runs no more, and shows no stop before the child goes on.
    fn running(&self, tree: &Tree) -> io::Result<Vec<Stat>> {
        let mut running = tree.survivors()?;
        let frozen = tree.groups.iter().filter(|group| cgroup::is_frozen(group) == Some(true));
        let frozen: BTreeSet<u32> = frozen.flat_map(|group| cgroup::members(group)).collect();
        running.retain(|found| !found.is_stopped() && !frozen.contains(&found.pid));
        if running.iter().any(|found| self.stopped.contains(&found.id())) {
            let waiting = proc_table::waiting_for_stopped_children()?;
            running.retain(|found| !self.stopped.contains(&found.id()) || !waiting.contains(&found.id()));
        }
        running.sort_by_key(|found| (found.start_time, found.pid));
        Ok(running)
    }

    /// Lets go on what this process has frozen. Does nothing if there is nothing frozen.
    pub fn thaw(&mut self) -> io::Result<()> {
        let mut stopped: Vec<ProcId> = std::mem::take(&mut self.stopped).into_iter().collect();
        stopped.sort_by_key(|id| std::cmp::Reverse((id.start_time, id.pid)));
        let mut done = Ok(());
        for id in stopped {
            done = done.and(send(id, Signal::CONT));
        }
        for group in std::mem::take(&mut self.groups) {
            cgroup::freeze(&group, false);
        }
        done
    }

    pub fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.stopped.is_empty()
    }
}

/// Milliseconds of CLOCK_BOOTTIME, which every process of the machine reads alike.
pub fn boottime_ms() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)).unwrap_or(0)
}

/// A moment of CLOCK_BOOTTIME that may be put off. Its descriptor is readable once it has passed, also in the first
/// instant after a suspend.
#[derive(Debug)]
pub struct Deadline {
    timer: OwnedFd,
    at_ms: Option<u64>,
}

impl Deadline {
    /// Creates one that never passes.
    pub fn new() -> io::Result<Deadline> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Deadline { timer: timerfd_create(TimerfdClockId::Boottime, flags)?, at_ms: None })
    }

    /// Sets the moment, in milliseconds of CLOCK_BOOTTIME; `None`: never.
    pub fn set(&mut self, at_ms: Option<u64>) -> io::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ms = |ms: u64| Timespec {
            tv_sec: i64::try_from(ms / 1000).unwrap_or(i64::MAX),
            tv_nsec: (ms % 1000) as i64 * 1_000_000,
        };
        // A value of zero would disarm the timer.
        let it_value = at_ms.map_or(zero, |at| ms(at.max(1)));
        let value = Itimerspec { it_interval: zero, it_value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &value)?;
        self.at_ms = at_ms;
        Ok(())
    }

    pub fn has_passed(&self) -> bool {
        self.at_ms.is_some_and(|at| boottime_ms() >= at)
    }

    /// Takes note that the moment has passed, so that the descriptor is not readable any more.
    pub fn heard(&self) {
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
    }
}

impl AsFd for Deadline {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::{
        cgroup::{Limits, ParentGroup},
        proc_table, reap,
        spawn::Spawner,
        testing::{self, sh},
    };

    /// A shell that works in the foreground and the background, inside and outside its session; one of its processes
    /// was stopped before.
    const FAMILY: &str = r#"
work() { while :; do echo x >> "$DIR/$1"; sleep 0.01; done; }
work a &
setsid sh -c 'while :; do echo x >> "$DIR/b"; sleep 0.01; done' &
(env -i sh -c "while :; do echo x >> '$DIR/c'; sleep 0.01; done" &)
sleep 300 & kill -STOP $!; echo $! > "$DIR/before"
work d"#;

    const WORKERS: [&str; 4] = ["a", "b", "c", "d"];

    fn lines(dir: &Path) -> Vec<usize> {
        let count = |name| fs::read_to_string(dir.join(name)).unwrap_or_default().lines().count();
        WORKERS.into_iter().map(count).collect()
    }

    fn check(group: Option<cgroup::Group>) {
        let dir = tempfile::tempdir().unwrap();
        reap::become_subreaper().unwrap();
        let mut command = sh(&FAMILY.replace("$DIR", dir.path().to_str().unwrap()));
        command.limits.cgroup = group.as_ref().map(cgroup::Group::directory);
        let child = Spawner::start().unwrap().spawn(command).unwrap();
        let all_beyond = |least: &[usize]| lines(dir.path()).iter().zip(least).all(|(now, then)| now > then);
        testing::until("all work", || all_beyond(&[0; 4]).then_some(()));
        let before: u32 = testing::until("one was stopped before", || {
            let pid = fs::read_to_string(dir.path().join("before")).ok()?.trim().parse().ok()?;
            proc_table::read_stat(pid).unwrap().unwrap().is_stopped().then_some(pid)
        });
        let tree = Tree {
            groups: group.iter().map(|group| group.path().to_owned()).collect(),
            ..Tree::of_ours(crate::tree::Marker::new([])).unwrap()
        };
        let mut frozen = Frozen::default();
        testing::until("nobody runs", || frozen.freeze(&tree).unwrap().then_some(()));
        assert!(!frozen.is_empty() && child.try_wait().unwrap().is_none());
        let then = lines(dir.path());
        (0..20).for_each(|_| assert!(frozen.freeze(&tree).unwrap()));
        assert_eq!(lines(dir.path()), then, "nobody wrote");
        frozen.thaw().unwrap();
        testing::until("all work again", || all_beyond(&then).then_some(()));
        assert!(proc_table::read_stat(before).unwrap().unwrap().is_stopped(), "it was stopped by others");
        testing::until("nobody runs", || frozen.freeze(&tree).unwrap().then_some(()));
        let force = crate::wait::Bell::new().unwrap();
        let (ask, graces) = (crate::ladder::Ask::Force, crate::ladder::Graces::default());
        let ended = crate::end_tree::end_tree(&tree, Some(&child), ask, graces, &force).unwrap();
        assert!(ended.all_gone, "what is frozen can be killed: {ended:?}");
    }

    #[test]
    fn a_frozen_tree_does_nothing_until_it_is_thawed() {
        testing::in_own_process(
            concat!(module_path!(), "::a_frozen_tree_does_nothing_until_it_is_thawed"),
            || {
                check(None);
            },
        );
    }

    #[test]
    fn a_frozen_control_group_does_nothing_until_it_is_thawed() {
        let name = concat!(module_path!(), "::a_frozen_control_group_does_nothing_until_it_is_thawed");
        testing::in_own_process(name, || {
            let name = format!("outlast-test-frozen-{}", std::process::id());
            match ParentGroup::find().and_then(|ground| ground.group(&name, Limits::default())) {
                Ok(group) => check(Some(group)),
                Err(e) => println!("NOT TESTED, no control group can be made here: {e}"),
            }
        });
    }

    /// Bug: a tree was told to run as long as it was frozen, and its guardian walked through `/proc` without an end.
    /// Consequence: a core was busy while an agent stood still.
    /// Cause: who starts a program by vfork shows no stop before the program begins, and that one had been stopped.
    #[test]
    fn one_who_waits_in_vfork_for_a_stopped_child_stands_still() {
        let name = concat!(module_path!(), "::one_who_waits_in_vfork_for_a_stopped_child_stands_still");
        testing::in_own_process(name, || {
            reap::become_subreaper().unwrap();
            let dir = tempfile::tempdir().unwrap();
            let log = fs::File::create(dir.path().join("log")).unwrap();
            // SAFETY: the child and its child call nothing but the kernel.
            let parent = match unsafe { libc::fork() } {
                0 => {
                    // SAFETY: without CLONE_VM the new process has its own copy of all memory, as after a fork.
                    if unsafe {
                        libc::syscall(libc::SYS_clone, libc::CLONE_VFORK | libc::SIGCHLD, 0, 0, 0, 0)
                    } != 0
                    {
                        let _ = rustix::io::write(&log, b"x");
                    } else {
                        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::STOP);
                    }
                    // SAFETY: ends the process and touches none of its memory.
                    unsafe { libc::_exit(0) }
                }
                pid => u32::try_from(pid).unwrap(),
            };
            let child = testing::until("the child was stopped", || {
                let all = proc_table::walk().unwrap();
                all.into_iter().find(|found| found.ppid == parent && found.is_stopped())
            });
            let tree = Tree::of_ours(crate::tree::Marker::new([])).unwrap();
            let mut frozen = Frozen::default();
            testing::until("nobody runs", || frozen.freeze(&tree).unwrap().then_some(()));
            send(child.id(), Signal::CONT).unwrap();
            testing::until("the child has ended", || (!child.id().is_running().unwrap()).then_some(()));
            testing::until("nobody runs", || frozen.freeze(&tree).unwrap().then_some(()));
            assert_eq!(log.metadata().unwrap().len(), 0, "it did not go on");
            frozen.thaw().unwrap();
            testing::until("it goes on", || (log.metadata().unwrap().len() == 1).then_some(()));
        });
    }

    #[test]
    fn a_deadline_passes_once_and_can_be_put_off() {
        let mut deadline = Deadline::new().unwrap();
        assert!(!deadline.has_passed());
        deadline.set(Some(boottime_ms() + 3_600_000)).unwrap();
        assert!(!deadline.has_passed());
        deadline.set(Some(0)).unwrap();
        assert!(deadline.has_passed());
        testing::until_ended(&deadline);
        deadline.set(None).unwrap();
        assert!(!deadline.has_passed());
    }
}
