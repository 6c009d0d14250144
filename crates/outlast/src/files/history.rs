//! The snapshots of a run, in the order of its journal, and the effects that a restoration of files does not undo: the
//! run's tool calls that may have changed something elsewhere.

use std::collections::{HashMap, HashSet};

use outlast_core::{
    engine::tool::SCOPE,
    journal::{Entry, Kind, Role, State},
    reads::entries,
    store::{self, RunView, Store},
    words::{AttemptNo, Micros, RunNo, Seq},
};
use outlast_files::{Change, Id, Node, Objects};
use outlast_server::{dialect::conversation, door::StoredAnswer};
use outlast_view::FileChange;
use serde::Serialize;
use similar::{ChangeTag, TextDiff};

use super::{Files, Kept, Moment, is_snapshot};
use crate::{
    program::{context::Context, error::FilesError},
    render::text::clean,
};

/// One snapshot with its place in the journal.
#[derive(Clone, Debug)]
pub struct Step {
    pub kept: Kept,
    /// Entry that holds the snapshot.
    entry: Seq,
    /// Entry that the snapshot belongs to: its call's, else its own.
    pub at: Seq,
    pub attempt: AttemptNo,
    pub taken_at: Micros,
    /// Whether a finished step or item of a program left the files so.
    pub is_finished: bool,
}

/// Snapshots of a run, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub steps: Vec<Step>,
}

impl History {
    /// Reads the run's snapshots. Errors: the store's; `Corrupt` for one that is none.
    pub fn read(store: &dyn Store, run: RunNo) -> Result<History, store::Error> {
        let (mut steps, mut states) = (Vec::new(), HashMap::new());
        for entry in entries::each(store, run) {
            let entry = entry?;
            if let (Kind::Step | Kind::Item, Some(key)) = (entry.kind, &entry.key) {
                states.insert(key.clone(), entry.state);
            }
            if !is_snapshot(&entry) {
                continue;
            }
            let corrupt =
                || store::Error::Corrupt { what: format!("the snapshot of files at entry {}", entry.seq) };
            let value = store.payload(run, entry.seq, Role::Value)?.ok_or_else(corrupt)?;
            let value = value.decode().map_err(|_| corrupt())?;
            let kept: Kept = serde_json::from_slice(&value).map_err(|_| corrupt())?;
            let at = kept.call.map_or(entry.seq, Seq);
            // A death can come between a step's snapshot and its record.
            let is_done = |key: &String| states.get(key) == Some(&State::Done);
            let is_finished = kept.moment.is_an_end() && kept.key.as_ref().is_none_or(is_done);
            steps.push(Step {
                kept,
                entry: entry.seq,
                at,
                attempt: entry.attempt,
                taken_at: entry.opened_at,
                is_finished,
            });
        }
        Ok(History { steps })
    }

    /// Returns all snapshots, oldest first.
    pub fn snapshots(&self) -> Vec<Id> {
        self.steps.iter().map(|step| step.kept.snapshot).collect()
    }

    pub fn newest(&self) -> Option<&Step> {
        self.steps.last()
    }

    /// Returns the files as they were when an entry began; `None`: the run has no snapshot of before it.
    pub fn at(&self, entry: Seq) -> Option<Id> {
        self.steps.iter().rev().find(|step| step.at <= entry).map(|step| step.kept.snapshot)
    }

    /// Returns the files as the last finished tool left them: as they were when the last call left. `last_call`: its
    /// entry; `None` for a run without one.
    pub fn at_last_tool(&self, last_call: Option<Seq>) -> Option<Id> {
        match last_call {
            Some(call) => self.at(call),
            None => self.steps.first().map(|step| step.kept.snapshot),
        }
    }

    /// Returns the tool calls of a run since one of its snapshots was first taken. Errors: the store's.
    pub fn called_since(&self, store: &dyn Store, run: RunNo, of: &Id) -> Result<Vec<Effect>, store::Error> {
        let (mut calls, mut seen) = (Vec::new(), HashSet::new());
        let Some(step) = self.steps.iter().find(|step| step.kept.snapshot == *of) else { return Ok(calls) };
        for entry in entries::each(store, run) {
            let entry = entry?;
            if entry.seq >= step.at && entry.kind == Kind::Call && entry.state == State::Done {
                calls.extend(called(store, run, entry.seq, &mut seen)?);
            }
        }
        Ok(calls)
    }

    /// Returns whether the newest snapshot was taken on another machine than `files` are of.
    pub fn is_elsewhere(&self, files: &Files) -> bool {
        self.newest().is_some_and(|step| step.kept.taken_in != files.own_name)
    }

    /// Returns the files as the last finished step of a program left them, or as the run began; `None` without a snapshot.
    pub fn at_last_step(&self) -> Option<Id> {
        let finished = self.steps.iter().rev().find(|step| step.is_finished);
        finished.or(self.steps.first()).map(|step| step.kept.snapshot)
    }

    /// Returns whether the newest snapshot is of later than the last finished step.
    pub fn is_left(&self) -> bool {
        self.steps.len() > 1 && self.newest().is_some_and(|step| !step.is_finished)
    }

