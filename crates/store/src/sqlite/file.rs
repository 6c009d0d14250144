//! Identity of a store's open files: they must stay at their place, and are not carried across a fork.
//!
//! An open file outlives its name. SQLite would go on writing to files that the next process does not find, and
//! that process would pay for everything again.
//!
//! SQLite keeps locks and the index of the log per inode and process. A fork copies what it knows of them, but not the
//! locks: a child that opened an inherited file would write without the locks, and the parent's end would take the
//! log away from under it. So a file that was open at a fork is refused in the child, under any name.

use std::{
    ffi::{CStr, CString},
    fs, io,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use outlast_core::store::Error;

use crate::{
    gate::{FileId, OpenFile, with_open_files},
    process::Maker,
};

/// Longest time in which a file system may give two changes of a directory the same time: FAT counts in two seconds, ext4
/// with small inodes in whole ones, and the kernel's own clock may lag by 10 ms.
const TICK: Duration = Duration::from_millis(2_020);

/// Age up to which an earlier look at the files serves before a decision: about the time that a commit takes, in which
/// the files may go as well. What is decided is acknowledged only after a look of its own, or promises nothing durable.
const LATELY: Duration = Duration::from_millis(1);

/// A store's file that a handle has open. Dropped after the handle's connections.
pub struct StoreFile {
    path: PathBuf,
    open: OpenFile,
    /// Open files of the store; empty until all of them are open.
    files: OnceLock<Files>,
    /// Name of the file that was found missing; empty while none was.
    vanished: OnceLock<String>,
    /// Time of the last look that found all files at their place; `None` before.
    looked: Mutex<Option<Instant>>,
}

/// The files of an open store, each with its identity.
struct Files {
    /// The store by the name it was opened by, its log and the log's index.
    named: [(CString, FileId); 3],
    /// Directory of the database file, its log and the log's index; `None` if the store was opened through a symbolic
    /// link in another directory.
    directory: Option<CString>,
    /// State of the directory when all files were last found; `None` before. The files are all there as long
    /// as this state is unchanged.
    settled: Mutex<Option<Directory>>,
}

/// A directory's identity, and the time of the last change of its names.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Directory {
    id: FileId,
    changed: (i64, i64),
}

