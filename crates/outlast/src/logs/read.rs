//! Reading logs: whole, their last lines, and as they grow.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use outlast_core::words::AttemptNo;

use rustix::fs::{Dir, OFlags};

use super::{ASIDE, ENDING, aside, current, plain};
use crate::disk::{open_below, open_directory};

/// Number of bytes at a log's end that are searched for the last lines. A longer line is cut.
const TAIL_BYTES: u64 = 256 << 10;

/// Returns the attempts that have a log in `directory`, oldest first; none if the directory does not exist.
pub fn attempts(directory: &Path) -> io::Result<Vec<AttemptNo>> {
    let directory = match open_directory(directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let mut found = Vec::new();
    for entry in Dir::new(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        let number = name.strip_suffix(ASIDE).unwrap_or(name).strip_suffix(ENDING);
        found.extend(number.and_then(|n| n.parse().ok()).map(AttemptNo));
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Returns the last `count` lines of an attempt's log as text for people, without control sequences. Reads at most the
/// last `TAIL_BYTES` of a file.
///
/// Returns no lines if there is no log.
pub fn last_lines(directory: &Path, attempt: AttemptNo, count: usize) -> io::Result<Vec<String>> {
    let mut bytes = Vec::new();
    let mut is_cut = false;
    for mut file in files(directory, attempt)? {
        let size = file.metadata()?.len();
        if size > TAIL_BYTES {
            file.seek(SeekFrom::Start(size - TAIL_BYTES))?;
            bytes.clear();
            is_cut = true;
        }
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    }
    let text = plain::text(&bytes);
    let lines: Vec<&str> = text.lines().skip(usize::from(is_cut)).collect();
    let from = lines.len().saturating_sub(count);
    Ok(lines[from..].iter().map(|line| line.to_string()).collect())
}

/// Opens the files of an attempt's log that are there, the rotated one first. No link is followed.
fn files(directory: &Path, attempt: AttemptNo) -> io::Result<Vec<File>> {
    let names = [aside(attempt), current(attempt)];
    let opened = open_directory(directory).and_then(|below| {
        names.iter().filter_map(|name| present(open_below(&below, name, OFlags::RDONLY))).collect()
    });
    present(opened).unwrap_or_else(|| Ok(Vec::new()))
}

/// Returns `None` for what is not there.
fn present<T>(opened: io::Result<T>) -> Option<io::Result<T>> {
    if opened.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::NotFound) { None } else { Some(opened) }
}

/// Reader of an attempt's log that follows it while it grows and is rotated.
#[derive(Debug)]
pub struct Follower {
    directory: PathBuf,
    attempt: AttemptNo,
    /// File that is open, with its inode; `None` if none is.
    open: Option<(File, u64)>,
}

impl Follower {
    pub fn new(directory: &Path, attempt: AttemptNo) -> Follower {
        Follower { directory: directory.to_owned(), attempt, open: None }
    }

    /// Returns what was written since the last call, at first from the start of the log: at most 64 KiB;
    /// empty if there is nothing new.
    ///
    /// Output that was rotated out twice between two calls is lost.
    pub fn more(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let Some((file, inode)) = &mut self.open else {
                match self.next(None)? {
                    Some(next) => self.open = Some(next),
                    None => return Ok(Vec::new()),
                }
                continue;
            };
            let mut bytes = vec![0; 64 << 10];
            let read = file.read(&mut bytes)?;
            if read > 0 {
                bytes.truncate(read);
                return Ok(bytes);
            }
            let inode = *inode;
            match self.next(Some(inode))? {
                // More was written between the read and the look for the next file.
                Some(next) if self.grew()? => drop(next),
                Some(next) => self.open = Some(next),
                None => return Ok(Vec::new()),
            }
        }
    }

    /// Returns whether the open file has bytes that were not read yet.
    fn grew(&mut self) -> io::Result<bool> {
        let Some((file, _)) = &mut self.open else { return Ok(false) };
        Ok(file.stream_position()? < file.metadata()?.len())
    }

    /// Opens the file that follows the one with this inode: the rotated file comes before the current one.
    fn next(&self, after: Option<u64>) -> io::Result<Option<(File, u64)>> {
        let with_inode = |file: File| file.metadata().map(|about| (file, about.ino()));
        let found = files(&self.directory, self.attempt)?.into_iter().map(with_inode);
        let found = found.collect::<io::Result<Vec<_>>>()?;
        let from = after.and_then(|inode| found.iter().position(|f| f.1 == inode)).map_or(0, |at| at + 1);
        Ok(found.into_iter().nth(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::AttemptLog;

    #[test]
    fn a_follower_gets_each_byte_once_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let mut follower = Follower::new(dir.path(), AttemptNo(1));
        assert_eq!(follower.more().unwrap(), b"");
        let mut log = AttemptLog::open(open_directory(dir.path()).unwrap(), AttemptNo(1), 10).unwrap();
        let mut got = Vec::new();
        for n in 0..50 {
            log.write(format!("line {n}\n").as_bytes()).unwrap();
            if n % 3 > 0 {
                got.extend(follower.more().unwrap());
                got.extend(follower.more().unwrap());
            }
        }
        got.extend(follower.more().unwrap());
        assert_eq!(
            String::from_utf8(got).unwrap(),
            (0..50).map(|n| format!("line {n}\n")).collect::<String>()
        );
    }

    #[test]
    fn last_lines_are_plain_and_cross_files() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(last_lines(dir.path(), AttemptNo(1), 3).unwrap(), Vec::<String>::new());
        let below = open_directory(dir.path()).unwrap();
        let mut log = AttemptLog::open(below, AttemptNo(1), 20).unwrap();
        for bytes in [b"first\n".as_slice(), b"th\x1b[31mird\x1b[0m\n", b"bad \xff\nno end"] {
            log.write(bytes).unwrap();
        }
        assert!(dir.path().join(aside(AttemptNo(1))).exists());
        assert_eq!(last_lines(dir.path(), AttemptNo(1), 2).unwrap(), ["bad \u{fffd}", "no end"]);
        assert_eq!(last_lines(dir.path(), AttemptNo(1), 3).unwrap(), ["third", "bad \u{fffd}", "no end"]);
    }
}