    /// Returns two snapshots that tell what changed at an entry: its own and the one before; or, of an entry without one, those
    /// around what it did. `None`: there are no two.
    pub fn around(&self, entry: Seq) -> Option<(Id, Id)> {
        let own = self.steps.iter().position(|step| step.entry == entry);
        let after = own.or_else(|| self.steps.iter().position(|step| step.at > entry))?;
        Some((self.before(after)?, self.steps[after].kept.snapshot))
    }

    /// Returns the snapshot before a step, with which its changes are told; `None` for the first.
    pub fn before(&self, index: usize) -> Option<Id> {
        self.steps[..index].last().map(|step| step.kept.snapshot)
    }

    /// Returns how many changes of paths the run has made, a path counted in each snapshot that has another of it, and how
    /// many of them after its last call: what no finished tool is known to have left.
    pub fn changed(&self, last_call: Option<Seq>) -> (u64, u64) {
        let (mut all, mut after) = (0, 0);
        for step in &self.steps {
            if step.kept.moment == Moment::Restored {
                after = 0;
                continue;
            }
            all += step.kept.changed;
            if last_call.is_some_and(|call| step.at > call) {
                after += step.kept.changed;
            }
        }
        (all, after)
    }
}

/// Returns the entry of a run's newest call; `None` for a run without one.
pub fn last_call(store: &dyn Store, view: &RunView) -> Result<Option<Seq>, store::Error> {
    for entry in entries::each_back(store, view.run.no, view.run.next_seq) {
        let entry = entry?;
        if entry.kind == Kind::Call {
            return Ok(Some(entry.seq));
        }
    }
    Ok(None)
}

/// Tools of known agents that only read and write files, by their names. Any other may have effects elsewhere.
const FILE_TOOLS: [&str; 22] = [
    "apply_patch",
    "edit",
    "edit_file",
    "glob",
    "grep",
    "list",
    "list_directory",
    "ls",
    "multiedit",
    "notebookedit",
    "patch",
    "read",
    "read_file",
    "read_many_files",
    "replace",
    "search_file_content",
    "str_replace_based_edit_tool",
    "todowrite",
    "update_plan",
    "view",
    "write",
    "write_file",
];

/// Tool call, or approval, that stays as it is when files are brought back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Effect {
    /// Entry of the call of whose answer it is a part, or its own.
    pub entry: i64,
    pub tool: String,
    pub input: String,
}

/// Returns the effects of a run's entries from `from` on. Errors: the store's.
pub fn since(store: &dyn Store, run: RunNo, from: Seq) -> Result<Vec<Effect>, store::Error> {
    let (mut effects, mut seen) = (Vec::new(), HashSet::new());
    for entry in entries::each(store, run) {
        let entry = entry?;
        if entry.seq < from {
            continue;
        }
        let name = entry.key.clone().unwrap_or_default();
        match entry.kind {
            Kind::Call if entry.state == State::Done => {
                let calls = called(store, run, entry.seq, &mut seen)?.into_iter();
                effects.extend(calls.filter(|call| !FILE_TOOLS.contains(&call.tool.to_lowercase().as_str())));
            }
            // Those of an agent's hooks are in the answers, too.
            Kind::Tool if &*entry.scope != SCOPE && entry.state != State::Void => {
                effects.push(Effect { entry: entry.seq.0, tool: name, input: String::new() });
            }
            Kind::Step if entry.state == State::Done => {
                effects.push(Effect { entry: entry.seq.0, tool: "step".into(), input: name });
            }
            Kind::Approval => {
                effects.push(Effect { entry: entry.seq.0, tool: "approval".into(), input: name });
            }
            _ => {}
        }
    }
    Ok(effects)
}

/// Returns the tool calls of an answer that are not among those `seen`, and adds them.
fn called(
    store: &dyn Store,
    run: RunNo,
    entry: Seq,
    seen: &mut HashSet<String>,
) -> Result<Vec<Effect>, store::Error> {
    let kept = store.payload(run, entry, Role::Answer)?.and_then(|kept| kept.decode().ok());
    // `outlast verify` reports payloads that cannot be read.
    let answer = kept.and_then(|bytes| StoredAnswer::from_bytes(bytes.to_vec().into()).ok());
    let calls = conversation::called(&answer.map(|answer| answer.body).unwrap_or_default());
    let fresh = calls.into_iter().filter(|call| seen.insert(call.id.clone()));
    Ok(fresh.map(|call| Effect { entry: entry.0, tool: call.name, input: call.input }).collect())
}

// --- Changes of a run's files between two snapshots, as people and programs are shown them.

/// Largest file whose lines are compared.
const LONGEST: u64 = 1 << 20;

/// Most changes of an entry that are told, and most bytes of their differences.
const MOST: usize = 200;
const MOST_BYTES: usize = 1 << 20;

/// Returns what changed in the files of a run at an entry, and how many changes more there are: in a snapshot's entry what
/// that found changed, in any other what changed from its beginning to the next snapshot, as a call's tools left it.
pub fn changes_at_entry(
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
