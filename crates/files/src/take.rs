//! Takes a snapshot: walks a tree and keeps what is new.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
        unix::fs::MetadataExt as _,
    },
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Stat},
    io::Errno,
};

use crate::{
    Id, beneath,
    cache::{Cache, Looks},
    error::{About as _, Error, shown},
    git,
    objects::{Adding, Objects},
    rules::{Judge, Rules},
    tree::{self, Node, Passed, Snapshot, Tree},
};

/// Size of a part of a large file. Files that differ in one part share the others.
pub(crate) const PART: usize = 4 << 20;
/// Times that a file which changes while it is read is read.
const TRIES: usize = 3;
/// Directories below each other. Each holds a descriptor during the walk.
const DEEPEST: usize = 256;
/// Most files that a snapshot names as unsteady.
const MOST_NAMED: usize = 100;

/// A snapshot that has been taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub id: Id,
    pub snapshot: Snapshot,
    /// Names that are not kept, up to a hundred for each reason but [`Passed::Ignored`], and the number of all.
    pub passed: BTreeMap<Passed, (u64, Vec<String>)>,
}

/// Takes a snapshot of `root`. When it returns, the snapshot is on the disk.
///
/// Nothing in the tree is changed, no symbolic link is followed, and no file of special kind is opened. A file that looks
/// as in `cache` is not read; `cache` becomes that of this snapshot. If nothing has changed since the cache's, it is that one. Errors: `OverLimit`, `Io`; nothing is kept then.
pub fn take(objects: &mut Objects, root: &Path, rules: &Rules, cache: &mut Cache) -> Result<Taken, Error> {
    let _shared = objects.share()?;
    let fd = beneath::root(root).about(|| root.display().to_string())?;
    let stat = rustix::fs::fstat(&fd).about(|| root.display().to_string())?;
    let own = std::fs::metadata(objects.directory()).ok().map(|m| (m.dev(), m.ino()));
    let repository = git::places(root).map(|places| places.read());
    let mut walk = Walk {
        judge: Judge::new(rules, root),
        adding: objects.add()?,
        old: cache,
        new: Cache::default(),
        device: stat.st_dev,
        own,
        began_us: now_us(),
        path: Vec::new(),
        files: 0,
        bytes: 0,
        unsteady: Vec::new(),
        passed: BTreeMap::new(),
    };
    let tree = walk.directory(&fd, (stat.st_dev, stat.st_ino), 0);
    let Walk { mut adding, mut new, files, bytes, unsteady, passed, began_us, .. } = walk;
    let taken = tree.and_then(|tree| {
        let root = root.to_string_lossy().into_owned();
        let snapshot = Snapshot { root, tree, taken_at: began_us, repository, files, bytes, unsteady };
        let is_same = |last: &Snapshot| *last == Snapshot { taken_at: last.taken_at, ..snapshot.clone() };
        if let Some((id, last)) = cache.last.as_ref().filter(|(_, last)| is_same(last))
            && adding.objects.contains(id)
        {
            // Nothing is written where nothing was changed.
            return Ok(Taken { id: *id, snapshot: last.clone(), passed });
        }
        let text = serde_json::to_vec(&snapshot).map_err(io::Error::from).about(|| "snapshot".into())?;
        Ok(Taken { id: adding.put(&text)?, snapshot, passed })
    });
    match taken {
        Ok(taken) => {
            adding.finish()?;
            new.last = Some((taken.id, taken.snapshot.clone()));
            *cache = new;
            Ok(taken)
        }
        Err(e) => {
            adding.abandon();
            Err(e)
        }
    }
}

pub(crate) fn now_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

struct Walk<'a> {
    judge: Judge,
    adding: Adding<'a>,
    old: &'a Cache,
    new: Cache,
    device: u64,
    /// Device and inode of the objects' own directory.
    own: Option<(u64, u64)>,
    began_us: i64,
    /// Path of what is looked at, from the root.
    path: Vec<u8>,
    files: u64,
    bytes: u64,
    unsteady: Vec<String>,
    passed: BTreeMap<Passed, (u64, Vec<String>)>,
}

