//! Takes a snapshot: walks a tree and keeps what is new.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Stat},
    io::Errno,
};

use crate::{
    Id, beneath,
    cache::{Cache, Check, Directory, FILE_COST, Looks, Name},
    error::{About as _, Error, shown},
    objects::{Adding, Objects},
    rules::{self, Judge, Rules},
    tree::{self, Node, Passed, Snapshot},
};

/// Size of a part of a large file. Files that differ in one part share the others.
pub(crate) const PART: usize = 4 << 20;
/// Times that a file which changes while it is read is read.
const TRIES: usize = 3;
/// Directories below each other. Each holds a descriptor during the walk.
pub(crate) const DEEPEST: usize = 256;
/// Most files that a snapshot names as unsteady.
const MOST_NAMED: usize = 100;

/// A snapshot that has been taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub id: Id,
    pub snapshot: Snapshot,
    /// Names that are not kept, up to a hundred for each reason but [`Passed::Ignored`], and the number of all.
    pub passed: Unkept,
}

type Unkept = BTreeMap<Passed, (u64, Vec<String>)>;

/// Takes a snapshot of `root`. When it returns, the snapshot is on the disk.
///
/// Nothing in the tree is changed, no symbolic link is followed, and no file of special kind is opened. A file that looks
/// as in `cache` is not read, and a directory that does is not listed; `cache` becomes that of this snapshot. If nothing
/// has changed since the cache's, it is that one. Errors: `OverLimit`, `Io`; nothing is kept then.
pub fn take(objects: &mut Objects, root: &Path, rules: &Rules, cache: &mut Cache) -> Result<Taken, Error> {
    take_at(objects, root, rules, cache, now_us())
}

/// Takes a snapshot at a time that is not after the clock's.
pub(crate) fn take_at(
    objects: &mut Objects,
    root: &Path,
    rules: &Rules,
    cache: &mut Cache,
    began_us: i64,
) -> Result<Taken, Error> {
    let _shared = objects.share()?;
    let what = || root.display().to_string();
    let fd = beneath::root(root).about(what)?;
    let stat = rustix::fs::fstat(&fd).about(what)?;
    let own = std::fs::metadata(objects.directory()).ok().map(|m| (m.dev(), m.ino()));
    let repository = rules::places(root).map(|places| places.read());
    let epoch = objects.epoch();
    let unknown = (cache.whole_in != Some(epoch)).then_some(&*objects);
    let old = cache.root.clone();
    let unchanged = old.as_ref().map_or_else(Vec::new, |old| unchanged(&fd, old, unknown));
    let mut walk = Walk {
        judge: Judge::new(rules, root, own),
        adding: objects.add()?,
        unchanged,
        device: stat.st_dev,
        own,
        began_us,
        path: Vec::new(),
        cost: 0,
        unsteady: Vec::new(),
    };
    let walked = walk.directory(&fd, &stat, 0, old.as_ref().map(|directory| Old { directory, at: 0 }));
    let Walk { mut adding, unsteady, cost, .. } = walk;
    let taken = walked.and_then(|walked| {
        let (files, bytes, passed) = sum(&walked);
        let root = root.to_string_lossy().into_owned();
        let tree = walked.tree;
        let snapshot = Snapshot { root, tree, taken_at: began_us, repository, files, bytes, unsteady };
        let is_same = |last: &Snapshot| *last == Snapshot { taken_at: last.taken_at, ..snapshot.clone() };
        if let Some((id, last)) = cache.last.as_ref().filter(|(_, last)| is_same(last))
            && adding.objects.contains(id)
        {
            // Nothing is written where nothing was changed.
            return Ok((Taken { id: *id, snapshot: last.clone(), passed }, walked));
        }
        let text = serde_json::to_vec(&snapshot).map_err(io::Error::from).about(|| "snapshot".into())?;
        Ok((Taken { id: adding.put(text)?, snapshot, passed }, walked))
    });
    let (taken, walked) = match taken {
        Ok(taken) => taken,
        Err(e) => {
            adding.abandon();
            return Err(e);
        }
    };
    adding.finish()?;
    *cache = Cache {
        root: Some(walked),
        last: Some((taken.id, taken.snapshot.clone())),
        whole_in: Some(epoch),
        unsaved: cache.unsaved + cost,
        all: taken.snapshot.bytes + taken.snapshot.files * FILE_COST,
    };
    Ok(taken)
}

