//! The difference of two trees.

use crate::{
    Id,
    error::{Error, shown},
    objects::Objects,
    tree::{self, Node, Tree},
};

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
        let above = tree::enter(path, &name);
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