impl Walk<'_> {
    /// Keeps the directory at the walk's path, and returns its tree.
    fn directory(&mut self, fd: &OwnedFd, place: (u64, u64), depth: usize) -> Result<Id, Error> {
        let names = names(fd).about(|| shown(&self.path))?;
        let has_list = names.binary_search_by(|name| name.as_slice().cmp(b".gitignore")).is_ok();
        let entered = self.judge.enter(fd, &self.path, has_list);
        let mut tree = Tree::with_capacity(names.len());
        let above = self.path.len();
        for name in names {
            if above > 0 {
                self.path.push(b'/');
            }
            self.path.extend(&name);
            let node = self.name(fd, &name, place, depth)?;
            self.path.truncate(above);
            tree.extend(node.map(|node| (name, node)));
        }
        if entered {
            self.judge.leave();
        }
        self.adding.put(&tree::encode(&tree))
    }

    /// Keeps what the walk's path names; `None`: it is gone.
    fn name(
        &mut self,
        fd: &OwnedFd,
        name: &[u8],
        place: (u64, u64),
        depth: usize,
    ) -> Result<Option<Node>, Error> {
        let os_name = OsStr::from_bytes(name);
        let stat = match rustix::fs::statat(fd.as_fd(), os_name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(e).about(|| shown(&self.path)),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_directory = kind == FileType::Directory;
        let name_at = self.path.len() - name.len();
        let is_own = self.own == Some((stat.st_dev, stat.st_ino));
        let why = if is_own {
            Some(Passed::Ours)
        } else {
            self.judge.passes(&self.path, name_at, is_directory, place)
        };
        if let Some(why) = why {
            return Ok(Some(self.pass(why)));
        }
        let kept = match kind {
            FileType::RegularFile => self.file(fd, os_name, &stat),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(fd.as_fd(), os_name, Vec::new());
                let target = target.about(|| shown(&self.path))?.into_bytes();
                self.files += 1;
                Ok(Some(Node::Link { target }))
            }
            FileType::Directory if stat.st_dev != self.device => Ok(Some(self.pass(Passed::OtherFilesystem))),
            FileType::Directory if depth == DEEPEST => Ok(Some(self.pass(Passed::TooDeep))),
            FileType::Directory => match beneath::child(fd, name) {
                Ok(child) => {
                    let tree = self.directory(&child, (stat.st_dev, stat.st_ino), depth + 1)?;
                    Ok(Some(Node::Directory { mode: permissions(&stat), tree }))
                }
                Err(e) => Err(e).about(|| shown(&self.path)),
            },
            FileType::Fifo => Ok(Some(self.pass(Passed::Fifo))),
            FileType::Socket => Ok(Some(self.pass(Passed::Socket))),
            _ => Ok(Some(self.pass(Passed::Device))),
        };
        match kept {
            // It was replaced or removed meanwhile.
            Err(Error::Io { source, .. })
                if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&source.kind())
                    || source.raw_os_error() == Some(Errno::LOOP.raw_os_error()) =>
            {
                self.note_unsteady();
                Ok(None)
            }
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
                Ok(Some(self.pass(Passed::Unreadable)))
            }
            kept => kept,
        }
    }

    /// Keeps a file. One that changes while it is read is read again, and is noted if it never keeps still.
    fn file(&mut self, fd: &OwnedFd, name: &OsStr, stat: &Stat) -> Result<Option<Node>, Error> {
        self.files += 1;
        let mut looks = Looks::of(stat);
        let cached = self.old.files.get(&self.path).filter(|(then, _)| *then == looks);
        if let Some((_, parts)) =
            cached.filter(|(_, parts)| parts.iter().all(|p| self.adding.objects.contains(p)))
        {
            self.bytes += stat.st_size as u64;
            self.new.files.insert(self.path.clone(), (looks, parts.clone()));
            return Ok(Some(Node::File {
                mode: permissions(stat),
                size: stat.st_size as u64,
                parts: parts.to_vec(),
            }));
        }
        let what = || shown(&self.path);
        let mut tries = 0;
        loop {
            tries += 1;
            let mut file = beneath::file(fd, name).about(what)?;
            let before = rustix::fs::fstat(&file).about(what)?;
            if FileType::from_raw_mode(before.st_mode) != FileType::RegularFile {
                return Err(io::Error::from(io::ErrorKind::NotFound)).about(what);
            }
            crate::fault::point("file read").about(what)?;
            let (size, parts) = read(&mut self.adding, &mut file, what)?;
            let after = rustix::fs::fstat(&file).about(what)?;
            let is_steady = Looks::of(&before) == Looks::of(&after) && size == after.st_size as u64;
            looks = Looks::of(&after);
            if is_steady || tries == TRIES {
                if !is_steady {
                    self.note_unsteady();
                } else if looks.is_settled(self.began_us) {
                    self.new.files.insert(self.path.clone(), (looks, parts.clone().into()));
                }
                self.bytes += size;
                return Ok(Some(Node::File { mode: permissions(&after), size, parts }));
            }
        }
    }

    fn pass(&mut self, why: Passed) -> Node {
        let (count, names) = self.passed.entry(why).or_default();
        *count += 1;
        if names.len() < MOST_NAMED && why != Passed::Ignored {
            names.push(shown(&self.path));
        }
        Node::Passed(why)
    }

    fn note_unsteady(&mut self) {
        if self.unsteady.len() < MOST_NAMED {
            self.unsteady.push(shown(&self.path));
        }
    }
}

