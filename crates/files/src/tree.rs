//! Trees and snapshots, as objects.
//!
//! A tree is the sorted list of one directory's names. A name that is not kept is in the list too, with the reason: so
//! that a restoration knows what it must leave alone.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::{
    Id,
    error::{Error, shown},
    objects::Objects,
    rules::Repository,
};

/// File, link or directory that a name of a directory stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Content in parts of [`PART`](crate::take::PART) bytes. `mode`: the permission bits.
    File {
        mode: u32,
        size: u64,
        parts: Vec<Id>,
    },
    Link {
        target: Vec<u8>,
    },
    Directory {
        mode: u32,
        tree: Id,
    },
    Passed(Passed),
}

/// Reason for which a name is not kept. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Passed {
    /// `.gitignore` names it.
    Ignored = 0,
    /// The name is on the list of secrets, or on the user's own list.
    Excluded = 1,
    /// A repository's own files.
    Repository = 2,
    /// Outlast's store.
    Ours = 3,
    Fifo = 4,
    Socket = 5,
    Device = 6,
    /// The process may not read it.
    Unreadable = 7,
    OtherFilesystem = 8,
    TooDeep = 9,
}

impl Passed {
    pub const ALL: [Passed; 10] = [
        Passed::Ignored,
        Passed::Excluded,
        Passed::Repository,
        Passed::Ours,
        Passed::Fifo,
        Passed::Socket,
        Passed::Device,
        Passed::Unreadable,
        Passed::OtherFilesystem,
        Passed::TooDeep,
    ];

    /// Returns as what people are told of the name; `None`: not at all, because a rule of theirs or ours says so.
    pub fn told(self) -> Option<&'static str> {
        match self {
            Passed::Excluded => Some("secrets"),
            Passed::Fifo | Passed::Socket | Passed::Device => Some("no plain files"),
            Passed::Unreadable => Some("not to be read"),
            Passed::OtherFilesystem => Some("on another file system"),
            Passed::TooDeep => Some("too deep"),
            Passed::Ignored | Passed::Repository | Passed::Ours => None,
        }
    }
}

impl Node {
    pub fn is_directory(&self) -> bool {
        matches!(self, Node::Directory { .. })
    }

    pub(crate) fn is_passed(&self) -> bool {
        matches!(self, Node::Passed(_))
    }
}

/// Names of one directory with what they are, sorted by their bytes.
pub(crate) type Tree = Vec<(Vec<u8>, Node)>;

/// A directory tree at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Directory whose tree this is, for people.
    pub root: String,
    pub tree: Id,
    /// Microseconds since the Unix epoch.
    pub taken_at: i64,
    /// Repository to which the root belongs; `None`: to none.
    pub repository: Option<Repository>,
    /// Number of files and links that are kept, and the sum of their sizes in bytes.
    pub files: u64,
    pub bytes: u64,
    /// Files that still changed when they were read for the last time: their content may be of two moments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsteady: Vec<String>,
}

const FILE: u8 = b'f';
const LINK: u8 = b'l';
const DIRECTORY: u8 = b'd';
const PASSED: u8 = b'-';

pub(crate) fn encode<'a>(tree: impl ExactSizeIterator<Item = (&'a Vec<u8>, &'a Node)>) -> Vec<u8> {
    let mut out = Vec::with_capacity(tree.len() * 80);
    tree.for_each(|(name, node)| encode_entry(&mut out, name, node));
    out
}

pub(crate) fn encode_entry(out: &mut Vec<u8>, name: &[u8], node: &Node) {
    let bytes = |out: &mut Vec<u8>, bytes: &[u8]| {
        out.extend((bytes.len() as u32).to_le_bytes());
        out.extend(bytes);
    };
    match node {
        Node::File { mode, size, parts } => {
            out.push(FILE);
            bytes(out, name);
            out.extend(mode.to_le_bytes());
            out.extend(size.to_le_bytes());
            out.extend((parts.len() as u32).to_le_bytes());
            parts.iter().for_each(|part| out.extend(part.0));
        }
        Node::Link { target } => {
            out.push(LINK);
            bytes(out, name);
            bytes(out, target);
        }
        Node::Directory { mode, tree } => {
            out.push(DIRECTORY);
            bytes(out, name);
            out.extend(mode.to_le_bytes());
            out.extend(tree.0);
        }
        Node::Passed(why) => {
            out.push(PASSED);
            bytes(out, name);
            out.push(*why as u8);
        }
    }
}

