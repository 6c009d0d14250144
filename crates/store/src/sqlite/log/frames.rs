//! Frames of a log file, read as SQLite reads them when it recovers the log, and beyond the end that it finds.

use std::{fs, io, path::Path};

/// Size in bytes of the log's header in SQLite's file format. `FRAME_HEADER` is that of a frame's header.
pub const LOG_HEADER: usize = 32;
pub const FRAME_HEADER: usize = 24;

/// First word of a log. The last bit says that its checksums are over big-endian words.
const MAGIC: u32 = 0x377f_0682;
/// Page size of a store, used where a damaged header does not tell it.
const PAGE: usize = 4096;

/// The two salts of a log, which change when the log restarts from its beginning.
pub type Salts = [u8; 8];
/// SQLite's checksum of a log up to a frame, as the frame's header stores it.
pub type Checksum = [u8; 8];

/// Whole content of a log file.
pub struct Frames {
    bytes: Vec<u8>,
    page: usize,
    is_big_endian: bool,
    /// Salts in the header, `None` if the header is not valid: SQLite then takes the log for empty.
    pub salts: Option<Salts>,
    /// Byte offset of the end of the last committed frame.
    pub committed: u64,
    /// Offset of the first frame that is not valid, or the end of the file.
    valid: usize,
}

impl Frames {
    /// Reads a log. A missing file is an empty log.
    pub fn read(path: &Path) -> io::Result<Frames> {
        match fs::read(path) {
            Ok(bytes) => Ok(Frames::of(bytes)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Frames::of(Vec::new())),
            Err(e) => Err(e),
        }
    }

    pub fn of(bytes: Vec<u8>) -> Frames {
        let mut frames =
            Frames { bytes, page: PAGE, is_big_endian: false, salts: None, committed: 0, valid: LOG_HEADER };
        let Some(header) = frames.bytes.get(..LOG_HEADER) else { return frames };
        let (magic, page) = (word(header, 0), word(header, 8) as usize);
        frames.is_big_endian = magic & 1 == 1;
        if page.is_power_of_two() && (512..=65536).contains(&page) {
            frames.page = page;
        }
        let mut sum = frames.sum([0; 8], &header[..24]);
        if magic & !1 != MAGIC || frames.page != page || sum != header[24..] {
            return frames;
        }
        frames.salts = header[16..24].try_into().ok();
        frames.committed = LOG_HEADER as u64;
        while let Some(frame) = frames.frame(frames.valid) {
            let has_salts = frames.salts.is_some_and(|salts| frame.header[8..16] == salts);
            sum = frames.next(sum, &frame);
            if !has_salts || sum != frame.checksum() || word(frame.header, 0) == 0 {
                break;
            }
            let is_commit = frame.is_commit();
            frames.valid += frames.step();
            if is_commit {
                frames.committed = frames.valid as u64;
            }
        }
        frames
    }

