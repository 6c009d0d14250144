//! Mark beside the store, `<store>-mark`: how far the log was committed, so that a shorter log is noticed.
//!
//! The committing process writes the mark under SQLite's write lock, after the commit is in the log, and does not sync it.
//! A mark was therefore true when it was written. After a kill it covers everything that was acknowledged;
//! after a loss of power the disk may have an older one. An older mark asks less of the log, and never more. Each synced
//! commit carries the mark of the one before it, as a trailer in the log.

use std::{
    collections::hash_map::RandomState,
    fs::File,
    hash::BuildHasher as _,
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::OnceLock,
};

use super::{
    base::{self, Base, Database},
    frames::{Checksum, FRAME_HEADER, Frames, LOG_HEADER, Salts, eight, word},
};

/// First bytes of a mark. The last one is the version of its layout.
const MAGIC: [u8; 8] = *b"outlmrk\x01";
const POINT: usize = 40;
const CACHE: usize = 16;
pub const LEN: usize = 8 + CACHE + 2 * POINT + 8;
/// Length in bytes of a trailer: a mark and the log's base, which is zeros if it is not known.
pub const TRAILER: usize = LEN + base::LEN;

/// End of a commit in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    pub salts: Salts,
    /// Byte offset in the log of the end of the commit's last frame. 0: the log's content is in the database,
    /// and the log was closed.
    pub end: u64,
    pub checksum: Checksum,
    /// Change counter of the database. SQLite only ever raises it, though not with every commit.
    pub counter: u32,
    /// Number of the page in the last frame; `page_sum` is the page's checksum. A database that has this page
    /// has the log's whole content up to this commit.
    pub page: u32,
    pub page_sum: u64,
}

impl Point {
    /// Returns the point for a log that was closed, with all of its content in the database.
    pub fn closed(counter: u32) -> Point {
        Point { counter, ..Point::default() }
    }

    pub fn is_closed(&self) -> bool {
        self.end == 0
    }

    fn to_bytes(self) -> [u8; POINT] {
        let mut bytes = [0; POINT];
        bytes[..8].copy_from_slice(&self.salts);
        bytes[8..16].copy_from_slice(&self.end.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.checksum);
        bytes[24..28].copy_from_slice(&self.counter.to_be_bytes());
        bytes[28..32].copy_from_slice(&self.page.to_be_bytes());
        bytes[32..].copy_from_slice(&self.page_sum.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Point {
        Point {
            salts: eight(bytes, 0),
            end: u64::from_be_bytes(eight(bytes, 8)),
            checksum: eight(bytes, 16),
            counter: word(bytes, 24),
            page: word(bytes, 28),
            page_sum: u64::from_be_bytes(eight(bytes, 32)),
        }
    }
}

/// Page cache in which a commit without a sync still is. A reboot of the kernel, or another disk, makes it another one.
type Cache = [u8; CACHE];

/// Content of a mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    cache: Cache,
    /// End of the newest synced commit.
    synced: Point,
    /// Newest commit. It is in the log for as long as the page cache lives.
    committed: Point,
}

impl Mark {
    /// Returns the point that a log on the disk `device` has to reach now.
    pub fn claim(&self, device: u64) -> Point {
        if self.cache == cache(device) { self.committed } else { self.synced }
    }