/// Lengthens a path by a name. Returns its length before, to which it is to be cut.
pub(crate) fn enter(path: &mut Vec<u8>, name: &[u8]) -> usize {
    let above = path.len();
    if above > 0 {
        path.push(b'/');
    }
    path.extend(name);
    above
}

/// Reads a tree. Errors: `Corrupt`, also for names that are out of order, or that would leave their directory.
pub(crate) fn decode(id: Id, bytes: &[u8]) -> Result<Tree, Error> {
    let mut reader = Reader { left: bytes };
    let mut tree = Tree::new();
    while !reader.left.is_empty() {
        let Some((name, node)) = reader.entry() else {
            return Err(Error::Corrupt { what: format!("tree {id}") });
        };
        let in_order = tree.last().is_none_or(|(last, _)| *last < name);
        let is_name =
            !name.is_empty() && name != b"." && name != b".." && !name.iter().any(|b| matches!(b, b'/' | 0));
        if !in_order || !is_name {
            return Err(Error::Corrupt { what: format!("tree {id}") });
        }
        tree.push((name, node));
    }
    Ok(tree)
}

/// Reads a snapshot. Errors: `Corrupt`.
pub(crate) fn snapshot(id: &Id, bytes: &[u8]) -> Result<Snapshot, Error> {
    serde_json::from_slice(bytes).map_err(|_| Error::Corrupt { what: format!("snapshot {id}") })
}

/// Most objects that a walk reads at once.
const AT_ONCE: usize = 512;

/// Adds all objects that snapshots need to `seen`, and returns those that were not in it; the contents of files are not
/// read. `read` returns the contents of objects, in their order.
pub(crate) fn walk(
    snapshots: &[Id],
    seen: &mut HashSet<Id>,
    mut read: impl FnMut(&[Id]) -> Result<Vec<Vec<u8>>, Error>,
) -> Result<Vec<Id>, Error> {
    let mut walked: Vec<Id> = snapshots.iter().copied().filter(|id| seen.insert(*id)).collect();
    let mut trees = Vec::new();
    for ids in walked.chunks(AT_ONCE) {
        for (id, bytes) in ids.iter().zip(read(ids)?) {
            trees.push(snapshot(id, &bytes)?.tree);
        }
    }
    while !trees.is_empty() {
        trees.retain(|id| seen.insert(*id));
        let mut below = Vec::new();
        for ids in trees.chunks(AT_ONCE) {
            for (id, bytes) in ids.iter().zip(read(ids)?) {
                for (_, node) in decode(*id, &bytes)? {
                    match node {
                        Node::File { parts, .. } => {
                            walked.extend(parts.into_iter().filter(|part| seen.insert(*part)));
                        }
                        Node::Directory { tree, .. } => below.push(tree),
                        Node::Link { .. } | Node::Passed(_) => {}
                    }
                }
            }
        }
        walked.append(&mut trees);
        trees = below;
    }
    Ok(walked)
}

/// Reader of numbers and bytes as objects and caches have them.
pub(crate) struct Reader<'a> {
    pub left: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn entry(&mut self) -> Option<(Vec<u8>, Node)> {
        let [kind] = self.array()?;
        let name = self.bytes()?;
        let node = match kind {
            FILE => {
                let (mode, size) = (u32::from_le_bytes(self.array()?), u64::from_le_bytes(self.array()?));
                let count = self.length()?;
                Node::File { mode, size, parts: self.ids(count)? }
            }
            LINK => Node::Link { target: self.bytes()? },
            DIRECTORY => Node::Directory { mode: u32::from_le_bytes(self.array()?), tree: Id(self.array()?) },
            PASSED => {
                let [why] = self.array()?;
                Node::Passed(*Passed::ALL.get(usize::from(why))?)
            }
            _ => return None,
        };
        Some((name, node))
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let length = self.length()?;
        Some(self.taken(length)?.to_vec())
    }

    /// Reads a length, or a number of things.
    pub fn length(&mut self) -> Option<usize> {
        Some(u32::from_le_bytes(self.array()?) as usize)
    }

    pub fn taken(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.left.split_at_checked(length)?;
        self.left = left;
        Some(taken)
    }

    pub fn ids<C: FromIterator<Id>>(&mut self, count: usize) -> Option<C> {
        (0..count).map(|_| self.array().map(Id)).collect()
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, left) = self.left.split_first_chunk()?;
        self.left = left;
        Some(*taken)
    }
}