/// Returns the number of files and links, their bytes, and the names that are not kept.
fn sum(root: &Directory) -> (u64, u64, Unkept) {
    let (mut files, mut bytes, mut passed) = (0, 0, Unkept::new());
    root.each(&mut Vec::new(), &mut |path, name| match &name.node {
        Node::File { size, .. } => {
            files += 1;
            bytes += size;
        }
        Node::Link { .. } => files += 1,
        Node::Directory { .. } => {}
        Node::Passed(why) => {
            let (count, names) = passed.entry(*why).or_default();
            *count += 1;
            if names.len() < MOST_NAMED && *why != Passed::Ignored {
                names.push(shown(path));
            }
        }
    });
    (files, bytes, passed)
}

pub(crate) fn now_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

/// An open directory of the walk.
struct Parent<'a> {
    fd: &'a OwnedFd,
    /// Device and inode.
    place: (u64, u64),
    depth: usize,
}

struct Walk<'a> {
    judge: Judge,
    adding: Adding<'a>,
    /// Whether each directory of the cache is unchanged, in the cache's order.
    unchanged: Vec<bool>,
    device: u64,
    /// Device and inode of the objects' own directory.
    own: Option<(u64, u64)>,
    began_us: i64,
    /// Path of what is looked at, from the root.
    path: Vec<u8>,
    /// Cost of what was read.
    cost: u64,
    unsteady: Vec<String>,
}

/// A directory of the cache, with its place in the cache's order.
#[derive(Clone, Copy)]
struct Old<'a> {
    directory: &'a Arc<Directory>,
    at: usize,
}

