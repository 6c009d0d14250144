//! Changes of a run's files between two snapshots, as people and programs are shown them.

use outlast_core::{
    journal::Entry,
    store::{RunView, Store},
};
use outlast_files::{Change, Node, Objects};
use outlast_view::FileChange;
use similar::{ChangeTag, TextDiff};

use super::history::History;
use crate::{
    program::{context::Context, error::FilesError},
    render::text::clean,
};

/// Largest file whose lines are compared.
const LONGEST: u64 = 1 << 20;

/// Most changes of an entry that are told, and most bytes of their differences.
const MOST: usize = 200;
const MOST_BYTES: usize = 1 << 20;

/// Returns what changed in the files of a run at an entry, and how many changes more there are: in a snapshot's entry what
/// that found changed, in any other what changed from its beginning to the next snapshot, as a call's tools left it.
pub fn at_entry(
    store: &dyn Store,
    context: &Context,
    view: &RunView,
    entry: &Entry,
) -> Result<(Vec<FileChange>, usize), FilesError> {
    let none = Ok((Vec::new(), 0));
    if super::of_run(view).is_none() {
        return none;
    }
    let around = History::read(store, view.run.no)?.around(entry.seq);
    let (Some((before, after)), Some(mut objects)) = (around, super::open(store, context)?) else {
        return none;
    };
    if let Some(place) = store.objects() {
        objects.bring(place, &[before, after])?;
    }
    let changes = outlast_files::diff(&mut objects, &before, &after)?;
    let (mut shown, mut bytes) = (Vec::new(), 0);
    for change in changes.iter().take(MOST) {
        let change = describe(&mut objects, change, bytes < MOST_BYTES)?;
        bytes += change.diff.as_ref().map_or(0, String::len);
        shown.push(change);
    }
    Ok((shown, changes.len().saturating_sub(MOST)))
}

/// Describes a change; `with_diff`: with the lines that differ.
pub fn describe(objects: &mut Objects, change: &Change, with_diff: bool) -> Result<FileChange, FilesError> {
    let what = match (&change.before, &change.after) {
        (None, _) => "added",
        (_, None) => "removed",
        (Some(Node::File { parts: before, .. }), Some(Node::File { parts: after, .. }))
            if before == after =>
        {
            "mode"
        }
        _ if change.is_mode_of_directory() => "mode",
        _ => "changed",
    };
    let is_directory =
        [&change.after, &change.before].into_iter().flatten().next().is_some_and(Node::is_directory);
    let path = format!("{}{}", change.shown(), if is_directory { "/" } else { "" });
    let Some((before, after)) = texts(objects, change)? else {
        return Ok(FileChange { path, what, lines_added: None, lines_removed: None, diff: None });
    };
    let lines = TextDiff::from_lines(&before, &after);
    let count = |tag: ChangeTag| Some(lines.iter_all_changes().filter(|line| line.tag() == tag).count());
    let side = |is_there: bool, prefix: &str| match is_there {
        true => format!("{prefix}/{}", clean(&path)),
        false => "/dev/null".to_owned(),
    };
    let (old, new) = (side(change.before.is_some(), "a"), side(change.after.is_some(), "b"));
    let unified = || lines.unified_diff().context_radius(3).header(&old, &new).to_string();
    Ok(FileChange {
        what,
        lines_added: count(ChangeTag::Insert),
        lines_removed: count(ChangeTag::Delete),
        diff: (with_diff && before != after).then(unified),
        path,
    })
}

/// Returns the texts on both sides of a change; `None` where one is no text, is large, or is no file.
fn texts(objects: &mut Objects, change: &Change) -> Result<Option<(String, String)>, FilesError> {
    let mut text = |node: &Option<Node>| -> Result<Option<String>, FilesError> {
        match node {
            None => Ok(Some(String::new())),
            Some(Node::File { size, parts, .. }) if *size <= LONGEST => {
                let bytes = objects.content(parts)?;
                Ok(String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')))
            }
            Some(_) => Ok(None),
        }
    };
    let (before, after) = (text(&change.before)?, text(&change.after)?);
    Ok(before.zip(after))
}
