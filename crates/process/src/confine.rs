//! Confinement: a process that leaves its rights behind before it becomes the agent.
//!
//! Directories are hidden below an empty one that nothing can be written to, in a mount namespace of its own. Without
//! root this takes a user namespace, in which the process has the same user; as root, the process becomes another user.
//! Either way it can neither unmount what hides, nor look into processes outside, nor gain rights by a setuid program.
//!
//! A network namespace has one way out: a listener that another process serves. A socket belongs to the namespace in which
//! it was made, whoever holds it. So the process inside makes a listener on its loopback and hands it to its supervisor,
//! which accepts from outside. Nothing else of the network is there.

use std::{
    collections::BTreeSet,
    ffi::CString,
    fs::{self, File, OpenOptions},
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::{Ipv4Addr, TcpListener},
    os::{
        fd::{AsFd as _, AsRawFd as _},
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            fs::OpenOptionsExt as _,
            net::{SocketAddr, UnixStream},
        },
    },
    path::{Path, PathBuf},
    ptr,
};

use rustix::{
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, recvmsg, sendmsg,
    },
    process::{DumpableBehavior, Gid, Uid, set_dumpable_behavior},
    thread::{self, UnshareFlags},
};

use crate::sockets;

/// User of this machine, as `/etc/passwd` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub home: String,
}

/// Reason why this process cannot be confined.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no user of this machine is named {0:?}")]
    NoUser(String),
    #[error("root is held by no namespace: it owns the disk")]
    Root,
    #[error("only root becomes another user")]
    NotRoot,
    #[error("the kernel does not allow it ({step}: {source})")]
    Kernel { step: &'static str, source: io::Error },
}

impl User {
    /// Looks up a user by name. Errors: there is no such user, or it is root.
    pub fn find(name: &str) -> Result<User, Error> {
        let table = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let found = table.lines().find_map(|line| User::read(line).filter(|user| user.name == name));
        match found {
            Some(user) if user.uid == 0 => Err(Error::Root),
            found => found.ok_or_else(|| Error::NoUser(name.to_owned())),
        }
    }

    fn read(line: &str) -> Option<User> {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, ..] = fields[..] else { return None };
        Some(User { name: name.into(), uid: uid.parse().ok()?, gid: gid.parse().ok()?, home: home.into() })
    }
}

/// Confines this process for good: hides the directories, and becomes `user` if one is given.
///
/// Call it while the process has one thread and no secret in memory. Errors: see [`Error`]; the process may be half
/// confined then and must end.
pub fn confine(hidden: &[impl AsRef<Path>], user: Option<&User>) -> Result<(), Error> {
    let failed = |step| move |e: rustix::io::Errno| Error::Kernel { step, source: e.into() };
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    match user {
        None if uid.is_root() => return Err(Error::Root),
        Some(_) if !uid.is_root() => return Err(Error::NotRoot),
        _ => {}
    }
    let flags = if user.is_none() { UnshareFlags::NEWUSER } else { UnshareFlags::empty() };
    // SAFETY: no thread shares what is unshared, and no file descriptor is closed.
    unsafe { thread::unshare_unsafe(flags | UnshareFlags::NEWNS) }.map_err(failed("unshare"))?;
    if user.is_none() {
        map_to_itself(uid, gid)?;
    }
    part_mounts()?;
    for directory in hidden {
        mount(Some(("tmpfs", None)), directory.as_ref(), libc::MS_RDONLY | UNUSABLE)?;
    }
    if let Some(user) = user {
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        thread::set_thread_groups(&[]).map_err(failed("setgroups"))?;
        thread::set_thread_res_gid(gid, gid, gid).map_err(failed("setgid"))?;
        thread::set_thread_res_uid(uid, uid, uid).map_err(failed("setuid"))?;
    }
    thread::set_no_new_privs(true).map_err(failed("no_new_privs"))
}