    /// Reads the mark in the file at `path`; `Ok(None)` if there is no such file. Errors: `InvalidData` if
    /// the mark is damaged.
    pub fn read(path: &Path) -> io::Result<Option<Mark>> {
        match File::open(path) {
            Ok(file) => Mark::read_from(&file),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn read_from(file: &File) -> io::Result<Option<Mark>> {
        let mut bytes = [0; LEN];
        match file.read_exact_at(&mut bytes, 0) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        // Zeros: a loss of power kept the file's length and not its bytes.
        if bytes == [0; LEN] {
            return Ok(None);
        }
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "its checksum is wrong");
        Mark::from_bytes(&bytes).map(Some).ok_or_else(wrong)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Mark> {
        let (content, stored) = bytes.split_at_checked(LEN - 8)?;
        if !content.starts_with(&MAGIC) || sum(content).to_be_bytes() != stored {
            return None;
        }
        let points = &content[8 + CACHE..];
        Some(Mark {
            cache: content[8..8 + CACHE].try_into().unwrap_or_default(),
            synced: Point::from_bytes(points),
            committed: Point::from_bytes(&points[POINT..]),
        })
    }

    fn to_bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..8 + CACHE].copy_from_slice(&self.cache);
        bytes[8 + CACHE..][..POINT].copy_from_slice(&self.synced.to_bytes());
        bytes[8 + CACHE + POINT..][..POINT].copy_from_slice(&self.committed.to_bytes());
        let sum = sum(&bytes[..LEN - 8]);
        bytes[LEN - 8..].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// Returns the newest synced point of this log, as far as a trailer behind one of its commits names it; `None` if
    /// no trailer does.
    pub fn in_trailers(log: &Frames) -> Option<Point> {
        let marks = log.gaps(LEN).filter_map(Mark::from_bytes).map(|mark| mark.synced);
        marks
            .filter(|point| log.salts == Some(point.salts) && !point.is_closed())
            .max_by_key(|point| point.end)
    }

    /// Records in the mark at `path` that the log's content is in the database and the log about to be deleted. Does
    /// nothing if there is no mark.
    pub fn close(path: &Path) -> io::Result<()> {
        let Some(mark) = Mark::read(path).or_else(damaged_is_none)? else { return Ok(()) };
        Mark::reset(path, mark.committed.counter.max(mark.synced.counter))
    }

    /// Replaces an existing mark by one that requires of the store only that its change counter is at least `counter`.
    ///
    /// Synced: an older version of the mark, which a loss of power may bring back, asks for a log that is gone by then.
    pub fn reset(path: &Path, counter: u32) -> io::Result<()> {
        let closed = Point::closed(counter);
        let mark = Mark { cache: [0; CACHE], synced: closed, committed: closed };
        let file = File::options().write(true).open(path)?;
        file.write_all_at(&mark.to_bytes(), 0)?;
        file.sync_data()
    }
}

/// Returns the path of the mark of the store at `store`.
pub fn path_of(store: &Path) -> PathBuf {
    let mut path = store.as_os_str().to_owned();
    path.push("-mark");
    path.into()
}

/// Writer of the mark of one connection.
#[derive(Default)]
pub struct Marker {
    path: PathBuf,
    /// Opened by the first commit. `None` again when the file cannot be had: a store works without a mark.
    file: Option<File>,
    cache: Cache,
    /// Header of the frame that is being written, and the frame's offset in the log.
    header: ([u8; FRAME_HEADER], u64),
    page_len: u64,
    newest: Option<Point>,
    /// Whether `newest` has not been written to the mark yet.
    is_new: bool,
    /// Mark as it was before the commit that is being synced; `None` if there was none.
    before: Option<Mark>,
    /// Mark as this connection wrote it last; `None` before, and if that failed.
    written: Option<Mark>,
    counter: u32,
    /// Base of the log once it is written behind the mark; `None` before.
    base: Option<Base>,
}

impl Marker {
    pub fn new(path: PathBuf, device: u64) -> Marker {
        Marker { path, cache: cache(device), ..Marker::default() }
    }

    /// Follows what SQLite writes to the log: a frame's header, then its page. Returns whether a commit's end changed.
    pub fn saw(&mut self, at: u64, bytes: &[u8]) -> bool {
        if let Ok(header) = <[u8; FRAME_HEADER]>::try_from(bytes) {
            self.header = (header, at);
            // SQLite writes the headers of a transaction anew when it has overwritten one of its pages.
            let end = at + FRAME_HEADER as u64 + self.page_len;
            let Some(point) = self.newest.as_mut().filter(|point| point.end == end) else { return false };
            point.checksum = eight(&header, 16);
            self.is_new = true;
            return true;
        }
        let (header, header_at) = self.header;
        if at != header_at + FRAME_HEADER as u64 || bytes.len() == LOG_HEADER {
            return false;
        }
        let page = word(&header, 0);
        if page == 1 {
            self.counter = self.counter.max(word(bytes, 24));
        }
        let is_commit = word(&header, 4) != 0;
        if is_commit {
            self.page_len = bytes.len() as u64;
            self.newest = Some(Point {
                salts: eight(&header, 8),
                end: at + self.page_len,
                checksum: eight(&header, 16),
                counter: 0,
                page,
                page_sum: sum(bytes),
            });
            self.is_new = true;
        }
        is_commit
    }

