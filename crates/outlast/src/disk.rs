//! Small files: paths beside a file, files that are written as a whole, and directories that an agent can write in too.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};

/// Returns the path with `ending` appended to its name.
pub fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Writes `path`, atomically, synced and with mode 0600. Makes its directory if it does not exist.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(directory(path))?;
    replace(path, &path.with_extension("new"), bytes)
}

/// Replaces `path` by `bytes`, atomically, synced and with mode 0600. They are first written to `fresh`, in the same
/// directory. A link at either place is replaced, and never followed.
pub fn replace(path: &Path, fresh: &Path, bytes: &[u8]) -> io::Result<()> {
    write_new(fresh, bytes)?;
    rename(fresh, path)
}

/// Gives a file that is written its name, which is on the disk when this returns.
pub fn rename(fresh: &Path, path: &Path) -> io::Result<()> {
    fs::rename(fresh, path)?;
    File::open(directory(path))?.sync_all()
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes and syncs a file as [`create_new`] makes it.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes a file of mode 0600 that is not there yet; what a dead writer left at its place is removed.
pub fn create_new(path: &Path) -> io::Result<File> {
    present(fs::remove_file(path))?;
    // `create_new` follows no link that somebody puts there in between.
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Returns what was read, opened or removed; `None` if it is not there.
pub fn present<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Opens a directory of ours that an agent can write in, too. Its files are to be opened below the descriptor.
///
/// Errors: `NotADirectory` where a link or a file stands in its place.
pub fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Opens a directory as [`open_directory`], and makes it with mode 0700 where it is missing.
pub fn make_directory(path: &Path) -> io::Result<OwnedFd> {
    if let Some(opened) = present(open_directory(path))? {
        return Ok(opened);
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    open_directory(path)
}

/// Opens a file below a directory's descriptor, for mode 0600 where it is made. Errors: `FilesystemLoop` for a link.
pub fn open_below(directory: &OwnedFd, name: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?.into())
}