/// Sockets and directories that lead to processes outside a confined network.
#[derive(Clone, Debug, Default)]
pub struct Ways {
    /// Directories in which such processes make their sockets. Inside they are empty ones that can be written to.
    pub hidden: Vec<PathBuf>,
    /// Sockets that stay open, by their paths.
    pub open: Vec<PathBuf>,
}

impl Ways {
    /// Closes the sockets `outside`, and hides the directories, in the mount namespace that this process has just
    /// entered. A socket that appears later elsewhere stays reachable.
    pub(super) fn close(&self, outside: &BTreeSet<PathBuf>) -> Result<(), Error> {
        part_mounts()?;
        let opened = |path: &PathBuf| {
            let whole = path.canonicalize().ok()?;
            let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&whole).ok()?;
            Some((whole, file))
        };
        let open: Vec<(PathBuf, File)> = self.open.iter().filter_map(opened).collect();
        for directory in self.hidden.iter().filter(|directory| directory.is_dir()) {
            mount(Some(("tmpfs", Some("mode=0700"))), directory, UNUSABLE)?;
        }
        let is_open =
            |path: &Path| path.canonicalize().is_ok_and(|whole| open.iter().any(|(path, _)| *path == whole));
        for path in outside.iter().filter(|path| sockets::is_socket(path) && !is_open(path)) {
            mount(Some(("/dev/null", None)), path, libc::MS_BIND)?;
        }
        let made = |source| Error::Kernel { step: "open socket", source };
        for (path, file) in open.iter().filter(|(path, _)| !sockets::is_socket(path)) {
            path.parent().map_or(Ok(()), fs::create_dir_all).map_err(made)?;
            File::create(path).map_err(made)?;
            mount(Some((&format!("/proc/self/fd/{}", file.as_raw_fd()), None)), path, libc::MS_BIND)?;
        }
        Ok(())
    }
}

/// Gives the user namespace of this process the one user and the one group that the process had outside.
pub(super) fn map_to_itself(uid: Uid, gid: Gid) -> Result<(), Error> {
    let (uid, gid) = (uid.as_raw(), gid.as_raw());
    for (step, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{uid} {uid} 1")),
        ("gid_map", format!("{gid} {gid} 1")),
    ] {
        fs::write(format!("/proc/self/{step}"), text).map_err(|source| Error::Kernel { step, source })?;
    }
    Ok(())
}

/// Parts the mounts of this process's own namespace from those outside: neither sees what the other mounts from now on.
fn part_mounts() -> Result<(), Error> {
    mount(None, Path::new("/"), libc::MS_REC | libc::MS_PRIVATE)
}

/// Flags of a mount whose files are of no use but as files.
const UNUSABLE: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;

/// Mounts on `target`: `what` is a file system and its options, or with MS_BIND a file or directory.
fn mount(what: Option<(&str, Option<&str>)>, target: &Path, flags: libc::c_ulong) -> Result<(), Error> {
    let failed = |source: io::Error| Error::Kernel { step: "mount", source };
    let text = |text: &[u8]| CString::new(text).map_err(|e| failed(e.into()));
    let target = text(target.as_os_str().as_bytes())?;
    let kind = what.map(|(kind, _)| text(kind.as_bytes())).transpose()?;
    let data = what.and_then(|(_, data)| data).map(|data| text(data.as_bytes())).transpose()?;
    let pointer = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
    // SAFETY: the strings end in a zero byte and outlive the call.
    let done =
        unsafe { libc::mount(pointer(&kind), target.as_ptr(), pointer(&kind), flags, pointer(&data).cast()) };
    match done {
        0 => Ok(()),
        _ => Err(failed(io::Error::last_os_error())),
    }
}