impl Walk<'_> {
    /// Returns whether a directory is unchanged, and everything below it.
    fn is_whole(&self, old: Old<'_>) -> bool {
        old.directory.rules == self.judge.rules()
            && self.unchanged[old.at..][..old.directory.count].iter().all(|is| *is)
    }

    /// Returns whether a name of an unchanged directory need not be looked at: a directory, with its place in the cache's
    /// order, may have changed below.
    fn stands(&self, name: &Name, at: usize) -> bool {
        match &name.check {
            Check::Below(directory) => self.is_whole(Old { directory, at }),
            Check::Unneeded | Check::Looks(_) | Check::Always => true,
        }
    }

    /// Keeps the directory at the walk's path.
    fn directory(
        &mut self,
        fd: &OwnedFd,
        stat: &Stat,
        depth: usize,
        old: Option<Old<'_>>,
    ) -> Result<Arc<Directory>, Error> {
        if let Some(old) = old.filter(|old| self.is_whole(*old)) {
            return Ok(old.directory.clone());
        }
        let rules = self.judge.rules();
        let same = old.filter(|old| self.unchanged[old.at] && old.directory.rules == rules);
        let listed = match same {
            Some(old) => old.directory.names.iter().map(|name| name.name.clone()).collect(),
            None => names(fd).about(|| shown(&self.path))?,
        };
        let has_list = listed.binary_search_by(|name| name.as_slice().cmp(b".gitignore")).is_ok();
        let entered = self.judge.enter(fd, &self.path, has_list);
        // Places of the names' directories in the cache's order.
        let mut places = Vec::new();
        if let Some(old) = old {
            let mut at = old.at + 1;
            for name in &old.directory.names {
                places.push(at);
                if let Check::Below(below) = &name.check {
                    at += below.count;
                }
            }
        }
        let in_directory = Parent { fd, place: (stat.st_dev, stat.st_ino), depth };
        let (mut names, mut count) = (Vec::with_capacity(listed.len()), 1);
        for name in listed {
            let was = old.and_then(|old| {
                let index = old.directory.name(&name)?;
                Some((&old.directory.names[index], places[index]))
            });
            let kept = match was {
                Some((was, at)) if same.is_some() && self.stands(was, at) => Some(was.clone()),
                _ => {
                    let above = tree::enter(&mut self.path, &name);
                    let kept = self.name(&in_directory, &name, was)?;
                    self.path.truncate(above);
                    kept.map(|(node, check)| Name { name, node, check })
                }
            };
            if let Some(Name { check: Check::Below(below), .. }) = &kept {
                count += below.count;
            }
            names.extend(kept);
        }
        if entered {
            self.judge.leave();
        }
        let tree = self.adding.put(tree::encode(names.iter().map(|name| (&name.name, &name.node))))?;
        let looks = Looks::of(stat).settled(self.began_us);
        Ok(Arc::new(Directory { looks, rules, tree, names, count }))
    }

    /// Keeps what the walk's path names; `None`: it is gone. `was`: what the cache has of it, with the place of the
    /// directory that it may be.
    fn name(
        &mut self,
        parent: &Parent<'_>,
        name: &[u8],
        was: Option<(&Name, usize)>,
    ) -> Result<Option<(Node, Check)>, Error> {
        let os_name = OsStr::from_bytes(name);
        let stat = match rustix::fs::statat(parent.fd.as_fd(), os_name, AtFlags::SYMLINK_NOFOLLOW) {
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
            self.judge.passes(&self.path, name_at, is_directory, parent.place)
        };
        if let Some(why) = why {
            // What is below depends on a list, also on one that is not kept.
            let check = if name == b".gitignore" { self.check(&stat) } else { Check::Unneeded };
            return Ok(Some((Node::Passed(why), check)));
        }
        let passed = |why| Ok(Some((Node::Passed(why), Check::Unneeded)));
        let kept = match kind {
            FileType::RegularFile => self.file(parent.fd, os_name, &stat, was.map(|(was, _)| was)).map(Some),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(parent.fd.as_fd(), os_name, Vec::new());
                let target = target.about(|| shown(&self.path))?.into_bytes();
                Ok(Some((Node::Link { target }, Check::Unneeded)))
            }
            FileType::Directory if stat.st_dev != self.device => {
                Ok(Some((Node::Passed(Passed::OtherFilesystem), Check::Always)))
            }
            FileType::Directory if parent.depth == DEEPEST => passed(Passed::TooDeep),
            FileType::Directory => match beneath::child(parent.fd, name) {
                Ok(child) => {
                    let old = was.and_then(|(was, at)| match &was.check {
                        Check::Below(directory) => Some(Old { directory, at }),
                        _ => None,
                    });
                    let below = self.directory(&child, &stat, parent.depth + 1, old)?;
                    let node = Node::Directory { mode: permissions(&stat), tree: below.tree };
                    Ok(Some((node, Check::Below(below))))
                }
                Err(e) => Err(e).about(|| shown(&self.path)),
            },
            FileType::Fifo => passed(Passed::Fifo),
            FileType::Socket => passed(Passed::Socket),
            _ => passed(Passed::Device),
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
                Ok(Some((Node::Passed(Passed::Unreadable), Check::Always)))
            }
            kept => kept,
        }
    }

    fn check(&self, stat: &Stat) -> Check {
        Looks::of(stat).settled(self.began_us).map_or(Check::Always, Check::Looks)
    }

    /// Keeps a file. One that changes while it is read is read again, and is noted if it never keeps still.
    fn file(
        &mut self,
        fd: &OwnedFd,
        name: &OsStr,
        stat: &Stat,
        was: Option<&Name>,
    ) -> Result<(Node, Check), Error> {
        if let Some(Name { node: Node::File { mode, size, parts }, check: Check::Looks(looks), .. }) = was
            && *looks == Looks::of(stat)
            && parts.iter().all(|part| self.adding.objects.contains(part))
        {
            let node = Node::File { mode: *mode, size: *size, parts: parts.clone() };
            return Ok((node, Check::Looks(*looks)));
        }
        let shown_path = shown(&self.path);
        let what = || shown_path.clone();
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
            self.cost += size + FILE_COST;
            let after = rustix::fs::fstat(&file).about(what)?;
            let is_steady = Looks::of(&before) == Looks::of(&after) && size == after.st_size as u64;
            if is_steady || tries == TRIES {
                let check = if is_steady { self.check(&after) } else { Check::Always };
                if !is_steady {
                    self.note_unsteady();
                }
                return Ok((Node::File { mode: permissions(&after), size, parts }, check));
            }
        }
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
        parts.push(adding.put(part)?);
    }
}

