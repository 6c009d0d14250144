//! What one commit adds to the log's file, kept until it is synced and then written at once.

/// At most this much is kept; what is more is written as it comes.
const MOST: usize = 1 << 20;

/// A frame's header, and the log's own, in SQLite's file format.
const FRAME_HEADER: usize = 24;
const LOG_HEADER: usize = 32;

/// The log's file.
pub trait Disk {
    type Error;

    /// Writes without syncing.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Everything in the file, whoever wrote it, is on disk.
    fn sync(&mut self) -> Result<(), Self::Error>;

    /// Writes, and syncs these bytes alone. False where it cannot: how much was written is open then.
    fn write_through(&mut self, at: u64, bytes: &[u8]) -> Result<bool, Self::Error>;
}

/// The two salts of a log: they change when it begins anew at its start.
type Life = [u8; 8];

/// What one connection's commits write to the log.
///
/// Frames are kept only between a commit's start and its sync, both inside one statement that holds the
/// log's write lock, and only for that commit: those of one that failed are never written. Outside a
/// commit, as when a transaction spills its cache, everything goes to the file at once, and a read
/// within a commit finds in the file what was written before it.
#[derive(Default)]
pub struct Gathering {
    /// Whose frames `bytes` are: the number of a commit. None has 0.
    commit: u64,
    at: u64,
    bytes: Vec<u8>,
    life: Option<Life>,
    /// Up to here this life of the log is on disk, and we wrote what is before: bytes that follow can
    /// be synced alone. Nobody else's commit is between, else ours would not begin here.
    on_disk: Option<(u64, Life)>,
}

impl Gathering {
    /// Takes `bytes` of the commit with this number; writes them where it is 0.
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

    /// Everything that was taken is in the file: it is about to be read.
    pub fn before_read<D: Disk>(&mut self, disk: &mut D, commit: u64) -> Result<(), D::Error> {
        if self.kept(commit) > 0 { self.put(disk) } else { Ok(()) }
    }

    /// Everything that was taken is on disk, and what was in the file before.
    pub fn sync<D: Disk>(&mut self, disk: &mut D, commit: u64) -> Result<(), D::Error> {
        let kept = self.kept(commit);
        if kept == 0 {
            return disk.sync();
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

    /// The file was cut.
    pub fn forget(&mut self) {
        self.bytes.clear();
        self.on_disk = None;
    }

    /// How many bytes of this commit wait for its sync. Those of any other are dropped.
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

/// The life that the header at the start of `bytes` tells. None: it is no header.
fn life(at: u64, bytes: &[u8]) -> Option<Life> {
    let salts = match bytes.len() {
        LOG_HEADER if at == 0 => &bytes[16..24],
        FRAME_HEADER => &bytes[8..16],
        _ => return None,
    };
    salts.try_into().ok()
}
