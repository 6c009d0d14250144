//! Finding all processes that are left of an attempt, in one pass over `/proc`.
//!
//! Two traces lead to a process: its **environment** as it was at exec (the marker), and its **descent** from a root.
//! Each covers what the other loses:
//!
//! A control group, where the attempt has one, covers both. Without:
//!
//! - A double fork or `setsid` breaks descent; the marker stays. Under a subreaper descent does not break at all: the
//!   orphan becomes our child, so with ourselves as a root it is found whatever its environment.
//! - `env -i` drops the marker, and some programs overwrite the memory it stood in; descent stays. Only a process that
//!   did both under a supervisor and a guardian that have died since (its orphans went to init) is found by neither.
//!
//! Where a supervisor and its guardian were both killed, there is no descent to go by: strays are found by the marker
//! alone.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use super::{
    cgroup,
    proc_table::{self, ProcId, Stat},
    reap::{self, is_helper},
};

/// Environment entries (`NAME=value`) that all processes of an attempt have.
///
/// The entries must distinguish one attempt's tree from every other on the machine. Ids that callers choose can repeat
/// from store to store, so name the store and slot too if that can happen. A marker without entries matches no process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker(Vec<Vec<u8>>);

impl Marker {
    pub fn new<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Marker {
        Marker(entries.into_iter().map(|(name, value)| format!("{name}={value}").into_bytes()).collect())
    }

    /// Returns the marker `OUTLAST_RUN_ID=id`.
    pub fn of_run(id: &str) -> Marker {
        Marker::new([("OUTLAST_RUN_ID", id)])
    }

    fn is_in(&self, environ: &[u8]) -> bool {
        let has = |entry: &Vec<u8>| environ.split(|&b| b == 0).any(|found| found == entry);
        !self.0.is_empty() && self.0.iter().all(has)
    }
}

/// Servers that an agent may be the first to start and that others then use: the person's own terminals, keys
/// and session bus. A server started by an agent carries the agent's marker for ever, and so does everything it
/// starts.
pub const SHARED_SERVERS: &[&str] = &[
    "tmux: server",
    "screen",
    "zellij",
    "ssh-agent",
    "gpg-agent",
    "keyboxd",
    "dbus-daemon",
    "dbus-broker",
    "dbus-broker-lau",
    "gnome-keyring-d",
];

pub fn is_shared_server(found: &Stat) -> bool {
    SHARED_SERVERS.contains(&found.comm.as_str())
}

/// Time for which a process must show no environment, nor the length of one, before it is believed to have none.
const LONGEST_EXEC: Duration = Duration::from_secs(5);

/// Criteria by which the processes of an attempt are found.
#[derive(Clone, Debug)]
pub struct Tree {
    pub marker: Marker,
    /// Root processes, which belong to the tree with all their descendants. With this process as a root
    /// ([`ProcId::of_self`]) that is every child of this process, adopted orphans included, but never this
    /// process itself.
    pub roots: Vec<ProcId>,
    /// Control groups whose members belong to the tree.
    pub groups: Vec<PathBuf>,
    /// Process that started the first process of the tree, and is no part of it itself. Processes that began before it,
    /// or that do not descend from it, cannot carry the marker. `None`: processes that an earlier supervisor left are
    /// searched for.
    pub begun_by: Option<ProcId>,
    /// Start time, in clock ticks since boot, from which neither marker nor group is believed: a process begun then may
    /// be a successor's. `None`: no such time.
    pub begun_before: Option<u64>,
    /// Predicate for processes that are left alone with all their descendants.
    pub spare: fn(&Stat) -> bool,
    /// Names of further processes that are left alone with all their descendants.
    pub keep: Vec<String>,
}

/// Result of one walk over `/proc`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Processes that can be signalled.
    pub survivors: Vec<Stat>,
    /// Processes of other users, which cannot be signalled, for example behind sudo.
    pub out_of_reach: Vec<Stat>,
    /// Processes that have ended and are not reaped yet. Known by descent alone, since the dead have no environment.
    pub dead: BTreeSet<ProcId>,
    /// Control groups in which only processes of this tree live, so that they can be killed as a whole.
    pub whole: Vec<PathBuf>,
    /// Whether it is certain that no process is left, so that no further walk is needed: the process that began the
    /// tree has no descendants.
    pub is_certain: bool,
}

impl Tree {
    /// Creates a tree that spares [`SHARED_SERVERS`], with neither groups nor names to keep.
    pub fn new(marker: Marker, roots: Vec<ProcId>) -> Tree {
        Tree {
            marker,
            roots,
            groups: Vec::new(),
            begun_by: None,
            begun_before: None,
            spare: is_shared_server,
            keep: Vec::new(),
        }
    }

