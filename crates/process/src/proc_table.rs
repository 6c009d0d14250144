//! The kernel's table of processes, as `/proc` shows it.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt as _,
    },
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
    process::{Pid, PidfdFlags},
};

/// Identity of a process on this boot and in this pid namespace. A pid alone can be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcId {
    pub pid: u32,
    /// Start of the process in clock ticks (usually 10 ms) since boot: field 22 of `/proc/PID/stat`.
    pub start_time: u64,
}

impl ProcId {
    /// Returns the identity of this process. Errors: `/proc` cannot be read.
    pub fn of_self() -> io::Result<ProcId> {
        let stat = read_stat_at(CWD, "/proc/self/stat")?.ok_or_else(no_proc)?;
        // The pid is the kernel's: numbers in a `/proc` of another namespace are not valid here.
        Ok(ProcId { pid: own_pid(), start_time: stat.start_time })
    }

    /// Returns the identity of the process that has `pid` now, also of a zombie; `None` if there is none. Errors:
    /// `/proc` cannot be read.
    pub fn of(pid: u32) -> io::Result<Option<ProcId>> {
        Ok(read_stat(pid)?.map(|stat| stat.id()))
    }

    /// Returns whether exactly this process still runs. A zombie does not.
    pub fn is_running(&self) -> io::Result<bool> {
        Ok(read_stat(self.pid)?.is_some_and(|stat| stat.id() == *self && !stat.is_dead()))
    }

    /// Opens a pidfd of exactly this process; `None`: it has ended.
    ///
    /// If the start time is still right **after** the opening, the pid belonged to the process all along, so the
    /// descriptor is for it. A descriptor never comes to mean another process.
    pub fn open(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = raw(self.pid) else { return Ok(None) };
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(self.is_running()?.then_some(pidfd)),
            Err(Errno::SRCH) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

/// Fields of `/proc/PID/stat` used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub pid: u32,
    pub ppid: u32,
    /// Id of the process group.
    pub group: u32,
    pub start_time: u64,
    /// State letter of the kernel: `R` running, `S` `D` waiting, `T` stopped, `Z` zombie, `X` dead …
    pub state: char,
    pub threads: u32,
    pub flags: u32,
    /// Name of the process, at most 15 bytes; invalid UTF-8 is replaced.
    pub comm: String,
}

const KERNEL_THREAD: u32 = 0x0020_0000;

impl Stat {
    pub fn id(&self) -> ProcId {
        ProcId { pid: self.pid, start_time: self.start_time }
    }

    /// Returns whether no thread of the process runs any more. A zombie leader whose other threads run on is not dead.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x') && self.threads <= 1
    }

    pub fn is_stopped(&self) -> bool {
        self.state == 'T'
    }

    pub fn is_kernel_thread(&self) -> bool {
        self.flags & KERNEL_THREAD != 0
    }

    /// Parses one line of `/proc/PID/stat`; `None` for any other text.
    ///
    /// `comm` is any name the program chose, spaces and parentheses included: it ends at the **last** `)`.
    pub fn parse(line: &[u8]) -> Option<Stat> {
        let open = line.iter().position(|&b| b == b'(')?;
        let close = line.iter().rposition(|&b| b == b')')?;
        let pid = std::str::from_utf8(line.get(..open)?).ok()?.trim().parse().ok()?;
        let comm = String::from_utf8_lossy(line.get(open + 1..close)?).into_owned();
        let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
        // proc(5) counts from 1 and `rest` begins with field 3.
        let fields: Vec<&str> = rest.split_ascii_whitespace().take(20).collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Stat {
            pid,
            comm,
            state: field(3)?.chars().next()?,
            ppid: field(4)?.parse().ok()?,
            group: field(5)?.parse().ok()?,
            flags: field(9)?.parse().ok()?,
            threads: field(20)?.parse().ok()?,
            start_time: field(22)?.parse().ok()?,
        })
    }
}

/// Reads the facts of one process; `None` if there is none. Errors: it may not be looked at, or `/proc` cannot be read.
pub fn read_stat(pid: u32) -> io::Result<Option<Stat>> {
    read_stat_at(CWD, &format!("/proc/{pid}/stat"))
}

