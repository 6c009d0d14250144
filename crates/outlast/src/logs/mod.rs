//! The agent's output, kept with its run: a file for each attempt, `logs/<attempt>.log` in the run's own
//! directory, with its bytes unchanged.
//!
//! Bounded in size and number: an attempt keeps its last 10 to 20 MiB (`<attempt>.log.1`, then
//! `<attempt>.log`), a run its last 20 attempts. Mode 0600. Not synced: output is part of a run's story, but
//! not of what it must remember.

pub mod plain;
pub mod read;

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::OwnedFd,
    path::Path,
};

use outlast_core::words::AttemptNo;
use rustix::fs::{AtFlags, OFlags};

use crate::disk::{make_directory, open_below};

/// Size at which a log file is rotated, in bytes. One rotated file is kept.
pub const MOST_BYTES: u64 = 10 << 20;

/// Number of attempts of a run whose logs are kept; older logs are removed.
pub const MOST_ATTEMPTS: i64 = 20;

/// Log of an attempt while it is written.
#[derive(Debug)]
pub struct AttemptLog {
    /// An agent may have replaced the path meanwhile: only the descriptor is used.
    directory: OwnedFd,
    attempt: AttemptNo,
    file: File,
    /// Number of bytes written to `file`.
    written: u64,
    most: u64,
}

impl AttemptLog {
    /// Begins the log of an attempt, and removes logs of attempts beyond [`MOST_ATTEMPTS`]. Makes the directory where
    /// it is missing.
    ///
    /// Errors: the file system's; a link in place of the directory or of the file.
    pub fn begin(directory: &Path, attempt: AttemptNo) -> io::Result<AttemptLog> {
        let opened = make_directory(directory)?;
        for old in read::attempts(directory)?.into_iter().filter(|no| no.0 <= attempt.0 - MOST_ATTEMPTS) {
            for name in [aside(old), current(old)] {
                match rustix::fs::unlinkat(&opened, name, AtFlags::empty()) {
                    Err(rustix::io::Errno::NOENT) | Ok(()) => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
        AttemptLog::open(opened, attempt, MOST_BYTES)
    }

    fn open(directory: OwnedFd, attempt: AttemptNo, most: u64) -> io::Result<AttemptLog> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let file = open_below(&directory, &current(attempt), flags)?;
        let written = file.metadata()?.len();
        Ok(AttemptLog { directory, attempt, file, written, most })
    }

    /// Appends output to the log. Errors: the file system's; part of the bytes may be written then.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.written > 0 && self.written + bytes.len() as u64 > self.most {
            rustix::fs::renameat(
                &self.directory,
                current(self.attempt),
                &self.directory,
                aside(self.attempt),
            )?;
            *self = AttemptLog::open(self.directory.try_clone()?, self.attempt, self.most)?;
        }
        self.file.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

const ENDING: &str = ".log";
const ASIDE: &str = ".1";

/// Returns the name of an attempt's log.
fn current(attempt: AttemptNo) -> String {
    format!("{}{ENDING}", attempt.0)
}

/// Returns the name of the part of an attempt's log that was rotated out.
fn aside(attempt: AttemptNo) -> String {
    format!("{}{ENDING}{ASIDE}", attempt.0)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;
    use crate::disk::open_directory;

    #[test]
    fn a_log_keeps_its_newest_bytes_in_order_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(current(AttemptNo(3)));
        let open = || AttemptLog::open(open_directory(dir.path()).unwrap(), AttemptNo(3), 10).unwrap();
        let mut log = open();
        for piece in ["aaaa\n", "bbbb\n", "cccc\n", "dddd\n", "a piece larger than a file\n", "e\n"] {
            log.write(piece.as_bytes()).unwrap();
        }
        assert_eq!(
            fs::read_to_string(dir.path().join(aside(AttemptNo(3)))).unwrap(),
            "a piece larger than a file\n"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "e\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // A log that is opened again is continued.
        open().write(b"f\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "e\nf\n");
    }

    // Bug: a link in place of a run's `logs`, or of a log in it, was followed. Consequence: an agent had its supervisor
    // write, under a name of its choice, where the agent's own tools may not. Cause: paths were opened as they came.
    #[test]
    fn a_link_that_an_agent_put_there_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (logs, victim) = (dir.path().join("logs"), dir.path().join("victim"));
        fs::create_dir(&victim).unwrap();
        std::os::unix::fs::symlink(&victim, &logs).unwrap();
        AttemptLog::begin(&logs, AttemptNo(1)).unwrap_err();
        fs::remove_file(&logs).unwrap();
        fs::create_dir(&logs).unwrap();
        std::os::unix::fs::symlink(victim.join("mine"), logs.join(current(AttemptNo(1)))).unwrap();
        AttemptLog::begin(&logs, AttemptNo(1)).unwrap_err();
        // A log that was begun stays where it was begun, whatever becomes of the path.
        let mut log = AttemptLog::begin(&logs, AttemptNo(2)).unwrap();
        log.most = 4;
        fs::rename(&logs, dir.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(&victim, &logs).unwrap();
        log.write(b"one\n").unwrap();
        log.write(b"two\n").unwrap();
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
        assert_eq!(fs::read(dir.path().join("moved/2.log")).unwrap(), b"two\n");
    }

    #[test]
    fn logs_of_attempts_long_gone_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        for no in 1..=MOST_ATTEMPTS + 5 {
            AttemptLog::begin(dir.path(), AttemptNo(no)).unwrap().write(b"x").unwrap();
        }
        let kept: Vec<i64> = read::attempts(dir.path()).unwrap().into_iter().map(|no| no.0).collect();
        assert_eq!(kept, (6..=MOST_ATTEMPTS + 5).collect::<Vec<_>>());
    }
}