    /// Creates the tree of an attempt that only this process has begun. Errors: `/proc` cannot be read.
    pub fn of_ours(marker: Marker) -> io::Result<Tree> {
        let me = ProcId::of_self()?;
        Ok(Tree { begun_by: Some(me), ..Tree::new(marker, vec![me]) })
    }

    /// Creates the tree of everything below a child of this process, without the child itself.
    pub fn below(child: ProcId) -> Tree {
        Tree { begun_by: Some(child), ..Tree::new(Marker::new([]), vec![child]) }
    }

    /// Returns the living processes of the tree that may be signalled; never this process nor its ancestors.
    /// Zombies count as ended.
    ///
    /// One walk is no proof of absence: a process may fork and exit while it goes on ([`end_tree`] has the proof).
    /// Errors: `/proc` is not readable.
    ///
    /// [`end_tree`]: super::end_tree::end_tree
    pub fn survivors(&self) -> io::Result<Vec<Stat>> {
        Ok(self.find()?.survivors)
    }

    /// Finds the processes of the tree, including those that may not be signalled.
    ///
    /// An attempt that left nothing costs no walk: this process then has no descendants, and the mark is only
    /// inherited. (A process that got the mark in another way, such as a service manager that imports an
    /// environment, is not the agent's.)
    pub fn find(&self) -> io::Result<Found> {
        let me = proc_table::own_pid();
        if self.begun_by.is_some_and(|by| by.pid == me) && reap::is_nobody_below()? {
            return Ok(Found { is_certain: true, ..Found::default() });
        }
        // The lock keeps others from reaping: a process that dies during the walk must still be listed in it.
        let unreaped = reap::awaited();
        let found = self.walk()?;
        drop(unreaped);
        Ok(found)
    }

    fn walk(&self) -> io::Result<Found> {
        let began = self.begun_by.map_or(0, |by| by.start_time)..self.begun_before.unwrap_or(u64::MAX);
        let groups: Vec<BTreeSet<u32>> = self.groups.iter().map(|path| cgroup::members(path)).collect();
        let table = proc_table::walk()?;
        let mut environ = Vec::new();
        let marked = |stat: &Stat| {
            let has_mark =
                |environ: &mut Vec<u8>| read_environ(stat.pid, environ) && self.marker.is_in(environ);
            began.contains(&stat.start_time)
                && (groups.iter().any(|members| members.contains(&stat.pid)) || has_mark(&mut environ))
        };
        let spare = |found: &Stat| is_helper(found.pid) || (self.spare)(found) || self.keeps(found);
        let top = self.begun_by.map_or_else(proc_table::own_pid, |by| by.pid);
        let Members { alive, dead } = select(&table, top, &self.roots, marked, spare);
        let is_member = |pid: &u32| alive.iter().any(|found| found.pid == *pid);
        // An empty group may be a successor's, which is about to enter it.
        let is_whole = |pids: &BTreeSet<u32>| !pids.is_empty() && pids.iter().all(is_member);
        let whole = self.groups.iter().zip(&groups).filter(|(_, pids)| is_whole(pids));
        let whole = whole.map(|(path, _)| path.clone()).collect();
        let (survivors, out_of_reach) = alive.into_iter().partition(|found| may_signal(found.pid));
        Ok(Found { survivors, out_of_reach, dead, whole, is_certain: false })
    }

    /// Returns whether `keep` names the process. The kernel cuts names, so they are compared as cut.
    fn keeps(&self, found: &Stat) -> bool {
        self.keep
            .iter()
            .any(|name| name.as_bytes().get(..15).unwrap_or(name.as_bytes()) == found.comm.as_bytes())
    }
}

struct Members {
    alive: Vec<Stat>,
    dead: BTreeSet<ProcId>,
}

/// Picks the tree's members out of a table. `own` and its ancestors are none, whatever marks them.
///
/// `marked` is called only for processes that descent has not decided.
fn select(
    table: &[Stat],
    own: u32,
    roots: &[ProcId],
    mut marked: impl FnMut(&Stat) -> bool,
    spare: impl Fn(&Stat) -> bool,
) -> Members {
    let by_pid: HashMap<u32, &Stat> = table.iter().map(|stat| (stat.pid, stat)).collect();
    let own_line = undecided_line(own, &by_pid, &HashMap::new());
    // Of these, only this process can be a root: an ancestor as a root would take in the whole machine.
    let mut standing: HashMap<u32, Standing> = own_line.iter().map(|&pid| (pid, Standing::Outside)).collect();
    if by_pid.get(&own).is_some_and(|stat| roots.contains(&stat.id())) {
        standing.insert(own, Standing::Member);
    }

    let mut members = Members { alive: Vec::new(), dead: BTreeSet::new() };
    for stat in table {
        // Down from the nearest ancestor already decided, so that each process is decided once.
        for pid in undecided_line(stat.pid, &by_pid, &standing).into_iter().rev() {
            let Some(stat) = by_pid.get(&pid) else { continue };
            let parent = standing.get(&stat.ppid).copied().unwrap_or(Standing::Outside);
            let alive = !stat.is_dead() && !stat.is_kernel_thread();
            let belongs = parent == Standing::Member || roots.contains(&stat.id()) || (alive && marked(stat));
            let decided = match parent {
                Standing::Spared => Standing::Spared,
                _ if !belongs => Standing::Outside,
                _ if spare(stat) => Standing::Spared,
                _ => Standing::Member,
            };
            if decided == Standing::Member && alive {
                members.alive.push(Stat::clone(stat));
            } else if decided == Standing::Member && stat.is_dead() {
                members.dead.insert(stat.id());
            }
            standing.insert(pid, decided);
        }
    }
    members
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Outside,
    Member,
    Spared,
}