impl StoreFile {
    /// Lists the file as open here, before it is opened. Errors: `OpenAtFork`; `Open` if there is no such file.
    pub fn claim(path: &Path) -> Result<StoreFile, Error> {
        let failed = |e: io::Error| Error::Open { place: path.display().to_string(), why: e.to_string() };
        let id = id_of(&c_path(path).map_err(failed)?).map_err(failed)?;
        let open = OpenFile { id, maker: Maker::here() };
        with_open_files(|files| {
            for inherited in files.iter().filter(|file| file.id == id) {
                inherited.maker.refuse_forked(|| path.display().to_string())?;
            }
            files.push(open);
            Ok::<_, Error>(())
        })?;
        Ok(StoreFile {
            path: path.into(),
            open,
            files: OnceLock::new(),
            vanished: OnceLock::new(),
            looked: Mutex::default(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Notes which files a connection has opened. Errors: `Vanished` if the file was replaced meanwhile.
    pub fn opened(&self) -> Result<(), Error> {
        let files = Files::at(&self.path).map_err(|file| self.error(file))?;
        if files.named[0].1 != self.open.id {
            return Err(self.error(self.path.display().to_string()));
        }
        let _ = self.files.set(files);
        Ok(())
    }

    /// Checks that this process opened the files and that they are still at their place. Once they were not, the answer
    /// stays the same: another process may have used them elsewhere since.
    ///
    /// Errors: `OpenAtFork`, `Vanished`.
    pub fn check(&self) -> Result<(), Error> {
        self.refuse_forked()?;
        let now = Instant::now();
        if let Some(file) = self.files.get().and_then(Files::missing) {
            let _ = self.vanished.set(file);
        }
        match self.vanished.get() {
            None => *self.looked() = Some(now),
            Some(file) => return Err(self.error(file.clone())),
        }
        Ok(())
    }

    /// Checks like `check`, without a look at the files if the last one is less than `LATELY` old.
    ///
    /// Errors: `OpenAtFork`, `Vanished`.
    pub fn check_lately(&self) -> Result<(), Error> {
        // First, as a forked process may have inherited a lock that is held.
        self.refuse_forked()?;
        let looked = *self.looked();
        if looked.is_some_and(|at| at.elapsed() < LATELY) && self.vanished.get().is_none() {
            return Ok(());
        }
        self.check()
    }

    fn looked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses the handle in a forked process. Errors: `OpenAtFork`.
    pub fn refuse_forked(&self) -> Result<(), Error> {
        self.open.maker.refuse_forked(|| self.path.display().to_string())
    }

    pub fn is_forked(&self) -> bool {
        self.open.maker.is_forked()
    }

    fn error(&self, file: String) -> Error {
        Error::Vanished { place: self.path.display().to_string(), file }
    }
}

impl Drop for StoreFile {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        with_open_files(|files| {
            if let Some(at) = files.iter().position(|file| *file == self.open) {
                files.swap_remove(at);
            }
        });
    }
}

impl Files {
    /// Identifies the files of the store at `path`. Returns the one that is not there as the error.
    fn at(path: &Path) -> Result<Files, String> {
        let missing = |path: &Path| path.display().to_string();
        // SQLite names the log after the file, not after a link to it.
        let real = std::fs::canonicalize(path).map_err(|_| missing(path))?;
        let identified = |path: &Path| -> Result<(CString, FileId), String> {
            c_path(path).and_then(|c| Ok((id_of(&c)?, c))).map(|(id, c)| (c, id)).map_err(|_| missing(path))
        };
        let beside = |suffix: &str| {
            let mut name = real.clone().into_os_string();
            name.push(suffix);
            identified(Path::new(&name))
        };
        let named = [identified(path)?, beside("-wal")?, beside("-shm")?];
        let is_link = named[0].0.as_bytes() != real.as_os_str().as_bytes();
        let directory = if is_link { None } else { real.parent().and_then(|path| c_path(path).ok()) };
        Ok(Files { named, directory, settled: Mutex::default() })
    }

    /// Returns a file that is not at its place any more. One call of the system while the directory is unchanged.
    fn missing(&self) -> Option<String> {
        let directory = self.directory.as_deref().and_then(Directory::at);
        let settled = || self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        if directory.is_some() && *settled() == directory {
            return None;
        }
        let missing = self.named.iter().find(|(path, id)| id_of(path).ok() != Some(*id));
        if missing.is_none() {
            *settled() = directory.filter(Directory::is_settled);
        }
        missing.map(|(path, _)| path.to_string_lossy().into_owned())
    }
}

impl Directory {
    fn at(path: &CStr) -> Option<Directory> {
        let stat = rustix::fs::stat(path).ok()?;
        Some(Directory {
            id: (stat.st_dev, stat.st_ino),
            changed: (stat.st_mtime, stat.st_mtime_nsec as i64),
        })
    }

    /// Returns whether a later change of the directory would be noticed: the last change is so long ago that another
    /// one would get a different time.
    fn is_settled(&self) -> bool {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let changed =
            Duration::new(self.changed.0.try_into().unwrap_or(0), self.changed.1.try_into().unwrap_or(0));
        since > changed + TICK
    }
}

/// Returns the path as SQLite keeps it: absolute, since the working directory may change.
fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(std::path::absolute(path)?.as_os_str().as_bytes())?)
}

fn id_of(path: &CStr) -> io::Result<FileId> {
    let stat = rustix::fs::stat(path)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Byte of the log's index that SQLite locks to write.
const WRITE_LOCK: u64 = 120;

/// Returns who holds the store's lock, in words; `None` if that cannot be seen from here.
pub fn holder(store: &Path) -> Option<String> {
    let mut index = store.as_os_str().to_owned();
    index.push("-shm");
    let inode = fs::metadata(index).ok()?.ino();
    let pid = of_locks(&fs::read_to_string("/proc/locks").ok()?, inode)?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
    Some(match rest.trim_start().starts_with('T') {
        true => format!(
            "process {pid} ({name}) holds the store's lock and is stopped: `kill -CONT {pid}` lets it go on"
        ),
        false => format!("process {pid} ({name}) holds the store's lock for too long"),
    })
}

/// Returns the process that has locked the index with this inode to write, as `/proc/locks` lists it.
fn of_locks(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let [_, "POSIX", _, "WRITE", pid, file, first, last] = *line.split_whitespace().collect::<Vec<_>>()
        else {
            return None;
        };
        let is_index = file.rsplit_once(':')?.1.parse() == Ok(inode);
        let range = first.parse::<u64>().ok()?..=last.parse().unwrap_or(u64::MAX);
        (is_index && range.contains(&WRITE_LOCK)).then(|| pid.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_serves_for_a_short_time_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("outlast.db");
        for suffix in ["", "-wal", "-shm"] {
            std::fs::write(format!("{}{suffix}", path.display()), "").unwrap();
        }
        let file = StoreFile::claim(&path).unwrap();
        file.opened().unwrap();
        file.check().unwrap();
        std::fs::remove_file(&path).unwrap();
        let start = Instant::now();
        while file.check_lately().is_ok() {
            assert!(start.elapsed() < Duration::from_secs(60), "no look in a minute");
            std::thread::yield_now();
        }
        assert_eq!(file.check().unwrap_err().code(), "store_vanished");
    }

    #[test]
    fn the_holder_is_who_has_locked_the_indexs_byte_to_write() {
        let locks = "1: FLOCK  ADVISORY  WRITE 30366 fe:00:77 0 EOF\n\
                     2: POSIX  ADVISORY  READ 11 fe:00:77 128 128\n\
                     3: POSIX  ADVISORY  WRITE 12 fe:00:78 120 120\n\
                     3: -> POSIX  ADVISORY  WRITE 13 fe:00:77 120 120\n\
                     4: POSIX  ADVISORY  WRITE 14 fe:00:77 121 127\n";
        assert_eq!(of_locks(locks, 77), None);
        for range in ["120 120", "120 127", "0 EOF"] {
            assert_eq!(
                of_locks(&format!("{locks}5: POSIX  ADVISORY  WRITE 15 fe:00:77 {range}\n"), 77),
                Some(15)
            );
        }
    }
}
