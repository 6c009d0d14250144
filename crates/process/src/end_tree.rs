//! Ending a tree of processes: the stop ladder, driven with real signals.

use std::{
    collections::HashSet,
    io,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
    process::Signal,
};

use super::{
    cgroup,
    exit::Exit,
    ladder::{Action, Ask, Event, Graces, Ladder},
    proc_table::{ProcId, Stat},
    reap,
    spawn::Child,
    tree::{Found, Tree},
    wait::{Bell, poll},
};

/// Longest time between two looks at the tree while it is being killed: processes that fork faster than they
/// are killed must be seen again soon.
const KILL_ROUND: Duration = Duration::from_millis(20);
/// Longest time between two looks after all have been asked: new processes may appear, and not all ends are
/// waited for.
const ASK_ROUND: Duration = Duration::from_millis(250);
/// Largest number of processes waited for at once. Descriptors are scarce (1,024 by default), so of a large
/// tree only some are waited for, and then all are looked for again.
const MOST_WAITED_FOR: usize = 64;

/// Result of [`end_tree`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit of the main process; `None` if none was given, or if it hangs in the kernel.
    pub main: Option<Exit>,
    /// Whether it is certain that no process is left that may be signalled. False: the ladder gave up.
    pub all_gone: bool,
    /// Processes that were still alive at the end: they hang in the kernel and so survive SIGKILL, or belong
    /// to another user.
    pub left: Vec<Stat>,
}

/// Ends every process of the tree. `ask` is the rung of the [`Ladder`] to start from. When another thread rings `force`,
/// all remaining graces are skipped.
///
/// Returns when it is certain that no process is left, or when the ladder gave up. `main` (implicitly a root)
/// is waited for and reaped; so are adopted orphans. Blocks for the sum of `graces` at most: call it outside
/// the async runtime. Idempotent: on a tree that is gone it does nothing.
///
/// A single empty walk proves nothing: a chain of processes that each fork the next and exit runs ahead of
/// every walk. But where this process is subreaper and a root, each link leaves a zombie to it. Every process
/// alive when a walk began is listed in that walk; if all those listed were already dead in the walk before,
/// none of them could have forked. That is the proof. For the strays of a dead supervisor, which init reaps,
/// the proof shrinks to two empty walks in a row. An endless chain is not caught (only a cgroup could), and is
/// reported as not gone. Where this process began the tree and has no descendant, that is the proof, and no
/// walk is made ([`Tree::find`]).
///
/// Errors: `/proc` is not readable, or the system refuses pidfds; some processes may then have been signalled
/// already.
pub fn end_tree(
    tree: &Tree,
    main: Option<&Child>,
    ask: Ask,
    graces: Graces,
    force: &Bell,
) -> io::Result<Ended> {
    let mut tree = tree.clone();
    tree.roots.extend(main.map(Child::id));
    let started = Instant::now();
    let mut drive =
        Drive { tree, main, main_exited: false, found: None, is_certain: false, signalled: HashSet::new() };
    let mut ladder = Ladder::new(graces);
    drive.perform(ladder.on(Event::Asked(ask), started.elapsed()))?;
    loop {
        if force.rings() {
            drive.perform(ladder.on(Event::Asked(Ask::Force), started.elapsed()))?;
        }
        if drive.main_has_just_exited()? {
            drive.perform(ladder.on(Event::MainExited, started.elapsed()))?;
        }
        drive.perform(ladder.on(Event::Tick, started.elapsed()))?;
        if ladder.is_over() {
            return drive.ended(false);
        }
        if ladder.ends_all() && drive.is_certain {
            ladder.on(Event::AllGone, started.elapsed());
            return drive.ended(true);
        }
        if ladder.ends_all() && drive.survivors().is_empty() {
            continue;
        }
        let round = match (ladder.is_killing(), ladder.ends_all()) {
            (true, _) => KILL_ROUND,
            (false, true) => ASK_ROUND,
            (false, false) => Duration::MAX,
        };
        let due = ladder.due().map_or(Duration::MAX, |due| due.saturating_sub(started.elapsed()));
        drive.wait((!force.rings()).then_some(force), round.min(due))?;
    }
}

/// Ends every process of a tree whose main process is gone, with the usual graces. See [`end_tree`].
pub fn end_rest(tree: &Tree) -> io::Result<Ended> {
    end_tree(tree, None, Ask::EndRest, Graces::default(), &Bell::new()?)
}