/// Returns `pid` and its ancestors up to the first decided one, nearest first.
fn undecided_line(pid: u32, by_pid: &HashMap<u32, &Stat>, decided: &HashMap<u32, Standing>) -> Vec<u32> {
    let mut line = Vec::new();
    let mut seen = HashSet::new();
    let mut next = pid;
    // The walk is no snapshot: pids reused during it could close a circle.
    while next != 0 && !decided.contains_key(&next) && seen.insert(next) {
        line.push(next);
        next = by_pid.get(&next).map_or(0, |stat| stat.ppid);
    }
    line
}

/// Reads the environment of a process. Returns `false` if it cannot be read, as with other users' and
/// non-dumpable processes: those must be found by descent.
///
/// While a process executes another program the kernel shows no environment, on a loaded machine for many milliseconds.
/// A process in that state must not be missed: an empty environment is believed only where the kernel gives its length as 0.
fn read_environ(pid: u32, buffer: &mut Vec<u8>) -> bool {
    let began = Instant::now();
    loop {
        if !proc_table::read_file(pid, "environ", buffer) {
            return false;
        }
        if !buffer.is_empty() || began.elapsed() > LONGEST_EXEC {
            return true;
        }
        match proc_table::read_stat(pid).ok().flatten() {
            Some(stat) if !stat.is_dead() => {}
            _ => return false,
        }
        if proc_table::environment_len(pid) == Some(0) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn may_signal(pid: u32) -> bool {
    let Some(pid) = proc_table::raw(pid) else { return false };
    rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::PERM)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// pid, ppid, name, state, marked.
    type Line = (u32, u32, &'static str, char, bool);

    const OWN: u32 = 50;
    /// Processes outside the tree: init, a shell, this process, a kernel thread.
    const OTHERS: &[Line] = &[
        (1, 0, "init", 'S', false),
        (2, 0, "kthreadd", 'K', true),
        (40, 1, "bash", 'S', true),
        (OWN, 40, "outlast", 'S', true),
        (60, 40, "vi", 'S', false),
        (61, 1, "sshd", 'S', false),
    ];

    #[track_caller]
    fn check(lines: &[Line], roots: &[u32], want: &[u32]) {
        let lines: Vec<Line> = OTHERS.iter().chain(lines).copied().collect();
        let stat = |&(pid, ppid, comm, state, _): &Line| Stat {
            pid,
            ppid,
            group: pid,
            start_time: u64::from(pid) * 10,
            state: if state == 'K' { 'S' } else { state },
            threads: 1,
            flags: if state == 'K' { 0x0020_0000 } else { 0 },
            comm: comm.to_owned(),
        };
        let mut table: Vec<Stat> = lines.iter().map(stat).collect();
        let roots: Vec<ProcId> =
            roots.iter().map(|&pid| ProcId { pid, start_time: u64::from(pid) * 10 }).collect();
        let marked = |stat: &Stat| lines.iter().any(|line| line.0 == stat.pid && line.4);
        // The answer must not depend on the order of the walk.
        for _ in 0..2 {
            let mut got: Vec<u32> = select(&table, OWN, &roots, marked, is_shared_server)
                .alive
                .iter()
                .map(|found| found.pid)
                .collect();
            got.sort();
            assert_eq!(got, want);
            table.reverse();
        }
    }

    #[test]
    fn neither_we_nor_our_ancestors_nor_strangers_are_found() {
        check(&[], &[], &[]);
        check(&[], &[OWN, 40, 1], &[]);
    }

    #[test]
    fn marked_processes_are_found_wherever_they_hang_with_all_below_them() {
        let lines = [(70, 1, "sh", 'S', true), (71, 70, "python", 'S', false), (72, 71, "node", 'S', false)];
        check(&lines, &[], &[70, 71, 72]);
    }

    #[test]
    fn roots_and_their_descendants_are_found_by_descent() {
        let lines = [(70, OWN, "sh", 'S', false), (71, 70, "sh", 'S', false), (80, OWN, "other", 'S', false)];
        check(&lines, &[70], &[70, 71]);
        check(&lines, &[OWN], &[70, 71, 80]);
        check(&lines, &[], &[]);
    }

    #[test]
    fn dead_root_still_leads_to_its_children_and_zombies_are_not_survivors() {
        check(
            &[(70, OWN, "sh", 'Z', false), (71, 70, "sh", 'S', false), (72, 71, "sh", 'Z', true)],
            &[70],
            &[71],
        );
    }

    #[test]
    fn recycled_root_is_somebody_else() {
        let stranger = Stat {
            pid: 70,
            ppid: 1,
            group: 70,
            start_time: 999,
            state: 'S',
            threads: 1,
            flags: 0,
            comm: "stranger".into(),
        };
        let root = ProcId { pid: 70, start_time: 700 };
        assert_eq!(select(&[stranger], OWN, &[root], |_| false, is_shared_server).alive, []);
    }

    #[test]
    fn shared_servers_are_spared_with_all_below_them() {
        let lines = [
            (70, OWN, "agent", 'S', true),
            (71, 1, "tmux: server", 'S', true),
            (72, 71, "bash", 'S', true),
            (73, 72, "vi", 'S', true),
            (74, 70, "ssh-agent", 'S', true),
        ];
        check(&lines, &[OWN], &[70]);
    }

    #[test]
    fn server_around_the_tree_spares_nothing_in_it() {
        // The person's own tmux, in which the agent of a supervisor that died was started.
        let lines =
            [(70, 1, "tmux: server", 'S', false), (71, 70, "bash", 'S', false), (72, 71, "agent", 'S', true)];
        check(&lines, &[], &[72]);
    }

    #[test]
    fn circle_from_reused_pids_does_not_hang_the_walk() {
        check(&[(70, 71, "a", 'S', true), (71, 70, "b", 'S', true)], &[], &[70, 71]);
        check(&[(70, 71, "a", 'S', false), (71, 70, "b", 'S', false)], &[OWN], &[]);
    }

    /// Bug: a process of a dead supervisor's attempt was left running, now and then, on a loaded machine.
    /// Consequence: it went on beside the next attempt's.
    /// Cause: two walks in a row saw it while it executed another program, when the kernel shows no environment. Later: three
    /// looks in a row did, or the program was replaced between the two calls of one read.
    #[test]
    fn process_that_executes_another_program_at_each_walk_is_found() {
        let value = format!("test-exec-{}", std::process::id());
        let again = "exec sh -c \"$0\" \"$0\"";
        let mut command = std::process::Command::new("sh");
        let mut child = command.args(["-c", again, again]).env("OUTLAST_RUN_ID", &value).spawn().unwrap();
        let marker = Marker::of_run(&value);
        let mut missed = 0;
        for _ in 0..2_000 {
            // Without room from the walk before, as the first process of a walk is read.
            let mut environ = Vec::new();
            missed += u32::from(!(read_environ(child.id(), &mut environ) && marker.is_in(&environ)));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(missed, 0);
    }

    #[test]
    fn process_without_an_environment_is_known_to_have_none() {
        let mut child = std::process::Command::new("sleep").arg("100").env_clear().spawn().unwrap();
        let mut environ = vec![1];
        // The child may not have reached its program yet, and until then has this process's environment.
        while !(read_environ(child.id(), &mut environ) && environ.is_empty()) {
            assert!(child.try_wait().unwrap().is_none());
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn marker_matches_whole_entries_and_all_of_them() {
        let environ = b"PATH=/bin\0OUTLAST_RUN_ID=run_1\0OUTLAST_SLOT=2\0EMPTY=\0";
        for (entries, marked) in [
            (vec![("OUTLAST_RUN_ID", "run_1")], true),
            (vec![("OUTLAST_RUN_ID", "run_1"), ("OUTLAST_SLOT", "2")], true),
            (vec![("OUTLAST_RUN_ID", "run_1"), ("OUTLAST_SLOT", "3")], false),
            (vec![("OUTLAST_RUN_ID", "run_")], false),
            (vec![("OUTLAST_RUN_ID", "run_12")], false),
            (vec![("RUN_ID", "run_1")], false),
            (vec![("EMPTY", "")], true),
            (vec![], false),
        ] {
            assert_eq!(Marker::new(entries.clone()).is_in(environ), marked, "{entries:?}");
        }
        assert!(!Marker::of_run("run_1").is_in(b""));
        assert!(Marker::of_run("run_1").is_in(b"OUTLAST_RUN_ID=run_1"));
    }
}