    /// Returns the byte offset of the first frame that is not valid.
    pub fn valid(&self) -> usize {
        self.valid
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the length in bytes of a frame with its header.
    pub fn step(&self) -> usize {
        FRAME_HEADER + self.page
    }

    /// Returns whether the committed part of this log reaches `end`, with `checksum` in the frame that ends there.
    pub fn holds(&self, end: u64, checksum: Checksum) -> bool {
        let frame = usize::try_from(end).ok().and_then(|end| self.frame(end.checked_sub(self.step())?));
        end <= self.committed && frame.is_some_and(|frame| frame.checksum() == checksum)
    }

    /// Returns whether a whole commit and the beginning of another lie behind the first frame that is not valid.
    ///
    /// The checksum of each such frame follows from that of the frame before it. A write that a crash has cut leaves at
    /// most one commit there.
    pub fn goes_on_behind_damage(&self) -> bool {
        let Some(bad) = self.frame(self.valid) else { return false };
        let before = match self.frame(self.valid.wrapping_sub(self.step())) {
            Some(frame) => frame.checksum(),
            None => eight(&self.bytes, 24),
        };
        // The damage is in the frame or in its checksum: the other one of the two is right.
        let seeds = [bad.checksum(), self.next(before, &bad)];
        let salts = self.salts.unwrap_or(eight(bad.header, 8));
        let mut commits = usize::from(bad.is_commit());
        let behind = (self.valid + self.step()..).step_by(self.step()).map_while(|at| self.frame(at));
        let mut behind = behind.take_while(|frame| frame.header[8..16] == salts).peekable();
        let Some(mut sum) = behind.peek().and_then(|f| seeds.into_iter().find(|s| self.follows(*s, f)))
        else {
            return false;
        };
        for frame in behind {
            if !self.follows(sum, &frame) {
                return false;
            }
            if commits > 0 {
                return true;
            }
            commits += usize::from(frame.is_commit());
            sum = frame.checksum();
        }
        false
    }

    /// Returns the first `len` bytes at each place behind the committed part where a frame could begin.
    pub fn gaps(&self, len: usize) -> impl Iterator<Item = &[u8]> {
        let first = (self.committed as usize).max(LOG_HEADER);
        (first..self.bytes.len()).step_by(self.step()).filter_map(move |at| self.bytes.get(at..at + len))
    }

    /// Returns the pages of the committed part with their numbers, the older version of a page first.
    pub fn pages_before_damage(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.pages(LOG_HEADER, self.committed as usize)
    }

    /// Returns whether a commit of this log left the database with fewer than `pages` pages.
    pub fn shrinks_below(&self, pages: u32) -> bool {
        let frames =
            (LOG_HEADER..self.committed as usize).step_by(self.step()).filter_map(|at| self.frame(at));
        frames.filter(Frame::is_commit).any(|frame| word(frame.header, 4) < pages)
    }

    /// Returns the pages behind the committed part with their numbers, except the page of the first frame that is not
    /// valid.
    pub fn pages_behind_damage(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let committed = (self.committed as usize).max(LOG_HEADER);
        self.pages(committed, self.valid).chain(self.pages(self.valid + self.step(), self.bytes.len()))
    }

    fn pages(&self, first: usize, end: usize) -> impl Iterator<Item = (u32, &[u8])> {
        let frames = (first..end).step_by(self.step()).filter_map(|at| self.frame(at));
        frames
            .filter(|frame| self.salts.is_some_and(|own| frame.header[8..16] == own))
            .map(|frame| (word(frame.header, 0), frame.page))
    }

    fn frame(&self, at: usize) -> Option<Frame<'_>> {
        if at < LOG_HEADER {
            return None;
        }
        let bytes = self.bytes.get(at..at.checked_add(self.step())?)?;
        let (header, page) = bytes.split_at(FRAME_HEADER);
        Some(Frame { header, page })
    }

    fn follows(&self, sum: Checksum, frame: &Frame<'_>) -> bool {
        word(frame.header, 0) != 0 && self.next(sum, frame) == frame.checksum()
    }

    /// Returns the checksum of the log up to `frame`, given that of the frame before it.
    fn next(&self, sum: Checksum, frame: &Frame<'_>) -> Checksum {
        self.sum(self.sum(sum, &frame.header[..8]), frame.page)
    }

    fn sum(&self, seed: Checksum, bytes: &[u8]) -> Checksum {
        let (mut a, mut b) = (word(&seed, 0), word(&seed, 4));
        let read = if self.is_big_endian { u32::from_be_bytes } else { u32::from_le_bytes };
        for pair in bytes.as_chunks::<8>().0 {
            let [first, second] =
                [[pair[0], pair[1], pair[2], pair[3]], [pair[4], pair[5], pair[6], pair[7]]];
            a = a.wrapping_add(read(first)).wrapping_add(b);
            b = b.wrapping_add(read(second)).wrapping_add(a);
        }
        let mut sum = [0; 8];
        sum[..4].copy_from_slice(&a.to_be_bytes());
        sum[4..].copy_from_slice(&b.to_be_bytes());
        sum
    }
}

struct Frame<'a> {
    header: &'a [u8],
    page: &'a [u8],
}

impl Frame<'_> {
    fn checksum(&self) -> Checksum {
        eight(self.header, 16)
    }

    fn is_commit(&self) -> bool {
        word(self.header, 4) != 0
    }
}

/// Returns the big-endian 32-bit number at offset `at`. Every number in SQLite's formats is stored so.
pub fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|w| w.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// Returns the eight bytes at offset `at`, zeros behind the end.
pub fn eight(bytes: &[u8], at: usize) -> [u8; 8] {
    bytes.get(at..at + 8).and_then(|found| found.try_into().ok()).unwrap_or_default()
}
