//! Collects the bytes that one commit adds to the log, to write them at once when the commit syncs.

/// Largest number of bytes buffered. Further bytes are written to the file as they come.
const MOST: usize = 1 << 20;

/// Size of a frame's header in SQLite's file format. The log's own header is longer.
const FRAME_HEADER: usize = 24;
const LOG_HEADER: usize = 32;

/// Access to the log's file.
pub trait Disk {
    type Error;

    /// Writes without syncing.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Syncs everything in the file, whichever connection wrote it.
    fn sync(&mut self) -> Result<(), Self::Error>;

    /// Writes and syncs only these bytes. Returns false if the file system cannot; any number of the bytes may then
    /// have been written.
    fn write_through(&mut self, at: u64, bytes: &[u8]) -> Result<bool, Self::Error>;
}

/// Bytes after the log's last commit that are no part of the log: the next commit overwrites them.
pub struct Trailer<'a> {
    /// Byte offset of the log's end, where the trailer begins.
    pub at: u64,
    pub bytes: &'a [u8],
}

/// The two salts of a log, which change when the log restarts from its beginning.
type Life = [u8; 8];

/// Buffer for the log frames that one connection's commit writes, until the commit syncs.
///
/// Frames are buffered from a commit's start to its sync; both happen within one statement, under the log's
/// write lock. The frames of a failed commit are never written to the file. Outside a commit, as when a
/// transaction spills its cache, frames go to the file at once. So the file holds everything that was written
/// before the commit, and [`Gathering::before_read`] adds the commit's own frames before a read within the
/// commit.
#[derive(Default)]
pub struct Gathering {
    /// Number of the commit that `bytes` belong to. 0 means no commit.
    commit: u64,
    at: u64,
    bytes: Vec<u8>,
    life: Option<Life>,
    /// Offset up to which this connection has synced this life of the log; `None` if unknown. Bytes that
    /// begin there can be synced alone: no other connection has committed in between.
    on_disk: Option<(u64, Life)>,
}

impl Gathering {
    /// Buffers `bytes` of this commit. Commit 0 writes them to the file directly.
    pub fn write<D: Disk>(
        &mut self,
        disk: &mut D,
        commit: u64,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), D::Error> {
        let kept = self.kept(commit);
        if kept > 0 && (self.at + kept as u64 != at || kept + bytes.len() > MOST) {
            self.put(disk)?;
        }
        if commit == 0 || bytes.len() > MOST {
            self.on_disk = None;
            return disk.write(at, bytes);
        }
        if self.bytes.is_empty() {
            (self.commit, self.at, self.life) = (commit, at, life(at, bytes));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes the buffered bytes of the commit to the file, which is about to be read.
    pub fn before_read<D: Disk>(&mut self, disk: &mut D, commit: u64) -> Result<(), D::Error> {
        if self.kept(commit) > 0 { self.put(disk) } else { Ok(()) }
    }

    /// Puts the buffered bytes, and everything that was written to the file before, on disk.
    ///
    /// The trailer is written together with the bytes if they end where the trailer begins. Otherwise the
    /// bytes are headers that were rewritten, and pages follow them.
    pub fn sync<D: Disk>(
        &mut self,
        disk: &mut D,
        commit: u64,
        trailer: Option<Trailer<'_>>,
    ) -> Result<(), D::Error> {
        let kept = self.kept(commit);
        if kept == 0 {
            return disk.sync();
        }
        if let Some(trailer) = trailer.filter(|trailer| trailer.at == self.at + kept as u64) {
            self.bytes.extend_from_slice(trailer.bytes);
        }
        let follows = self.life.is_some_and(|life| self.on_disk == Some((self.at, life)));
        if !follows || !disk.write_through(self.at, &self.bytes)? {
            self.on_disk = None;
            disk.write(self.at, &self.bytes)?;
            disk.sync()?;
        }
        self.on_disk = self.life.map(|life| (self.at + kept as u64, life));
        self.bytes.clear();
        Ok(())
    }

    /// Drops the buffer, because the file was truncated.
    pub fn forget(&mut self) {
        self.bytes.clear();
        self.on_disk = None;
    }

    /// Returns the byte offset at which this commit's buffered bytes begin, and the log's salts. `None` if nothing is
    /// buffered.
    pub fn begins(&mut self, commit: u64) -> Option<(u64, Life)> {
        if self.kept(commit) > 0 { self.life.map(|life| (self.at, life)) } else { None }
    }

    /// Returns the number of buffered bytes of this commit. Drops the bytes of any other commit.
    pub fn kept(&mut self, commit: u64) -> usize {
        if self.commit != commit {
            self.bytes.clear();
        }
        self.bytes.len()
    }

    fn put<D: Disk>(&mut self, disk: &mut D) -> Result<(), D::Error> {
        self.on_disk = None;
        disk.write(self.at, &self.bytes)?;
        self.bytes.clear();
        Ok(())
    }
}

/// Returns the salts in the header at the start of `bytes`, `None` if there is no header.
fn life(at: u64, bytes: &[u8]) -> Option<Life> {
    let salts = match bytes.len() {
        LOG_HEADER if at == 0 => &bytes[16..24],
        FRAME_HEADER => &bytes[8..16],
        _ => return None,
    };
    salts.try_into().ok()
}
