//! Cache of how each file looked when it was read: a file that still looks the same is not read again.

use std::{collections::HashMap, fs, io, os::unix::fs::OpenOptionsExt as _, path::Path};

use rustix::fs::Stat;

use crate::{
    Id,
    tree::{Reader, Snapshot},
};

/// Facts of a file that change with its content. The time of the last change cannot be set by a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Looks {
    device: u64,
    inode: u64,
    size: u64,
    modified: i64,
    changed: i64,
}

impl Looks {
    pub fn of(stat: &Stat) -> Looks {
        let ns = |seconds: i64, ns: i64| seconds.wrapping_mul(1_000_000_000).wrapping_add(ns);
        Looks {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size as u64,
            modified: ns(stat.st_mtime, stat.st_mtime_nsec as i64),
            changed: ns(stat.st_ctime, stat.st_ctime_nsec as i64),
        }
    }

    /// Returns whether a later change would show: the clock of a file system stands still for some milliseconds.
    pub fn is_settled(&self, walk_began_us: i64) -> bool {
        self.changed / 1000 < walk_began_us - 20_000
    }
}

/// Contents of the files of one root, by path, as they were at its last snapshot.
#[derive(Debug, Default)]
pub struct Cache {
    pub(crate) files: HashMap<Vec<u8>, (Looks, Box<[Id]>)>,
    /// That snapshot. It is not written with the rest.
    pub(crate) last: Option<(Id, Snapshot)>,
}

const HEAD: &[u8; 8] = b"OLCACHE1";

impl Cache {
    /// Reads a cache; one that is missing or damaged is empty.
    pub fn load(path: &Path) -> Cache {
        fs::read(path).ok().and_then(|bytes| read(&bytes)).unwrap_or_default()
    }

    /// Writes the cache, unsynced: losing it costs reading the files again.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let mut out = HEAD.to_vec();
        for (path, (looks, parts)) in &self.files {
            out.extend((path.len() as u32).to_le_bytes());
            out.extend((parts.len() as u32).to_le_bytes());
            out.extend(path);
            for word in [looks.device, looks.inode, looks.size, looks.modified as u64, looks.changed as u64] {
                out.extend(word.to_le_bytes());
            }
            parts.iter().for_each(|part| out.extend(part.0));
        }
        out.extend(Id::of(&out).0);
        let unfinished = path.with_extension(format!("{}.new", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        io::Write::write_all(&mut file, &out)?;
        fs::rename(&unfinished, path)
    }
}

fn read(bytes: &[u8]) -> Option<Cache> {
    let (bytes, digest) = bytes.split_last_chunk::<32>()?;
    if Id::of(bytes).0 != *digest {
        return None;
    }
    let mut reader = Reader { left: bytes.strip_prefix(HEAD)? };
    let mut cache = Cache::default();
    while !reader.left.is_empty() {
        let (path, parts) = (reader.length()?, reader.length()?);
        let path = reader.taken(path)?.to_vec();
        let mut word = || reader.array().map(u64::from_le_bytes);
        let (device, inode, size) = (word()?, word()?, word()?);
        let looks = Looks { device, inode, size, modified: word()? as i64, changed: word()? as i64 };
        cache.files.insert(path, (looks, reader.ids(parts)?));
    }
    Some(cache)
}