/// Returns the length in bytes of the environment that a process's program began with; `None` while the process
/// executes another program, and if this user may not look at it.
pub fn environment_len(pid: u32) -> Option<u64> {
    let line = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let close = line.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc(5) counts from 1 and `rest` begins with field 3.
    let address = |number: usize| fields.get(number - 3).and_then(|field| field.parse::<u64>().ok());
    let (code, start, end) = (address(26)?, address(50)?, address(51)?);
    // The kernel sets the address of the code last: before it, the environment ends where it begins for a moment.
    if code == 0 || start == 0 { None } else { end.checked_sub(start) }
}

/// Reads a file of a process with one system call. Between two calls the process may execute another program; the part
/// read before would then be taken for the whole file.
pub(super) fn read_file(pid: u32, name: &str, buffer: &mut Vec<u8>) -> bool {
    buffer.clear();
    let Ok(file) = fs::File::open(format!("/proc/{pid}/{name}")) else { return false };
    let mut room = buffer.capacity().max(64 << 10);
    loop {
        buffer.resize(room, 0);
        let read = file.read_at(buffer, 0);
        buffer.truncate(*read.as_ref().unwrap_or(&0));
        if read.is_err() || buffer.len() < room {
            return read.is_ok();
        }
        room *= 2;
    }
}

/// Reads all processes, in one pass that is not a snapshot: processes that fork or exit meanwhile may be missed.
///
/// Errors: `/proc` cannot be read, or shows another pid namespace, whose numbers mean nothing here.
pub fn walk() -> io::Result<Vec<Stat>> {
    if !shows_our_namespace() {
        return Err(io::Error::other("/proc shows another pid namespace: wanted the one this process is in"));
    }
    let mut table = Vec::new();
    let proc = fs::File::open("/proc")?;
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().filter(|name| name.parse::<u32>().is_ok()) else { continue };
        // With `hidepid`, other users' processes cannot be read: they are not part of any tree.
        if let Ok(Some(stat)) = read_stat_at(&proc, &format!("{pid}/stat")) {
            table.push(stat);
        }
    }
    Ok(table)
}

/// Returns the processes that sleep in the kernel, beyond the reach of signals, while a child of theirs is stopped: vfork
/// lasts until the child begins its program.
pub fn waiting_for_stopped_children() -> io::Result<BTreeSet<ProcId>> {
    let all = walk()?;
    let parents: BTreeSet<u32> =
        all.iter().filter(|found| found.is_stopped()).map(|found| found.ppid).collect();
    let waits = |found: &&Stat| found.state == 'D' && parents.contains(&found.pid);
    Ok(all.iter().filter(waits).map(Stat::id).collect())
}

/// Buffer size, larger than any line of `/proc/PID/stat`: 52 numbers of at most 20 digits, and a name of 64
/// bytes.
const LINE: usize = 2048;

/// Reads the stat line at `path`, below the directory `at`; `None` if the process is gone. Three system calls, where a
/// [`fs::File`] read to its end needs nine: a machine has many processes.
fn read_stat_at(at: impl AsFd, path: &str) -> io::Result<Option<Stat>> {
    let mut line = [0; LINE];
    let read = openat(at, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        // The kernel writes the line in one piece, cut to the buffer.
        .and_then(|file| rustix::io::read(file, &mut line));
    match read {
        Ok(read) => Stat::parse(&line[..read])
            .map(Some)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("cannot read {path}"))),
        // A process can end between the opening (`ENOENT`) and the reading (`ESRCH`) of its file.
        Err(Errno::NOENT | Errno::SRCH) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Returns whether `/proc` shows this process's own pid namespace. Not after `unshare --pid` without a new mount.
pub fn shows_our_namespace() -> bool {
    fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == own_pid().to_string().as_str())
}

/// Returns the present time as start times are given: clock ticks since boot. A process that begins later has no
/// smaller start time.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (ticks, nanos) = (rustix::param::clock_ticks_per_second(), now.tv_nsec.unsigned_abs());
    now.tv_sec.unsigned_abs() * ticks + nanos * ticks / 1_000_000_000
}