/// Executes the ladder's actions, and reports events to the ladder.
struct Drive<'a> {
    tree: Tree,
    main: Option<&'a Child>,
    main_exited: bool,
    /// Result of the last look at the whole tree; `None` while only the main process has been asked to end.
    found: Option<Found>,
    /// Whether the last two looks prove that no process survives.
    is_certain: bool,
    /// Signals already sent, by process. To many programs a second SIGTERM means "at once".
    signalled: HashSet<(ProcId, i32)>,
}

impl Drive<'_> {
    fn look(&mut self) -> io::Result<()> {
        let found = self.tree.find()?;
        let by_walks = self.found.as_ref().is_some_and(|before| {
            let none = before.survivors.is_empty() && found.survivors.is_empty();
            none && found.dead.is_subset(&before.dead)
        });
        self.is_certain = found.is_certain || by_walks;
        self.found = Some(found);
        Ok(())
    }

    fn survivors(&self) -> &[Stat] {
        self.found.as_ref().map_or(&[], |found| &found.survivors)
    }

    fn perform(&mut self, action: Option<Action>) -> io::Result<()> {
        match action {
            None | Some(Action::GiveUp) => {}
            Some(Action::SignalMain(signal)) => {
                if let Some(main) = self.main {
                    self.signalled.insert((main.id(), signal.as_raw()));
                    main.signal(signal)?;
                }
                // A stopped process takes no signal but SIGKILL, and a stopped child can hold up its parent.
                for stopped in self.tree.survivors()?.iter().filter(|found| found.is_stopped()) {
                    send(stopped.id(), Signal::CONT)?;
                }
            }
            Some(Action::SignalAll(signal)) => {
                self.look()?;
                if signal == Signal::KILL {
                    for group in self.found.iter().flat_map(|found| &found.whole) {
                        cgroup::kill(group);
                    }
                }
                for found in self.found.iter().flat_map(|found| &found.survivors) {
                    if self.signalled.insert((found.id(), signal.as_raw())) {
                        send(found.id(), signal)?;
                    }
                    if found.is_stopped() {
                        // After the signal, so that it is taken at once: continued first, a background process that
                        // reads the terminal would be stopped again before the signal came.
                        send(found.id(), Signal::CONT)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns true once, when the main process has ended, or at once if there is none to wait for.
    fn main_has_just_exited(&mut self) -> io::Result<bool> {
        let before = self.main_exited;
        self.main_exited = match self.main {
            Some(main) => main.try_wait()?.is_some(),
            None => true,
        };
        Ok(self.main_exited && !before)
    }

    /// Waits until one of the survivors has ended, or force is requested, or `longest` is over.
    fn wait(&self, force: Option<&Bell>, longest: Duration) -> io::Result<()> {
        let mut ends = Vec::new();
        for found in self.survivors().iter().take(MOST_WAITED_FOR) {
            match found.id().open()? {
                Some(end) => ends.push(end),
                // It has ended since the look.
                None => return Ok(()),
            }
        }
        let main = self.main.filter(|_| !self.main_exited).map(AsFd::as_fd);
        let watched = ends.iter().map(AsFd::as_fd).chain(main).chain(force.map(AsFd::as_fd));
        let mut watched: Vec<PollFd> =
            watched.map(|fd: BorrowedFd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        poll(&mut watched, Some(longest)).map(drop)
    }

    fn ended(&mut self, all_gone: bool) -> io::Result<Ended> {
        let main = match self.main {
            Some(main) => main.try_wait()?,
            None => None,
        };
        // The look that proved it is the last word; a walk costs milliseconds where there are many processes.
        if !all_gone {
            self.look()?;
        }
        reap::reap_dead(self.found.iter().flat_map(|found| &found.dead));
        let Found { survivors, out_of_reach, .. } = self.found.take().unwrap_or_default();
        Ok(Ended { main, all_gone, left: survivors.into_iter().chain(out_of_reach).collect() })
    }
}

/// Signals exactly this process. If it has ended, or become another user's, nothing is sent.
pub(super) fn send(id: ProcId, signal: Signal) -> io::Result<()> {
    let Some(pidfd) = id.open()? else { return Ok(()) };
    match rustix::process::pidfd_send_signal(&pidfd, signal) {
        Ok(()) | Err(Errno::SRCH | Errno::PERM) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::{
        proc_table,
        spawn::{Command, Spawner},
        testing::{self, sh},
        tree::Marker,
    };

    /// Graces so long that a test that waits for one fails.
    const NEVER: Graces = Graces {
        main: Duration::from_secs(3600),
        all: Duration::from_secs(3600),
        kill: Duration::from_secs(3600),
    };
    const SHORT: Graces = Graces {
        main: Duration::from_millis(50),
        all: Duration::from_millis(50),
        kill: Duration::from_secs(30),
    };

    /// Returns a marker value that no other test has.
    fn marker_value(test: &str) -> String {
        format!("test-{test}-{}", std::process::id())
    }

    /// Builds a command from `script`, which can call `up` to add its pid to the list of running processes.
    fn marked(test: &str, script: &str, list: &Path) -> Command {
        let mut command = sh(&format!("up() {{ echo ${{1:-$$}} >> {}; }}\n{script}", list.display()));
        command.env.insert("OUTLAST_RUN_ID".into(), marker_value(test).into());
        command
    }

    fn until_up(list: &Path, count: usize) -> Vec<u32> {
        testing::until(&format!("{count} processes are up"), || {
            let pids = fs::read_to_string(list).unwrap_or_default();
            (pids.lines().count() >= count).then(|| pids.lines().map(|pid| pid.parse().unwrap()).collect())
        })
    }

    #[track_caller]
    fn assert_gone(pids: &[u32], context: &str) {
        for &pid in pids {
            // In a process of its own no pid comes round within a test.
            let left = proc_table::read_stat(pid).unwrap().filter(|stat| !stat.is_dead());
            assert_eq!(left, None, "{context}");
        }
        let own = proc_table::own_pid();
        let children: Vec<_> =
            proc_table::walk().unwrap().into_iter().filter(|stat| stat.ppid == own).collect();
        assert_eq!(children, [], "{context}: everybody is reaped");
    }

    /// Starts `script`, waits until `count` processes are up, ends the tree, and finds none left: once by walks
    /// alone, once as a tree that this process began. Needs a process of its own.
    #[track_caller]
    fn check(script: &str, count: usize, ask: Ask, graces: Graces) -> Ended {
        reap::become_subreaper().unwrap();
        let marker = Marker::of_run(&marker_value("check"));
        let ended = check_tree(Tree::of_ours(marker.clone()).unwrap(), script, count, ask, graces);
        let by_walks = Tree::new(marker, vec![ProcId::of_self().unwrap()]);
        assert_eq!(check_tree(by_walks, script, count, ask, graces), ended, "{script}");
        ended
    }

    #[track_caller]
    fn check_tree(tree: Tree, script: &str, count: usize, ask: Ask, graces: Graces) -> Ended {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("up");
        let main = Spawner::start().unwrap().spawn(marked("check", script, &list)).unwrap();
        let pids = until_up(&list, count);
        let ended = end_tree(&tree, Some(&main), ask, graces, &Bell::new().unwrap()).unwrap();
        assert!(ended.all_gone && ended.left.is_empty(), "{ended:?}: {script}");
        assert_gone(&pids, script);
        ended
    }

    const STOP: Ask = Ask::Stop(Some(Signal::TERM));

    /// Bug: a restart took 270 ms instead of 20, one in twenty that had two orphans to end.
    /// Cause: orphans that ended between the look and the wait were no longer waited for, and so the wait was for nobody.
    #[test]
    fn a_process_that_ended_since_it_was_found_ends_the_wait() {
        testing::in_own_process(
            concat!(module_path!(), "::a_process_that_ended_since_it_was_found_ends_the_wait"),
            || {
                let dir = tempfile::tempdir().unwrap();
                let list = dir.path().join("up");
                let script = marked("found", "up; exec sleep 300", &list);
                let main = Spawner::start().unwrap().spawn(script).unwrap();
                until_up(&list, 1);
                let tree = Tree::new(Marker::of_run(&marker_value("found")), vec![main.id()]);
                let found = Some(tree.find().unwrap());
                let (main_exited, is_certain) = (true, false);
                let signalled = HashSet::new();
                let drive = Drive { tree, main: None, main_exited, found, is_certain, signalled };
                assert_eq!(drive.survivors().len(), 1);
                main.signal(Signal::KILL).unwrap();
                testing::until_ended(&main);
                // Nobody else would end it.
                drive.wait(None, Duration::MAX).unwrap();
            },
        );
    }

    #[test]
    fn willing_tree_ends_without_waiting_for_any_grace() {
        testing::in_own_process(
            concat!(module_path!(), "::willing_tree_ends_without_waiting_for_any_grace"),
            || {
                let both = "sleep 300 & up $!; trap 'exit 7' TERM; up; wait";
                assert_eq!(check(both, 2, STOP, NEVER).main, Some(Exit::code(7)));
                assert_eq!(check("up; exec sleep 300", 1, STOP, NEVER).main, Some(Exit::signal(15)));
                assert_eq!(check("up; exec sleep 300", 1, Ask::Force, NEVER).main, Some(Exit::signal(9)));
                assert_eq!(
                    check("sleep 300 & up $!; exit 3", 1, Ask::EndRest, NEVER).main,
                    Some(Exit::code(3))
                );
            },
        );
    }

    #[test]
    fn unwilling_trees_end_all_the_same() {
        testing::in_own_process(concat!(module_path!(), "::unwilling_trees_end_all_the_same"), || {
            // Ignores SIGTERM, and so do its children.
            check("trap '' TERM; sleep 300 & up $!; up; wait", 2, STOP, SHORT);
            // Two forks and a session of its own, parents gone.
            check("(setsid sleep 300 & up $!); (sleep 300 & up $!); up; exit 1", 3, STOP, SHORT);
            // No marker, no parent.
            check("(env -i setsid sleep 300 & up $!); up; exit 1", 2, Ask::EndRest, SHORT);
            // Stopped, with a stopped child.
            check("sh -c 'kill -STOP $$' & up $!; up; kill -STOP $$; exit 0", 2, STOP, SHORT);
            // Starts a successor when asked to stop.
            check(
                "trap 'setsid sleep 300 & exit 1' TERM; up; while :; do sleep 300 & wait; done",
                1,
                STOP,
                SHORT,
            );
        });
    }

    #[test]
    fn forking_faster_than_one_walk_sees_is_ended() {
        testing::in_own_process(
            concat!(module_path!(), "::forking_faster_than_one_walk_sees_is_ended"),
            || {
                // Each of two lines is a chain of 50 processes: one starts the next, ignores SIGTERM and goes.
                let chain = "f() { [ $1 -gt 50 ] && { up; exec sleep 300; }; trap '' TERM; [ $1 = 5 ] && up; f $(($1 + 1)) & }";
                for ask in [STOP, Ask::EndRest, Ask::Force] {
                    check(&format!("{chain}; f 1; f 1; wait; exec sleep 300"), 2, ask, SHORT);
                }
            },
        );
    }

    #[test]
    fn force_cuts_a_grace_short() {
        testing::in_own_process(concat!(module_path!(), "::force_cuts_a_grace_short"), || {
            let dir = tempfile::tempdir().unwrap();
            let list = dir.path().join("up");
            let script = "trap 'up' TERM; up; while :; do sleep 300 & wait; done";
            let main = Spawner::start().unwrap().spawn(marked("force", script, &list)).unwrap();
            until_up(&list, 1);
            let tree = Tree::new(Marker::of_run(&marker_value("force")), vec![]);
            let force = Bell::new().unwrap();
            let ended = std::thread::scope(|scope| {
                let ending = scope.spawn(|| end_tree(&tree, Some(&main), STOP, NEVER, &force).unwrap());
                // Asked, it does not go, and the grace is an hour.
                until_up(&list, 2);
                force.ring();
                ending.join().unwrap()
            });
            assert_eq!(ended, Ended { main: Some(Exit::signal(9)), all_gone: true, left: vec![] });
        });
    }

    #[test]
    fn shared_server_is_left_running_and_a_tree_that_is_gone_needs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("up");
        let script = format!(
            "cp $(command -v sleep) {0}/ssh-agent; {0}/ssh-agent 300 & up $!; up; wait",
            dir.path().display()
        );
        let main = Spawner::start().unwrap().spawn(marked("spare", &script, &list)).unwrap();
        let agent = until_up(&list, 2)[0];
        testing::until("it has its name", || {
            (proc_table::read_stat(agent).unwrap().unwrap().comm == "ssh-agent").then_some(())
        });
        let mut tree = Tree::new(Marker::of_run(&marker_value("spare")), vec![]);
        let force = Bell::new().unwrap();
        let ended = end_tree(&tree, Some(&main), STOP, NEVER, &force).unwrap();
        assert_eq!(ended, Ended { main: Some(Exit::signal(15)), all_gone: true, left: vec![] });
        assert!(ProcId::of(agent).unwrap().unwrap().is_running().unwrap());

        tree.spare = |_| false;
        for _ in 0..2 {
            let ended = end_tree(&tree, None, STOP, NEVER, &force).unwrap();
            assert_eq!(ended, Ended { main: None, all_gone: true, left: vec![] });
        }
        assert!(!ProcId::of(agent).unwrap().is_some_and(|id| id.is_running().unwrap()));
    }

    #[test]
    fn strays_of_a_killed_supervisor_are_found_by_their_marker() {
        let name = concat!(module_path!(), "::strays_of_a_killed_supervisor_are_found_by_their_marker");
        if let Some(list) = testing::inner_file() {
            reap::become_subreaper().unwrap();
            let script = "(setsid sleep 300 & up $!); trap '' TERM; sleep 300 & up $!; up; wait";
            let mut command = marked("strays", script, &list);
            command.env.insert("OUTLAST_RUN_ID".into(), format!("strays-of-{}", std::process::id()).into());
            let main = Spawner::start().unwrap().spawn(command).unwrap();
            main.wait().unwrap();
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("up");
        let mut supervisor = testing::start_inner(name, &list);
        let pids = until_up(&list, 3);
        let ids: Vec<ProcId> = pids.iter().map(|&pid| ProcId::of(pid).unwrap().unwrap()).collect();
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();

        let tree = Tree::new(Marker::of_run(&format!("strays-of-{}", supervisor.id())), vec![]);
        let found = tree.survivors().unwrap();
        assert!(
            found.iter().any(|found| found.id() == ids[0]) && found.iter().any(|found| found.id() == ids[1])
        );
        let ended = end_tree(&tree, None, Ask::EndRest, SHORT, &Bell::new().unwrap()).unwrap();
        assert_eq!(ended, Ended { main: None, all_gone: true, left: vec![] });
        assert!(ids.iter().all(|id| !id.is_running().unwrap()), "{ids:?}");
    }

    #[test]
    fn recycled_pid_is_never_opened() {
        let child = Spawner::start().unwrap().spawn(sh("exec sleep 300")).unwrap();
        let id = child.id();
        assert!(id.open().unwrap().is_some());
        assert!(ProcId { start_time: id.start_time + 1, ..id }.open().unwrap().is_none());
        child.signal(Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(id.open().unwrap().is_none());
    }

    #[test]
    fn thirty_random_trees_are_all_gone() {
        testing::in_own_process(concat!(module_path!(), "::thirty_random_trees_are_all_gone"), || {
            reap::become_subreaper().unwrap();
            let first_seed = getrandom::u64().unwrap();
            for seed in first_seed..first_seed + 30 {
                println!("seed {seed}");
                let dir = tempfile::tempdir().unwrap();
                let mut forest = testing::Forest::new(seed, dir.path());
                let main = forest.plant(0);
                let planted = forest.planted;
                let ask = [STOP, Ask::EndRest, Ask::Force][forest.below(3)];
                let command = marked("random", &format!("exec sh {main}"), &dir.path().join("unused"));
                let child = Spawner::start().unwrap().spawn(command).unwrap();
                let pids = until_up(&dir.path().join("up"), planted);
                let marker = Marker::of_run(&marker_value("random"));
                let tree = match seed % 2 {
                    0 => Tree::of_ours(marker).unwrap(),
                    _ => Tree::new(marker, vec![ProcId::of_self().unwrap()]),
                };
                let ended = end_tree(&tree, Some(&child), ask, SHORT, &Bell::new().unwrap()).unwrap();
                assert!(ended.all_gone && ended.left.is_empty(), "seed {seed}: {ended:?}");
                assert!(ended.main.is_some(), "seed {seed}");
                assert_gone(&pids, &format!("seed {seed}"));
            }
        });
    }
}