    /// Returns the end of the commit that is about to be synced, and the mark of the commit before it: its trailer.
    /// `None` if there is no new commit. `begins`: byte offset at which the commit begins, and the log's salts; `None`
    /// if they are not known.
    ///
    /// The trailer goes to the disk with the commit, behind its last frame, and the next commit overwrites it. The log
    /// thus says how far it was synced even where a loss of power left an older mark; but for its last commit, which
    /// may be torn. The base says which file the log is of.
    pub fn trailer(
        &mut self,
        begins: Option<(u64, Salts)>,
        database: &Database<'_>,
    ) -> Option<(u64, [u8; TRAILER])> {
        let point = self.newest.filter(|_| self.is_new)?;
        // Where the commit follows our own last one, nobody has written the mark in between.
        let ours = self.written.filter(|mark| begins == Some((mark.committed.end, mark.committed.salts)));
        self.before = ours.or_else(|| self.read());
        let before = self.before.unwrap_or_default();
        self.note_base(point.salts, before.committed.page, database);
        let mut bytes = [0; TRAILER];
        bytes[..LEN].copy_from_slice(&before.to_bytes());
        if let Some(base) = self.base {
            bytes[LEN..].copy_from_slice(&base.to_bytes());
        }
        Some((point.end, bytes))
    }

    /// Writes the mark of the newest commit. If the mark cannot be written, the older one stays, which asks less of the
    /// log.
    ///
    /// The first mark of a log also notes the log's base: pages of `database`.
    pub fn mark(&mut self, is_synced: bool, database: &Database<'_>) {
        let Some(point) = self.newest.filter(|_| std::mem::take(&mut self.is_new)) else { return };
        let mut mark = self.before.take().or_else(|| self.read()).unwrap_or_default();
        let known = if mark.cache == self.cache { mark.committed.counter } else { mark.synced.counter };
        self.counter = self.counter.max(known);
        self.note_base(point.salts, mark.committed.page, database);
        mark.cache = self.cache;
        mark.committed = Point { counter: self.counter, ..point };
        if is_synced {
            mark.synced = mark.committed;
        }
        let is_written =
            self.file.as_ref().is_some_and(|file| file.write_all_at(&mark.to_bytes(), 0).is_ok());
        self.written = is_written.then_some(mark);
        if !is_written {
            self.file = None;
        }
    }

    /// Records the pages of `database` as the base of a log that has none after its mark yet. `newest`: see
    /// `Base::of`.
    fn note_base(&mut self, salts: Salts, newest: u32, database: &Database<'_>) {
        let Some(file) = self.file.as_ref().filter(|_| self.base.is_none_or(|base| base.salts != salts))
        else {
            return;
        };
        let noted = Base::read(file).filter(|base| base.salts == salts);
        self.base = noted.or_else(|| {
            let base = Base::of(salts, newest, database)?;
            base.write(file);
            Some(base)
        });
    }