/// Reads a file to its end and keeps its parts. Returns its size and them.
fn read(
    adding: &mut Adding<'_>,
    file: &mut File,
    what: impl Fn() -> String + Copy,
) -> Result<(u64, Vec<Id>), Error> {
    let (mut size, mut parts) = (0, Vec::new());
    loop {
        let mut part = Vec::new();
        file.take(PART as u64).read_to_end(&mut part).about(what)?;
        if part.is_empty() {
            return Ok((size, parts));
        }
        size += part.len() as u64;
        parts.push(adding.put(&part)?);
    }
}

/// Returns the names of a directory, sorted by their bytes.
fn names(fd: &OwnedFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(fd)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn permissions(stat: &Stat) -> u32 {
    stat.st_mode & 0o7777
}

/// Returns whether a name is now what `node` says: kind, mode and content; `None`: it is not there.
pub(crate) fn is_now(directory: &OwnedFd, os_name: &OsStr, node: &Option<Node>) -> Result<bool, Errno> {
    let stat = match rustix::fs::statat(directory.as_fd(), os_name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(node.is_none()),
        Err(e) => return Err(e),
    };
    Ok(match (node, FileType::from_raw_mode(stat.st_mode)) {
        (Some(Node::Directory { .. }), FileType::Directory) => true,
        (Some(Node::Link { target }), FileType::Symlink) => {
            rustix::fs::readlinkat(directory.as_fd(), os_name, Vec::new())?.as_bytes() == target.as_slice()
        }
        (Some(Node::File { mode, size, parts }), FileType::RegularFile) => {
            if permissions(&stat) != *mode || stat.st_size as u64 != *size {
                return Ok(false);
            }
            let mut file = beneath::file(directory, os_name)?;
            let mut content = Vec::new();
            for part in parts {
                content.clear();
                (&mut file).take(PART as u64).read_to_end(&mut content).map_err(as_errno)?;
                if Id::of(&content) != *part {
                    return Ok(false);
                }
            }
            file.read(&mut [0]).map_err(as_errno)? == 0
        }
        _ => false,
    })
}

/// Returns the number of an error of the kernel.
pub(crate) fn as_errno(e: io::Error) -> Errno {
    Errno::from_io_error(&e).unwrap_or(Errno::IO)
}