/// Leaves this machine's network, for good, for a namespace with nothing but a loopback of its own, and closes the `ways`
/// by which files lead to processes outside. Returns the listener at `port` there; 0 means any.
///
/// The process is in a user namespace, too, in which it has its own user alone: it cannot come back, also as root.
/// Call it where there is one thread. Errors: the kernel does not allow it; the process is of no use then.
pub fn leave(port: u16, ways: &Ways) -> Result<TcpListener, Error> {
    let failed = |step| move |e: rustix::io::Errno| Error::Kernel { step, source: e.into() };
    let wrote = |step| move |source| Error::Kernel { step, source };
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    // The kernel lists the sockets of the network that is left.
    let outside = sockets::outside().map_err(wrote("list of sockets"))?;
    let enter = |more: UnshareFlags| {
        // SAFETY: no thread shares what is unshared, and no file descriptor is closed.
        unsafe { thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS | more) }
            .map_err(failed("unshare"))?;
        map_to_itself(uid, gid)
    };
    enter(UnshareFlags::NEWNET)?;
    ways.close(&outside)?;
    loopback_up().map_err(wrote("loopback"))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(wrote("listen"))?;
    // In a namespace below, what was mounted above cannot be taken away, also by who is root there.
    enter(UnshareFlags::empty())?;
    thread::set_no_new_privs(true).map_err(failed("no_new_privs"))?;
    Ok(listener)
}

/// Brings the interface `lo` of this network namespace up.
fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: a structure of integers and bytes, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the kernel reads the structure, which outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Connects to the process that is to serve a listener, by an abstract name. To be done before [`leave`].
pub fn server(name: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)
}

/// Hands a listener over.
pub fn hand_over(listener: TcpListener, to: &UnixStream) -> io::Result<()> {
    let all = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&all));
    sendmsg(to, &[IoSlice::new(b"l")], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// Receives a listener. Errors: the peer sent none.
pub fn receive(from: &UnixStream) -> io::Result<TcpListener> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut all) => all.next(),
        _ => None,
    });
    descriptors.map(TcpListener::from).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Makes this process non-dumpable: its environment and memory hold provider keys, and an agent runs as the same user.
///
/// From then on other processes of the user can neither trace it nor read its `/proc/PID/environ` and `mem`, and it
/// leaves no core dump. Root still can. Children are dumpable again once they exec. Call it first, since memory that
/// was read before stays known. This process can still read its own `/proc/self`.
pub fn make_nondumpable() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        spawn::Stdin,
        testing::{self, sh},
    };

    #[test]
    fn a_user_is_found_by_name_and_is_not_root() {
        let want = User { name: "ann".into(), uid: 1000, gid: 1001, home: "/home/ann".into() };
        assert_eq!(User::read("ann:x:1000:1001:Ann,,,:/home/ann:/bin/sh"), Some(want));
        assert_eq!(User::read("ann:x:many:1001::/home/ann:/bin/sh"), None);
        assert!(matches!(User::find("root"), Err(Error::Root)));
        assert!(matches!(User::find("nobody at all"), Err(Error::NoUser(_))));
    }

    /// Runs as a user other than root, because root may read everything and the test would show nothing about
    /// `/proc`.
    #[test]
    fn nondumpable_supervisor_hides_its_environment_and_still_starts_readable_children() {
        testing::in_own_process(
            concat!(
                module_path!(),
                "::nondumpable_supervisor_hides_its_environment_and_still_starts_readable_children"
            ),
            || {
                make_nondumpable().unwrap();
                assert_eq!(rustix::process::dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
                let spawner = crate::spawn::Spawner::start().unwrap();
                let stdin = testing::file_with("from the first byte\n");
                // The child reads its own environment (it is dumpable again) and fails on its parent's, unless
                // it is root.
                let script = "read line; [ \"$line\" = 'from the first byte' ] || exit 3; \
                cat /proc/self/environ >/dev/null || exit 4; \
                [ $(id -u) = 0 ] && exit 0; ! cat /proc/$PPID/environ >/dev/null 2>&1 || exit 5";
                let mut command = sh(script);
                command.stdin = Stdin::File(stdin.into());
                assert_eq!(spawner.spawn(command).unwrap().wait().unwrap().to_string(), "finished");
            },
        );
    }
}
