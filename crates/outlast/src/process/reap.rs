//! Reaping, by name: a status belongs to whoever started the child.
//!
//! A subreaper inherits every orphan below it, and each becomes a zombie when it ends. "Wait for any child" would clear
//! them, and steal the statuses of the children that others wait for. So the children the [`Spawner`] forked are listed
//! here, from inside the fork until their own `wait`, and whatever else is a child of ours is an orphan.
//!
//! [`Spawner`]: super::spawn::Spawner

use std::{
    collections::BTreeSet,
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::{
    exit::Exit,
    proc_table::{self, ProcId, Stat},
};

/// The pids of children that somebody waits for. Held locked across fork and across reaping, so that no orphan sweep
/// sees a child before its name is here, or a pid that was freed and given to another.
static AWAITED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

pub(super) fn awaited() -> MutexGuard<'static, BTreeSet<u32>> {
    AWAITED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes this process the parent of every orphan below it (`PR_SET_CHILD_SUBREAPER`), so that a process that lost its
/// parent, and has cleared its environment, is still found among our children. Not inherited by children; lost with us.
pub fn become_subreaper() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Reaps the adopted orphans that have ended; returns who they were and how they ended. Call it on SIGCHLD.
///
/// Any child not started by a [`Spawner`](super::spawn::Spawner) counts as adopted: in a process that calls this, start
/// children through one only. Errors: `/proc` cannot be read.
pub fn reap_adopted() -> io::Result<Vec<(ProcId, Exit)>> {
    let own = proc_table::own_pid();
    let awaited = awaited();
    // Every kernel has the walk; `/proc/self/task/*/children` only some (CONFIG_PROC_CHILDREN).
    let orphans =
        proc_table::walk()?.into_iter().filter(|stat| stat.ppid == own && !awaited.contains(&stat.pid));
    Ok(orphans.filter(Stat::is_dead).filter_map(|stat| Some((stat.id(), reap(stat.pid)?))).collect())
}

/// Reaps those of these who are adopted orphans of ours: a walk has just found them dead.
pub(super) fn reap_dead<'a>(dead: impl IntoIterator<Item = &'a ProcId>) {
    let awaited = awaited();
    for id in dead {
        // Who is no child of ours is not waited for; a pid is not reused before its zombie is reaped.
        if !awaited.contains(&id.pid) {
            reap(id.pid);
        }
    }
}

fn reap(pid: u32) -> Option<Exit> {
    let id = WaitId::Pid(proc_table::raw(pid)?);
    let status = waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    // ECHILD: its status went elsewhere; it is gone all the same.
    status.ok().flatten().map(|status| Exit::of(&status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{
        spawn::{Spawner, tests::sh},
        testing,
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
}