// --- The difference of two trees.

/// A path that differs between two trees, with what it was before and is after; `None`: not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub path: Vec<u8>,
    pub before: Option<Node>,
    pub after: Option<Node>,
}

impl Change {
    /// Returns the path for people.
    pub fn shown(&self) -> String {
        shown(&self.path)
    }

    /// Returns whether a directory is on both sides, and only its mode differs.
    pub fn is_mode_of_directory(&self) -> bool {
        let is_directory = |node: &Option<Node>| node.as_ref().is_some_and(Node::is_directory);
        is_directory(&self.before) && is_directory(&self.after)
    }
}

/// Returns what differs between two snapshots, a directory before what is in it. A path that either of them does not keep
/// is no difference, nor is anything below it. Errors: `Missing`, `Corrupt`.
pub fn diff(objects: &mut Objects, before: &Id, after: &Id) -> Result<Vec<Change>, Error> {
    let (before, after) = (objects.snapshot(before)?.tree, objects.snapshot(after)?.tree);
    let mut changes = Vec::new();
    trees(objects, &mut Vec::new(), Some(before), Some(after), &mut changes)?;
    Ok(changes)
}

fn trees(
    objects: &mut Objects,
    path: &mut Vec<u8>,
    before: Option<Id>,
    after: Option<Id>,
    changes: &mut Vec<Change>,
) -> Result<(), Error> {
    if before == after {
        return Ok(());
    }
    let mut read = |id: Option<Id>| id.map_or(Ok(Tree::new()), |id| objects.tree(&id));
    let (old, new) = (read(before)?, read(after)?);
    let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
    loop {
        // The lists are sorted: the lower name is next, on one side or on both.
        let name = match (old.peek(), new.peek()) {
            (None, None) => return Ok(()),
            (Some((name, _)), None) | (None, Some((name, _))) => name.clone(),
            (Some((old, _)), Some((new, _))) => old.min(new).clone(),
        };
        let before = old.next_if(|(old, _)| *old == name).map(|(_, node)| node);
        let after = new.next_if(|(new, _)| *new == name).map(|(_, node)| node);
        if before == after || [&before, &after].into_iter().flatten().any(Node::is_passed) {
            continue;
        }
        let above = enter(path, &name);
        let tree_and_mode = |node: &Option<Node>| match node {
            Some(Node::Directory { tree, mode }) => (Some(*tree), Some(*mode)),
            _ => (None, None),
        };
        let ((old_tree, old_mode), (new_tree, new_mode)) = (tree_and_mode(&before), tree_and_mode(&after));
        if old_mode.is_none() || old_mode != new_mode {
            changes.push(Change { path: path.clone(), before, after });
        }
        trees(objects, path, old_tree, new_tree, changes)?;
        path.truncate(above);
    }
}

/// Returns what a path is in a snapshot; `None`: not there. Errors: `Missing`, `Corrupt`.
pub fn at(objects: &mut Objects, snapshot: &Id, path: &[u8]) -> Result<Option<Node>, Error> {
    let mut tree = objects.snapshot(snapshot)?.tree;
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = names.next() {
        let Some((_, node)) = objects.tree(&tree)?.into_iter().find(|(n, _)| n == name) else {
            return Ok(None);
        };
        match node {
            Node::Directory { tree: below, .. } if names.peek().is_some() => tree = below,
            node if names.peek().is_none() => return Ok(Some(node)),
            _ => return Ok(None),
        }
    }
    Ok(None)
}
