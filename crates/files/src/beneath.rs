//! Directories at and below a root, reached by one name after the other. A symbolic link on the way is never followed,
//! so no path leaves the root, whatever is swapped meanwhile.

use std::{
    ffi::OsStr,
    fs::File,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags},
    io,
};

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens the root itself. Links in its own path are the user's.
pub fn root(path: &Path) -> io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a directory by its name in another.
pub fn child(directory: &OwnedFd, name: &[u8]) -> io::Result<OwnedFd> {
    rustix::fs::openat(directory.as_fd(), OsStr::from_bytes(name), DIRECTORY, Mode::empty())
}

/// Opens a file by its name in a directory, to read it. A pipe that has taken the file's place is not waited for.
pub fn file(directory: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::openat(directory.as_fd(), name, flags, Mode::empty()).map(File::from)
}

/// Opens a directory by its path from the root; the empty path is the root.
pub fn directory(root: &OwnedFd, path: &[u8]) -> io::Result<OwnedFd> {
    let mut at = root.as_fd().try_clone_to_owned().map_err(|_| io::Errno::MFILE)?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        at = child(&at, name)?;
    }
    Ok(at)
}

/// Splits a path into its directory's and its last name.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}