/// Returns the names of a directory, sorted by their bytes.
pub(crate) fn names(fd: &OwnedFd) -> rustix::io::Result<Vec<Vec<u8>>> {
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

// --- Finds the directories of a tree in which nothing has changed since a cache.

/// Directories that a thread looks at before it asks for more.
const AT_ONCE: usize = 64;
/// Most threads. Each holds a descriptor for each directory above the one that it looks at.
const MOST_THREADS: usize = 4;

/// Returns of each directory at and below a root, in the order of the cache, whether it and the files in it look as they
/// did; what is below its directories tells nothing about it. `objects`: what it had must also be in them.
pub(crate) fn unchanged(root: &OwnedFd, cached: &Directory, objects: Option<&Objects>) -> Vec<bool> {
    let mut directories = vec![(Vec::new(), cached)];
    below(cached, &mut Vec::new(), &mut directories);
    let answers: Vec<AtomicBool> = directories.iter().map(|_| AtomicBool::new(false)).collect();
    let next = AtomicUsize::new(0);
    let look = || {
        loop {
            let first = next.fetch_add(AT_ONCE, Ordering::Relaxed);
            let last = directories.len().min(first + AT_ONCE);
            if first >= last {
                return;
            }
            // Directories that are open, each in the one before it.
            let mut open: Vec<(&[u8], OwnedFd)> = Vec::new();
            for ((path, directory), answer) in directories[first..last].iter().zip(&answers[first..]) {
                while open.last().is_some_and(|(above, _)| !is_below(path, above)) {
                    open.pop();
                }
                let (above, nearest) = open.last().map_or((&b""[..], root), |(path, fd)| (*path, fd));
                let Ok(fd) = beneath::directory(nearest, &path[above.len()..]) else { continue };
                answer.store(is_unchanged(&fd, directory, objects), Ordering::Relaxed);
                open.push((path.as_slice(), fd));
            }
        }
    };
    let more = threads(directories.len() / AT_ONCE);
    thread::scope(|scope| {
        (0..more).for_each(|_| drop(scope.spawn(look)));
        look();
    });
    answers.into_iter().map(AtomicBool::into_inner).collect()
}

/// Returns how many threads are worth their start beside the caller's, for some pieces of work.
pub(crate) fn threads(pieces: usize) -> usize {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    pieces.min(processors).min(MOST_THREADS).saturating_sub(1)
}

/// Adds all directories below one, with their paths, each before what is below it.
fn below<'a>(directory: &'a Directory, path: &mut Vec<u8>, all: &mut Vec<(Vec<u8>, &'a Directory)>) {
    for name in &directory.names {
        if let Check::Below(child) = &name.check {
            let above = tree::enter(path, &name.name);
            all.push((path.clone(), child));
            below(child, path, all);
            path.truncate(above);
        }
    }
}

fn is_below(path: &[u8], above: &[u8]) -> bool {
    above.is_empty() || path.strip_prefix(above).is_some_and(|rest| rest.starts_with(b"/"))
}

fn is_unchanged(fd: &OwnedFd, directory: &Directory, objects: Option<&Objects>) -> bool {
    let looks = rustix::fs::fstat(fd).ok().map(|stat| Looks::of(&stat));
    if looks.is_none() || looks != directory.looks || objects.is_some_and(|o| !o.contains(&directory.tree)) {
        return false;
    }
    directory.names.iter().all(|name| match &name.check {
        Check::Unneeded | Check::Below(_) => true,
        Check::Always => false,
        Check::Looks(looks) => {
            let is_kept = match (objects, &name.node) {
                (Some(objects), Node::File { parts, .. }) => parts.iter().all(|part| objects.contains(part)),
                _ => true,
            };
            let name = OsStr::from_bytes(&name.name);
            let now = || rustix::fs::statat(fd.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW);
            is_kept && now().is_ok_and(|stat| Looks::of(&stat) == *looks)
        }
    })
}
