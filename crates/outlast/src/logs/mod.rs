//! The agent's output, kept with its run: a file for each attempt, `logs/<attempt>.log` in the run's own
//! directory, with its bytes unchanged.
//!
//! Bounded in size and number: an attempt keeps its last 10 to 20 MiB (`<attempt>.log.1`, then
//! `<attempt>.log`), a run its last 20 attempts. Mode 0600. Not synced: output is part of a run's story, but
//! not of what it must remember.

use std::{
    borrow::Cow,
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use outlast_core::{run::token::mask, words::AttemptNo};
use rustix::fs::{AtFlags, Dir, OFlags};

use crate::{
    disk::{make_directory, open_below, open_directory, present},
    render::text::{clean, steers},
};

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
        for old in attempts(directory)?.into_iter().filter(|no| no.0 <= attempt.0 - MOST_ATTEMPTS) {
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

// --- Reading logs: whole, their last lines, and as they grow.

/// Number of bytes at a log's end that are searched for the last lines. A longer line is cut.
const TAIL_BYTES: u64 = 256 << 10;

/// Returns the attempts that have a log in `directory`, oldest first; none if the directory does not exist.
pub fn attempts(directory: &Path) -> io::Result<Vec<AttemptNo>> {
    let Some(directory) = present(open_directory(directory))? else { return Ok(Vec::new()) };
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
    let text = text(&bytes);
    let lines: Vec<&str> = text.lines().skip(usize::from(is_cut)).collect();
    let from = lines.len().saturating_sub(count);
    Ok(lines[from..].iter().map(|line| line.to_string()).collect())
}

/// Opens the files of an attempt's log that are there, the rotated one first. No link is followed.
fn files(directory: &Path, attempt: AttemptNo) -> io::Result<Vec<File>> {
    let names = [aside(attempt), current(attempt)];
    let Some(below) = present(open_directory(directory))? else { return Ok(Vec::new()) };
    let opened = names.iter().map(|name| present(open_below(&below, name, OFlags::RDONLY)));
    opened.filter_map(io::Result::transpose).collect()
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

// --- Terminal output as text, without control sequences.

/// Returns output as it is, but with run tokens masked: agents print the address of their proxy, which holds one.
pub fn masked(bytes: &[u8]) -> Cow<'_, [u8]> {
    match std::str::from_utf8(bytes) {
        Ok(text) => match mask(text) {
            same if same == text => bytes.into(),
            masked => masked.into_bytes().into(),
        },
        Err(_) => bytes.into(),
    }
}

/// Returns terminal output as plain text. Escape sequences and control characters are removed, invalid UTF-8 becomes
/// `U+FFFD`, and of text overwritten by carriage returns only the last remains.
pub fn text(bytes: &[u8]) -> String {
    let bytes = masked(bytes);
    let shown = strip(&bytes, false);
    let mut out = String::with_capacity(shown.len());
    for line in String::from_utf8_lossy(&shown).split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        // Progress bars write over themselves.
        let last = line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
        out.push_str(&clean(&last.replace('\t', "    ")));
        out.push_str(end);
    }
    out
}

/// Returns text that is safe to print on a terminal: colours stay, other control sequences are removed, and any other
/// character that could steer a terminal becomes `U+FFFD`, as invalid UTF-8 does.
pub fn colours(bytes: &[u8]) -> String {
    let bytes = masked(bytes);
    let shown = strip(&bytes, true);
    let is_kept = |c: char| matches!(c, '\x1b' | '\t' | '\r') || !steers(c);
    String::from_utf8_lossy(&shown).chars().map(|c| if is_kept(c) { c } else { '\u{fffd}' }).collect()
}

/// Removes escape sequences (colours stay with `keep_colours`), and control characters except line feed, tab
/// and carriage return.
fn strip(bytes: &[u8], keep_colours: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        match *first {
            0x1b => {
                let length = sequence(rest);
                let (whole, after) = rest.split_at(length);
                if keep_colours && whole.starts_with(b"\x1b[") && whole.ends_with(b"m") && is_plain(whole) {
                    out.extend(whole);
                }
                rest = after;
            }
            b'\n' | b'\t' | b'\r' => {
                out.push(*first);
                rest = tail;
            }
            0..=0x1f | 0x7f => rest = tail,
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// Returns whether a sequence has numbers only, as colours do: `CSI > 4 m` is something else.
fn is_plain(sequence: &[u8]) -> bool {
    sequence[2..sequence.len() - 1].iter().all(|b| b.is_ascii_digit() || matches!(b, b';' | b':'))
}

/// Returns the length of the escape sequence that `bytes` begins with. A truncated one extends to the end.
fn sequence(bytes: &[u8]) -> usize {
    let end = |from: usize, ends: fn(&u8) -> bool| {
        bytes[from..].iter().position(ends).map_or(bytes.len(), |at| from + at + 1)
    };
    match bytes.get(1) {
        None => 1,
        Some(b'[') => end(2, |b| (0x40..=0x7e).contains(b) || *b == 0x1b || *b == b'\n'),
        // Strings (titles, links) end with BEL or ESC \.
        Some(b']' | b'P' | b'X' | b'^' | b'_') => {
            let at = bytes[2..].iter().position(|b| matches!(b, 0x07 | 0x1b | b'\n'));
            match at.map(|at| (at + 2, bytes[at + 2])) {
                None => bytes.len(),
                Some((at, 0x1b)) if bytes.get(at + 1) == Some(&b'\\') => at + 2,
                // Interrupted: the bytes that follow do not belong to it.
                Some((at, 0x1b | b'\n')) => at,
                Some((at, _)) => at + 1,
            }
        }
        Some(0x20..=0x2f) => end(2, |b| (0x30..=0x7e).contains(b)),
        Some(_) => 2,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;
    use crate::{disk::open_directory, logs::AttemptLog};

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
        let kept: Vec<i64> = attempts(dir.path()).unwrap().into_iter().map(|no| no.0).collect();
        assert_eq!(kept, (6..=MOST_ATTEMPTS + 5).collect::<Vec<_>>());
    }

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

    // Bug: Codex printed the address of its proxy. Consequence: the run's token was in `outlast logs`, and so in bug
    // reports. Cause: what an agent printed was passed on as it was.
    #[test]
    fn a_run_token_is_masked_however_the_output_is_shown() {
        let line = b"base_url: http://127.0.0.1:4100/run/ol_AQEAAAABBwAAAAAAAAADAAAAAAAAAAAAAAAAAAAADA/v1";
        let wanted = "base_url: http://127.0.0.1:4100/run/ol_***/v1";
        assert_eq!(text(line), wanted);
        assert_eq!(colours(line), wanted);
        assert_eq!(&*masked(line), wanted.as_bytes());
        assert_eq!(&*masked(b"plain \xff"), b"plain \xff");
    }

    #[test]
    fn what_steers_a_terminal_is_left_out() {
        for (bytes, plain, coloured) in [
            ("a\x1b[31mred\x1b[0m b", "ared b", "a\x1b[31mred\x1b[0m b"),
            ("\x1b[2J\x1b[?25lx\x1b[10;3Hy", "xy", "xy"),
            ("\x1b]0;title\x07x\x1b]8;;http://h\x1b\\link\x1b]8;;\x1b\\", "xlink", "xlink"),
            ("\x1b(Bx\x1b7y\x1b=z", "xyz", "xyz"),
            ("\x1b[>4mx\x1b[?1mx", "xx", "xx"),
            ("10%\r20%\r\nnext", "20%\nnext", "10%\r20%\r\nnext"),
            ("bell\x07 back\x08\x00", "bell back", "bell back"),
            ("cut \x1b[3", "cut ", "cut "),
            ("cut \x1b", "cut ", "cut "),
            ("\x1b]0;never ends\nnext", "\nnext", "\nnext"),
            ("a\u{202e}b", "a\u{fffd}b", "a\u{fffd}b"),
            // The 8-bit form of `ESC [`, as a character of its own.
            (
                "a\u{9b}31mb\u{9d}0;title\u{9c}",
                "a\u{fffd}31mb\u{fffd}0;title\u{fffd}",
                "a\u{fffd}31mb\u{fffd}0;title\u{fffd}",
            ),
        ] {
            assert_eq!(text(bytes.as_bytes()), plain, "{bytes:?}");
            assert_eq!(colours(bytes.as_bytes()), coloured, "{bytes:?}");
        }
        assert_eq!(colours(b"a\x9b31mb"), "a\u{fffd}31mb", "the same as a byte");
        assert_eq!(text(b"bad \xff\xfe"), "bad \u{fffd}\u{fffd}");
    }
}
