//! Finds the directories of a tree in which nothing has changed since a cache.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use rustix::fs::AtFlags;

use crate::{
    beneath,
    cache::{Check, Directory, Looks},
    objects::Objects,
    tree::{self, Node},
};

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
