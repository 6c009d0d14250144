//! What an operation loads of the state, and what its decision writes.

use std::{collections::BTreeMap, sync::Arc};

use super::{Committed, Name, Namespace, Position, Progress, Value};
use crate::{
    engine::loaded::{Row, Touch},
    words::id::{AttemptNo, Micros, RunNo},
};

/// A key as it stands: all that a decision asks of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    /// The newest version; 0 when the key was never written.
    pub version: i64,
    /// The newest version is no tombstone.
    pub live: bool,
    /// Where the newest version was written.
    pub position: Position,
    pub commit: i64,
    pub at: Micros,
    /// Where the first version was written.
    pub first: Position,
    /// The oldest version that is kept.
    pub oldest: i64,
    /// What the newest version records of a step.
    pub progress: Option<Progress>,
    /// This operation has changed `live` or `progress`, or made the first older version: what a store
    /// finds keys by. Most writes do not.
    pub moved: bool,
    /// The store's own number of the key; 0 before it has one. No decision looks at it.
    pub no: i64,
}

/// A version to be added.
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

/// A commit of one namespace to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCommit {
    pub namespace: String,
    pub commit: i64,
    pub at: Micros,
    /// The last position it wrote in any namespace.
    pub position: Position,
    pub transaction: Option<Arc<str>>,
}

/// A key with versions that may be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compactable {
    /// The store's own number of the key: keys are walked in its order.
    pub no: i64,
    pub oldest: i64,
    pub version: i64,
    /// The version that was the newest at the commit that was asked for; `oldest` when there is none.
    pub at_commit: i64,
}

/// Versions of a key to be removed: those below `below`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    pub key: Trimmed,
    pub below: i64,
}

/// Which key loses versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trimmed {
    /// By the store's own number.
    No(i64),
    /// One that the operation itself changes: it may have no number yet.
    Changed(Arc<Name>),
}

/// Transaction ids to be forgotten: those of a namespace's commits above `above` and up to `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forgetting {
    pub namespace: String,
    pub above: i64,
    pub to: i64,
}

/// The state's part of what an operation loads and writes.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// The newest position of the store, moved by each version that is added.
    pub position: Position,
    pub namespaces: BTreeMap<String, Row<Namespace>>,
    /// Of each namespace that has so many, the commit [`super::outcome::AT_ONCE`] places behind the last one
    /// whose id is forgotten, and its time.
    pub old_ids: BTreeMap<String, (i64, Micros)>,
    pub keys: BTreeMap<Arc<Name>, Row<Current>>,
    /// What the operation's transaction came to when it was asked for before.
    pub outcome: Option<Committed>,
    pub compactable: Vec<Compactable>,
    pub versions: Vec<NewVersion>,
    pub commits: Vec<NewCommit>,
    pub removals: Vec<Removal>,
    pub forgettings: Vec<Forgetting>,
}

impl Rows {
    /// Whether anything is to be written.
    pub fn is_touched(&self) -> bool {
        // A version never comes without its commit and its namespace.
        !self.removals.is_empty() || self.namespaces.values().any(|r| r.touch != Touch::Read)
    }
}