pub(super) fn own_pid() -> u32 {
    std::process::id()
}

/// Converts `pid` to the type of the kernel's calls; `None` for a number that no process has.
pub(super) fn raw(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

fn no_proc() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "wanted /proc of this process, found none: is /proc mounted?")
}

/// Returns the process groups in which a living descendant of this process is.
///
/// A shell gives each of its jobs a group, and so do CLI agents each of their tools; what a job starts stays in its group
/// unless it leaves it. Errors: `/proc` cannot be read.
pub fn groups_below_self() -> io::Result<BTreeSet<u32>> {
    Ok(groups_below(&walk()?, own_pid()))
}

fn groups_below(table: &[Stat], root: u32) -> BTreeSet<u32> {
    let mut children: HashMap<u32, Vec<&Stat>> = HashMap::new();
    for stat in table {
        children.entry(stat.ppid).or_default().push(stat);
    }
    let (mut groups, mut next, mut seen) = (BTreeSet::new(), vec![root], HashSet::new());
    while let Some(pid) = next.pop() {
        // The table is no snapshot: a number may come twice, or above itself.
        if !seen.insert(pid) {
            continue;
        }
        for stat in children.get(&pid).into_iter().flatten() {
            if !stat.is_dead() {
                groups.insert(stat.group);
            }
            next.push(stat.pid);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(pid: u32, comm: &str, state: char, threads: u32) -> String {
        format!(
            "{pid} ({comm}) {state} 7 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 {threads} 0 987654 1000 20 3\n"
        )
    }

    #[test]
    fn comm_may_hold_spaces_parentheses_and_newlines() {
        for comm in ["sh", "tmux: server", "a) S 1 (b", ") R 9 9 9", "", "two\nlines", "(("] {
            let stat = Stat::parse(line(42, comm, 'S', 1).as_bytes()).unwrap();
            assert_eq!((stat.pid, stat.ppid, stat.start_time, stat.state), (42, 7, 987654, 'S'), "{comm:?}");
            assert_eq!(stat.comm, comm);
        }
    }

    #[test]
    fn what_is_no_stat_line_is_none() {
        for text in ["", "1", "1 (sh", "1 (sh) S 7", "x (sh) S 7 7 7 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 9", ")("]
        {
            assert_eq!(Stat::parse(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn zombie_is_dead_unless_other_threads_live_on() {
        for (state, threads, dead) in
            [('S', 1, false), ('Z', 1, true), ('Z', 0, true), ('Z', 3, false), ('X', 1, true)]
        {
            assert_eq!(
                Stat::parse(line(1, "x", state, threads).as_bytes()).unwrap().is_dead(),
                dead,
                "{state} {threads}"
            );
        }
    }

    #[test]
    fn walk_finds_this_process_under_its_parent() {
        let own = ProcId::of_self().unwrap();
        let table = walk().unwrap();
        let found = table.iter().find(|stat| stat.pid == own.pid).unwrap();
        assert_eq!(found.id(), own);
        assert_eq!(found.ppid, std::os::unix::process::parent_id());
        assert!(own.is_running().unwrap());
        assert!(!ProcId { start_time: own.start_time + 1, ..own }.is_running().unwrap());
    }

    #[test]
    fn groups_of_living_descendants_are_listed() {
        let stat = |pid: u32, ppid: u32, group: u32, state: char| {
            let line =
                format!("{pid} (a (b) c) {state} {ppid} {group} 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7 0 0");
            Stat::parse(line.as_bytes()).unwrap()
        };
        let table = [
            stat(1, 0, 1, 'S'),
            stat(10, 1, 10, 'S'),
            stat(11, 10, 10, 'S'),
            stat(12, 10, 12, 'Z'),
            stat(13, 12, 13, 'R'),
            stat(20, 1, 20, 'S'),
        ];
        assert_eq!(groups_below(&table, 10), BTreeSet::from([10, 13]));
        assert_eq!(groups_below(&table, 13), BTreeSet::new());
        // A table in which a parent's number was used again.
        assert_eq!(groups_below(&[stat(5, 6, 5, 'S'), stat(6, 5, 6, 'S')], 5), BTreeSet::from([5, 6]));
    }
}