    /// Reads the mark from its file: other processes write it too, under the same lock.
    fn read(&mut self) -> Option<Mark> {
        if self.file.is_none() {
            let mut how = File::options();
            how.read(true).write(true).create(true).truncate(false).mode(0o600);
            self.file = how.open(&self.path).ok();
        }
        match Mark::read_from(self.file.as_ref()?).or_else(damaged_is_none) {
            Ok(found) => found,
            Err(_) => {
                self.file = None;
                None
            }
        }
    }
}

fn damaged_is_none(e: io::Error) -> io::Result<Option<Mark>> {
    if e.kind() == io::ErrorKind::InvalidData { Ok(None) } else { Err(e) }
}

/// Returns the number of the device that holds the file; 0 if it cannot be determined.
pub fn device(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |found| found.dev())
}

fn cache(device: u64) -> Cache {
    static BOOT: OnceLock<u64> = OnceLock::new();
    let boot = BOOT.get_or_init(|| match std::fs::read("/proc/sys/kernel/random/boot_id") {
        Ok(id) if !id.is_empty() => sum(&id),
        // Equal to no other process's: only what was synced is then asked for.
        _ => RandomState::new().hash_one(0),
    });
    let mut cache = [0; CACHE];
    cache[..8].copy_from_slice(&boot.to_be_bytes());
    cache[8..].copy_from_slice(&device.to_be_bytes());
    cache
}

/// Returns a checksum of `bytes`. Every change of one word changes the checksum.
pub fn sum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let mut lanes = [bytes.len() as u64, 1, 2, 3];
    // Four at a time: no one of them waits for another.
    let mut add = |block: &[u8; 32]| {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = step(*lane, u64::from_le_bytes(*word));
        }
    };
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut last = [0; 32];
    last[..rest.len()].copy_from_slice(rest);
    blocks.iter().chain([&last]).for_each(&mut add);
    lanes.into_iter().fold(0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Database<'static> {
        // SAFETY: no name.
        unsafe { Database::under(std::ptr::null()) }
    }

    /// Writes a frame as SQLite does, and returns where it ends.
    fn frame(marker: &mut Marker, at: u64, commit: u32) -> u64 {
        let mut header = [1; FRAME_HEADER];
        header[4..8].copy_from_slice(&commit.to_be_bytes());
        let page = [at as u8; 512];
        assert!(!marker.saw(at, &header));
        assert_eq!(marker.saw(at + FRAME_HEADER as u64, &page), commit != 0);
        at + (FRAME_HEADER + page.len()) as u64
    }

    #[test]
    fn a_commit_without_a_sync_is_asked_for_by_the_same_boot_on_the_same_disk_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("outlast.db-mark");
        let mut marker = Marker::new(path.clone(), 7);
        let claims = || {
            let mark = Mark::read(&path).unwrap().unwrap();
            [7, 8].map(|device| mark.claim(device).end)
        };
        let spilled = frame(&mut marker, 32, 0);
        let synced = frame(&mut marker, spilled, 9);
        marker.mark(true, &none());
        assert_eq!(claims(), [synced, synced]);
        let committed = frame(&mut marker, synced, 9);
        marker.mark(false, &none());
        assert_eq!(claims(), [committed, synced]);
        // Nothing new: a sync before the next commit is complete asks nothing more.
        marker.mark(true, &none());
        assert_eq!(claims(), [committed, synced]);
        Mark::close(&path).unwrap();
        assert_eq!(claims(), [0, 0]);
    }

    #[test]
    fn a_trailer_has_the_mark_of_the_commit_before_whoever_made_that() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("outlast.db-mark");
        let [mut one, mut other] = [(); 2].map(|()| Marker::new(path.clone(), 7));
        let mut end = 32;
        for (already, is_others) in [false, false, true, true, false, true, true].into_iter().enumerate() {
            let marker = if is_others { &mut other } else { &mut one };
            let begins = end;
            end = frame(marker, begins, 9);
            let (at, trailer) = marker.trailer(Some((begins, [1; 8])), &none()).unwrap();
            assert_eq!(at, end);
            let before = Mark::from_bytes(&trailer[..LEN]).unwrap();
            assert_eq!(before.committed.end, if already == 0 { 0 } else { begins }, "after {already}");
            marker.mark(true, &none());
        }
    }

    #[test]
    fn every_flipped_bit_of_a_mark_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("outlast.db-mark");
        let mut marker = Marker::new(path.clone(), 7);
        frame(&mut marker, 32, 9);
        marker.mark(true, &none());
        let bytes = std::fs::read(&path).unwrap();
        assert!(Mark::from_bytes(&bytes).is_some());
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Mark::from_bytes(&flipped), None, "bit {bit}");
        }
        std::fs::write(&path, [0; LEN]).unwrap();
        assert_eq!(Mark::read(&path).unwrap(), None);
    }
}
