//! Cache of how a tree looked when it was read: what still looks the same is not read again.
//!
//! A cache that is old is right too: what changed after it looks different.

use std::{fs, io, os::unix::fs::OpenOptionsExt as _, path::Path, sync::Arc};

use rustix::fs::Stat;

use crate::{
    Id,
    tree::{self, Node, Reader, Snapshot},
};

/// Facts of a file or a directory that change with its content and its mode. The time of the last change cannot be set
/// by a program.
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

    /// Returns the looks if a later change would show: the clock of a file system stands still for some milliseconds.
    pub fn settled(self, walk_began_us: i64) -> Option<Looks> {
        (self.changed / 1000 < walk_began_us - 20_000).then_some(self)
    }
}

/// A directory as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Directory {
    /// `None`: its names are listed again.
    pub looks: Option<Looks>,
    /// Rules by which its names were judged, without the list of its own.
    pub rules: Id,
    pub tree: Id,
    /// Names, sorted by their bytes.
    pub names: Vec<Name>,
    /// Number of directories at and below it.
    pub count: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub name: Vec<u8>,
    pub node: Node,
    pub check: Check,
}

/// Facts by which a name is known to be what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// The entry cannot change but together with its directory.
    Unneeded,
    Looks(Looks),
    /// The entry is looked at again.
    Always,
    Below(Arc<Directory>),
}

impl Directory {
    pub fn name(&self, name: &[u8]) -> Option<usize> {
        self.names.binary_search_by(|other| other.name.as_slice().cmp(name)).ok()
    }

    /// Calls `deed` with all names at and below the directory, in order, with their paths.
    pub fn each(&self, path: &mut Vec<u8>, deed: &mut impl FnMut(&[u8], &Name)) {
        for name in &self.names {
            let above = tree::enter(path, &name.name);
            deed(path, name);
            if let Check::Below(directory) = &name.check {
                directory.each(path, deed);
            }
            path.truncate(above);
        }
    }
}

/// A root as it was at its last snapshot.
#[derive(Debug, Default)]
pub struct Cache {
    pub(crate) root: Option<Arc<Directory>>,
    /// The last snapshot. It is not written with the rest.
    pub(crate) last: Option<(Id, Snapshot)>,
    /// Epoch of the objects in which they had all of the cache; `None`: not known.
    pub(crate) whole_in: Option<u64>,
    /// Cost of reading what has changed since the cache was last written.
    pub(crate) unsaved: u64,
    /// Cost of reading everything.
    pub(crate) all: u64,
}

/// Cost of reading a file beside that of its bytes.
pub(crate) const FILE_COST: u64 = 4096;
/// Cost above which a cache is written.
const MOST_UNSAVED: u64 = 32 << 20;

const HEAD: &[u8; 8] = b"OLCACHE2";
const UNNEEDED: u8 = 0;
const LOOKS: u8 = 1;
const ALWAYS: u8 = 2;
const BELOW: u8 = 3;

impl Cache {
    /// Reads a cache; one that is missing or damaged is empty.
    pub fn load(path: &Path) -> Cache {
        let root = fs::read(path).ok().and_then(|bytes| read(&bytes));
        Cache { root: root.map(Arc::new), ..Cache::default() }
    }

    /// Writes the cache if losing what is new in it would cost more than that. It is not synced.
    pub fn save(&mut self, path: &Path) -> io::Result<()> {
        let Some(root) = &self.root else { return Ok(()) };
        if self.unsaved == 0 || self.unsaved < MOST_UNSAVED.min(self.all / 16) {
            return Ok(());
        }
        let mut out = HEAD.to_vec();
        write(&mut out, root);
        out.extend(Id::of(&out).0);
        let unfinished = path.with_extension(format!("{}.new", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        io::Write::write_all(&mut file, &out)?;
        fs::rename(&unfinished, path)?;
        self.unsaved = 0;
        Ok(())
    }
}

fn write_looks(out: &mut Vec<u8>, looks: &Looks) {
    for word in [looks.device, looks.inode, looks.size, looks.modified as u64, looks.changed as u64] {
        out.extend(word.to_le_bytes());
    }
}

fn write(out: &mut Vec<u8>, directory: &Directory) {
    match &directory.looks {
        None => out.push(ALWAYS),
        Some(looks) => {
            out.push(LOOKS);
            write_looks(out, looks);
        }
    }
    out.extend(directory.rules.0);
    out.extend(directory.tree.0);
    out.extend((directory.names.len() as u32).to_le_bytes());
    for Name { name, node, check } in &directory.names {
        tree::encode_entry(out, name, node);
        match check {
            Check::Unneeded => out.push(UNNEEDED),
            Check::Always => out.push(ALWAYS),
            Check::Looks(looks) => {
                out.push(LOOKS);
                write_looks(out, looks);
            }
            Check::Below(below) => {
                out.push(BELOW);
                write(out, below);
            }
        }
    }
}

fn read(bytes: &[u8]) -> Option<Directory> {
    let (bytes, digest) = bytes.split_last_chunk::<32>()?;
    if Id::of(bytes).0 != *digest {
        return None;
    }
    let mut reader = Reader { left: bytes.strip_prefix(HEAD)? };
    read_directory(&mut reader)
}

fn read_looks(reader: &mut Reader<'_>) -> Option<Looks> {
    let mut word = || reader.array().map(u64::from_le_bytes);
    let (device, inode, size) = (word()?, word()?, word()?);
    Some(Looks { device, inode, size, modified: word()? as i64, changed: word()? as i64 })
}

fn read_directory(reader: &mut Reader<'_>) -> Option<Directory> {
    let looks = match reader.array()? {
        [LOOKS] => Some(read_looks(reader)?),
        [ALWAYS] => None,
        _ => return None,
    };
    let (rules, tree) = (Id(reader.array()?), Id(reader.array()?));
    let mut count = 1;
    let names = (0..reader.length()?).map(|_| {
        let (name, node) = reader.entry()?;
        let check = match reader.array()? {
            [UNNEEDED] => Check::Unneeded,
            [LOOKS] => Check::Looks(read_looks(reader)?),
            [ALWAYS] => Check::Always,
            [BELOW] => {
                let below = read_directory(reader)?;
                count += below.count;
                Check::Below(Arc::new(below))
            }
            _ => return None,
        };
        Some(Name { name, node, check })
    });
    let names = names.collect::<Option<_>>()?;
    Some(Directory { looks, rules, tree, names, count })
}
