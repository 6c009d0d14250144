//! Rows of the state that an operation loads, and those its decision writes.

use std::{collections::BTreeMap, sync::Arc};

use super::{Committed, Name, Namespace, Position, Progress, Value};
use crate::words::{AttemptNo, Micros, Row, RunNo, Touch};

/// Current state of a key: all that a decision needs to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    /// Newest version; 0 if the key was never written.
    pub version: i64,
    /// Whether the newest version is no tombstone.
    pub live: bool,
    /// Position at which the newest version was written.
    pub position: Position,
    pub commit: i64,
    pub at: Micros,
    /// Position at which the first version was written.
    pub first: Position,
    /// Oldest version that is kept.
    pub oldest: i64,
    /// Progress of a step, as the newest version records it; `None` if that is no step's record.
    pub progress: Option<Progress>,
    /// Whether this operation changed `live` or `progress`, or made the first version that is not the newest.
    /// A store indexes keys by these facts; most writes do not change them.
    pub moved: bool,
    /// Store's own number of the key; 0 before the key has one. No decision looks at this number.
    pub no: i64,
}

/// Version to be added.
#[derive(Clone, Debug)]
pub struct NewVersion {
    pub name: Arc<Name>,
    pub version: i64,
    pub position: Position,
    pub value: Option<Value>,
    pub commit: i64,
    pub at: Micros,
    pub run: Option<RunNo>,
    pub attempt: Option<AttemptNo>,
}

/// Commit of one namespace to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCommit {
    pub namespace: String,
    pub commit: i64,
    pub at: Micros,
    /// Last position that the commit wrote in any namespace.
    pub position: Position,
    pub transaction: Option<Arc<str>>,
}

/// Key with versions that may be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compactable {
    /// Store's own number of the key. Keys are walked in its order.
    pub no: i64,
    pub oldest: i64,
    pub version: i64,
    /// Newest version at the commit that was asked for; `oldest` if there is none.
    pub at_commit: i64,
}

/// Versions of a key to be removed: those below `below`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    pub key: Trimmed,
    pub below: i64,
}

/// Key that loses versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trimmed {
    /// Key by the store's own number.
    No(i64),
    /// Key that the operation itself changes, and that may have no number yet.
    Changed(Arc<Name>),
}

/// Transaction ids to be forgotten: those of a namespace's commits above `above` and up to `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forgetting {
    pub namespace: String,
    pub above: i64,
    pub to: i64,
}

/// Part of the state that an operation loads and writes.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Newest position of the store, moved by each version that is added.
    pub position: Position,
    pub namespaces: BTreeMap<String, Row<Namespace>>,
    /// For each namespace with enough commits, the [`super::outcome::AT_ONCE`]-th commit after the last one
    /// whose id was forgotten, and its time.
    pub old_ids: BTreeMap<String, (i64, Micros)>,
    pub keys: BTreeMap<Arc<Name>, Row<Current>>,
    /// Recorded outcome of the operation's transaction; `None` if it was not committed before.
    pub outcome: Option<Committed>,
    pub compactable: Vec<Compactable>,
    pub versions: Vec<NewVersion>,
    pub commits: Vec<NewCommit>,
    pub removals: Vec<Removal>,
    pub forgettings: Vec<Forgetting>,
}

impl Rows {
    /// Returns whether anything is to be written.
    pub fn is_touched(&self) -> bool {
        // A version never comes without its commit and its namespace.
        !self.removals.is_empty() || self.namespaces.values().any(|r| r.touch != Touch::Read)
    }
}
