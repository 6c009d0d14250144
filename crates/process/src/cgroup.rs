//! Control groups (version 2), one for each attempt. Membership is known whatever became of parents and
//! environments, all members can be killed at once, and the group can be limited.
//!
//! Used where the supervisor may make groups below its own. Elsewhere the walk over `/proc` does the same work,
//! and limits are refused.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::guardian;

/// Age from which an empty group is taken to be abandoned.
const OLD: Duration = Duration::from_secs(3600);

/// Resource limits of an attempt; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub memory_bytes: Option<u64>,
    /// CPU time in percent of one processor: 200 is two whole processors.
    pub cpu_percent: Option<u32>,
}

impl Limits {
    fn controllers(&self) -> impl Iterator<Item = &'static str> {
        let wanted = [("memory", self.memory_bytes.is_some()), ("cpu", self.cpu_percent.is_some())];
        wanted.into_iter().filter(|(_, is)| *is).map(|(name, _)| name)
    }
}

/// Reason why an attempt gets no control group, or none with limits.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no control group (version 2) can be had here: none is mounted, or this process is in none")]
    None,
    #[error("no control group can be made below {}: {source}", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("the controller `{controller}` is not delegated to {}", path.display())]
    NotDelegated { controller: &'static str, path: PathBuf },
    #[error("{} holds other processes than this one, so its children cannot be limited: {source}", path.display())]
    Shared { path: PathBuf, source: io::Error },
    #[error("cannot limit {}: {source}", path.display())]
    Limit { path: PathBuf, source: io::Error },
}

/// Parent of the attempts' control groups: the group that the supervisor was in at its start.
#[derive(Clone, Debug)]
pub struct ParentGroup {
    path: PathBuf,
}

/// Control group of one attempt. Dropping it removes the group if it is empty.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    directory: Arc<OwnedFd>,
}

impl ParentGroup {
    /// Finds the control group that this process is in. Errors: [`Error::None`].
    pub fn find() -> Result<ParentGroup, Error> {
        let read = |name| fs::read_to_string(name).unwrap_or_default();
        let path = place("", &read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        path.map(|path| ParentGroup { path }).ok_or(Error::None)
    }

    /// Creates a control group named `name` with limits, or uses the one of that name.
    ///
    /// To delegate controllers, this process and its guardian move into a group of their own below: a group with
    /// processes in it can have no limited children.
    pub fn group(&self, name: &str, limits: Limits) -> Result<Group, Error> {
        for controller in limits.controllers() {
            self.hand_down(controller)?;
        }
        let path = self.path.join(name);
        let make = |source| Error::Make { path: self.path.clone(), source };
        make_dir(&path).map_err(make)?;
        let directory = File::open(&path).map_err(make)?;
        let group = Group { path, directory: Arc::new(directory.into()) };
        group.limit(limits).map_err(|source| Error::Limit { path: group.path.clone(), source })?;
        Ok(group)
    }

    fn hand_down(&self, controller: &'static str) -> Result<(), Error> {
        let path = || self.path.clone();
        let has = |file: &str| {
            let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
            text.split_whitespace().any(|word| word == controller)
        };
        if has("cgroup.subtree_control") {
            return Ok(());
        }
        if !has("cgroup.controllers") {
            return Err(Error::NotDelegated { controller, path: path() });
        }
        let enable = || fs::write(self.path.join("cgroup.subtree_control"), format!("+{controller}"));
        if enable().is_ok() {
            return Ok(());
        }
        let own = self.path.join("outlast-supervisor");
        make_dir(&own).map_err(|source| Error::Make { path: path(), source })?;
        // "0" is this process. Its guardian is in the group too.
        for pid in [0].into_iter().chain(guardian::pid()) {
            fs::write(own.join("cgroup.procs"), pid.to_string())
                .map_err(|source| Error::Make { path: path(), source })?;
        }
        enable().map_err(|source| Error::Shared { path: path(), source })
    }

    /// Removes empty control groups whose name begins with `prefix` and that are older than an hour: those of
    /// runs whose supervisor was killed and that were not resumed.
    ///
    /// A younger group may be about to get its first process.
    pub fn tidy(&self, prefix: &str) {
        for path in self.left(prefix) {
            let made = fs::metadata(&path).and_then(|m| m.modified());
            let is_old = made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > OLD));
            if is_old && members(&path).is_empty() {
                remove(&path);
            }
        }
    }

    /// Returns the paths of the control groups whose name begins with `prefix`, which earlier supervisors left.
    pub fn left(&self, prefix: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let found = entries.filter(|e| e.file_name().to_string_lossy().starts_with(prefix));
        found.map(|e| e.path()).collect()
    }
}

