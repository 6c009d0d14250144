//! The agent's output, kept with its run: a file for each attempt, `logs/<attempt>.log` in the run's own
//! directory, with its bytes unchanged.
//!
//! Bounded in size and number: an attempt keeps its last 10 to 20 MiB (`<attempt>.log.1`, then
//! `<attempt>.log`), a run its last 20 attempts. Mode 0600. Not synced: output is part of a run's story, but
//! not of what it must remember.

pub mod plain;
pub mod read;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use outlast_core::words::id::AttemptNo;

/// Size at which a log file is rotated, in bytes. One rotated file is kept.
pub const MOST_BYTES: u64 = 10 << 20;

/// Number of attempts of a run whose logs are kept; older logs are removed.
pub const MOST_ATTEMPTS: i64 = 20;

/// Log of an attempt while it is written.
#[derive(Debug)]
pub struct AttemptLog {
    path: PathBuf,
    file: File,
    /// Number of bytes written to `file`.
    written: u64,
    most: u64,
}

impl AttemptLog {
    /// Begins the log of an attempt, and removes logs of attempts beyond [`MOST_ATTEMPTS`]. The directory
    /// must exist.
    ///
    /// Errors: the file system's.
    pub fn begin(directory: &Path, attempt: AttemptNo) -> io::Result<AttemptLog> {
        for old in read::attempts(directory)?.into_iter().filter(|no| no.0 <= attempt.0 - MOST_ATTEMPTS) {
            for path in [aside(directory, old), current(directory, old)] {
                match fs::remove_file(path) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                    _ => {}
                }
            }
        }
        AttemptLog::open(current(directory, attempt), MOST_BYTES)
    }

    fn open(path: PathBuf, most: u64) -> io::Result<AttemptLog> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
        let written = file.metadata()?.len();
        Ok(AttemptLog { path, file, written, most })
    }

    /// Appends output to the log. Errors: the file system's; part of the bytes may be written then.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.written > 0 && self.written + bytes.len() as u64 > self.most {
            let mut aside = self.path.clone().into_os_string();
            aside.push(ASIDE);
            fs::rename(&self.path, aside)?;
            *self = AttemptLog::open(self.path.clone(), self.most)?;
        }
        self.file.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

const ENDING: &str = ".log";
const ASIDE: &str = ".1";

fn current(directory: &Path, attempt: AttemptNo) -> PathBuf {
    directory.join(format!("{}{ENDING}", attempt.0))
}

fn aside(directory: &Path, attempt: AttemptNo) -> PathBuf {
    directory.join(format!("{}{ENDING}{ASIDE}", attempt.0))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_log_keeps_its_newest_bytes_in_order_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = current(dir.path(), AttemptNo(3));
        let mut log = AttemptLog::open(path.clone(), 10).unwrap();
        for piece in ["aaaa\n", "bbbb\n", "cccc\n", "dddd\n", "a piece larger than a file\n", "e\n"] {
            log.write(piece.as_bytes()).unwrap();
        }
        assert_eq!(
            fs::read_to_string(aside(dir.path(), AttemptNo(3))).unwrap(),
            "a piece larger than a file\n"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "e\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // A log that is opened again is continued.
        AttemptLog::open(path.clone(), 10).unwrap().write(b"f\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "e\nf\n");
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