impl Group {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the group's open directory, by which a child begins in the group.
    pub fn directory(&self) -> Arc<OwnedFd> {
        self.directory.clone()
    }

    fn limit(&self, limits: Limits) -> io::Result<()> {
        if let Some(bytes) = limits.memory_bytes {
            fs::write(self.path.join("memory.max"), bytes.to_string())?;
            // Swapping instead would defeat the limit. Kernels without swap have no such file.
            let _ = fs::write(self.path.join("memory.swap.max"), "0");
        }
        if let Some(percent) = limits.cpu_percent {
            fs::write(self.path.join("cpu.max"), format!("{} 100000", u64::from(percent) * 1000))?;
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Processes that are left alone may still be in the group.
        remove(&self.path);
    }
}

/// Removes a control group and the groups below it, as far as they are empty.
pub fn remove(path: &Path) {
    for below in below(path) {
        remove(&below);
    }
    let _ = fs::remove_dir(path);
}

/// Returns the pids of the processes in a control group or in one below it; none if there is no such group.
pub fn members(path: &Path) -> BTreeSet<u32> {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let mut found: BTreeSet<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for below in below(path) {
        found.extend(members(&below));
    }
    found
}

/// Kills all processes in a control group at once, also processes being forked. Does nothing on kernels before 5.14.
pub fn kill(path: &Path) {
    let _ = fs::write(path.join("cgroup.kill"), "1");
}

/// Freezes or thaws a control group with the groups below it. Returns whether this changed anything: not where it was
/// so already, and on kernels before 5.2.
pub fn freeze(path: &Path, still: bool) -> bool {
    is_frozen(path) == Some(!still)
        && fs::write(path.join("cgroup.freeze"), if still { "1" } else { "0" }).is_ok()
}

/// Returns whether somebody has frozen the control group; `None` if there is none, or it cannot be frozen.
pub fn is_frozen(path: &Path) -> Option<bool> {
    fs::read_to_string(path.join("cgroup.freeze")).ok().map(|text| text.trim() == "1")
}

/// Returns whether no process of the control group runs because somebody has frozen it. A group that cannot be frozen,
/// or that is gone, has none that could be told by it, and counts as still.
pub fn stands_still(path: &Path) -> bool {
    let events = fs::read_to_string(path.join("cgroup.events")).unwrap_or_default();
    is_frozen(path) != Some(true) || events.lines().any(|line| line == "frozen 1")
}

fn make_dir(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

fn below(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

/// Counter of the processes that the kernel killed in an attempt's control group because memory ran out. If
/// the group's memory is not accounted separately, the kills in this process's own group count.
#[derive(Clone, Debug)]
pub struct OomKills {
    file: Option<PathBuf>,
    before: u64,
}

impl OomKills {
    /// Starts counting from now. `group`: the attempt's control group, if it has one.
    pub fn begin(group: Option<&Path>) -> OomKills {
        let read = |name| fs::read_to_string(name).unwrap_or_default();
        let (cgroup, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
        let own = place("", &cgroup, &mounts).map(|path| path.join("memory.events"));
        let v1 = place("memory", &cgroup, &mounts).map(|path| path.join("memory.oom_control"));
        let group = group.map(|path| path.join("memory.events"));
        let file = [group, own, v1].into_iter().flatten().find(|file| count(file).is_some());
        OomKills { before: file.as_deref().and_then(count).unwrap_or(0), file }
    }

    pub fn grew(&self) -> bool {
        self.file.as_deref().and_then(count).is_some_and(|now| now > self.before)
    }
}

fn count(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// Returns the directory of this process's group in a hierarchy: version 2 (no controller), or one controller
/// of version 1.
fn place(controller: &str, cgroup: &str, mountinfo: &str) -> Option<PathBuf> {
    let own = cgroup.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match controller {
            "" => number == "0" && controllers.is_empty(),
            name => controllers.split(',').any(|c| c == name),
        };
        is_it.then_some(path)
    })?;
    mountinfo.lines().find_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1)?);
        let is_it = match controller {
            "" => kind == "cgroup2",
            name => kind == "cgroup" && options.split(',').any(|o| o == name),
        };
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // A container sees part of the hierarchy as its root.
        let below = if root == "/" { own } else { own.strip_prefix(root).unwrap_or("/") };
        is_it.then(|| Path::new(&point.replace("\\040", " ")).join(below.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        exit::Exit,
        spawn::Spawner,
        testing::{self, sh},
    };

    #[test]
    fn own_group_is_found_in_the_file_system() {
        let systemd = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        let hybrid = "40 30 0:40 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      41 30 0:41 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let container = "50 30 0:26 /docker/abc /sys/fs/c\\040g ro - cgroup2 cgroup rw";
        for (controller, cgroup, mounts, wanted) in [
            ("", "0::/user.slice/a.scope", systemd, Some("/sys/fs/cgroup/user.slice/a.scope")),
            ("", "0::/", systemd, Some("/sys/fs/cgroup")),
            ("", "4:memory:/x\n0::/y", hybrid, Some("/sys/fs/cgroup/unified/y")),
            ("memory", "4:cpu,memory:/x\n0::/y", hybrid, Some("/sys/fs/cgroup/memory/x")),
            ("", "0::/docker/abc/in", container, Some("/sys/fs/c g/in")),
            ("", "4:memory:/x", hybrid, None),
            ("cpu", "4:cpu:/x", hybrid, None),
            ("", "", "", None),
        ] {
            assert_eq!(place(controller, cgroup, mounts), wanted.map(PathBuf::from), "{controller} {cgroup}");
        }
    }

    fn check_that_a_child_is_in_its_group() {
        let made = ParentGroup::find().and_then(|ground| {
            ground.group(&format!("outlast-test-{}", std::process::id()), Limits::default())
        });
        let group = match made {
            Ok(group) => group,
            Err(e) => return println!("NOT TESTED, no control group can be made here: {e}"),
        };
        let mut command = sh("sleep 300 & env -i setsid sleep 300 & wait");
        command.limits.cgroup = Some(group.directory());
        let child = Spawner::start().unwrap().spawn(command).unwrap();
        assert!(members(group.path()).contains(&child.pid()));
        testing::until("all are in it", || (members(group.path()).len() == 3).then_some(()));
        kill(group.path());
        assert_eq!(child.wait().unwrap(), Exit::signal(9));
        testing::until("nobody is left", || members(group.path()).is_empty().then_some(()));
        let path = group.path().to_owned();
        drop(group);
        assert!(!path.exists());
    }

    /// Makes `clone3` fail for this thread and those that it starts, as old kernels and the filters of containers do.
    fn forbid_clone3() {
        let step = |code: u32, otherwise, k| libc::sock_filter { code: code as u16, jt: 0, jf: otherwise, k };
        let mut steps = [
            // The number of the call is the first word of what a filter sees.
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_clone3 as u32),
            step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
            step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: 4, filter: steps.as_mut_ptr() };
        // SAFETY: the kernel copies the filter.
        let done = unsafe {
            [
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter),
                libc::syscall(libc::SYS_clone3, 0, 0) as i32,
            ]
        };
        assert_eq!((done, io::Error::last_os_error().raw_os_error()), ([0, 0, -1], Some(libc::ENOSYS)));
    }

    #[test]
    fn group_has_its_child_from_the_start_and_kills_all_of_it() {
        check_that_a_child_is_in_its_group();
    }

    #[test]
    fn child_joins_its_group_before_its_program_where_it_cannot_begin_there() {
        let name =
            concat!(module_path!(), "::child_joins_its_group_before_its_program_where_it_cannot_begin_there");
        testing::in_own_process(name, || {
            forbid_clone3();
            check_that_a_child_is_in_its_group();
        });
    }

    #[test]
    fn limits_that_cannot_be_had_are_refused() {
        let limits = Limits { memory_bytes: Some(64 << 20), cpu_percent: None };
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu pids").unwrap();
        let ground = ParentGroup { path: dir.path().into() };
        let refused = ground.group("x", limits).unwrap_err();
        assert!(matches!(refused, Error::NotDelegated { controller: "memory", .. }), "{refused}");
    }
}
