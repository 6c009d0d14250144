//! State of a run: versioned key-value pairs by (namespace, agent, key).
//!
//! Every write of the store's whole state has a [`Position`] in one order. The positions of a transaction are
//! adjacent, and the transaction has one commit number in each of its namespaces. A read at a commit or at a
//! time is a read at a position.

pub mod outcome;
pub mod own;
mod progress;
pub mod rows;
mod value;

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::words::{AttemptNo, Micros, RunNo};

pub use own::{Owner, Table};
pub use progress::{Progress, ResumePoint, StepKey, furthest};
pub use value::Value;

/// Full name of a value. The three parts are never joined to one text: `a:b`/`c` is not `a`/`b:c`.
///
/// Each is any text, of any length, empty and NUL included. Keys are ordered by their UTF-8 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    pub namespace: String,
    pub agent: String,
    pub key: String,
}

impl Name {
    pub fn new(namespace: impl Into<String>, agent: impl Into<String>, key: impl Into<String>) -> Arc<Name> {
        Arc::new(Name { namespace: namespace.into(), agent: agent.into(), key: key.into() })
    }
}

/// Position of a write in the order of all writes of a store, from 1; 0 is before the first.
///
/// Positions only grow, and none is given twice. Reads at one position agree with each other over all
/// namespaces: they show every transaction whole or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Position(pub i64);

/// One version of a key. Versions grow by one per operation on the key, from 1; a delete is a version too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    pub namespace: String,
    pub agent: String,
    pub key: String,
    pub version: i64,
    /// Value of this version; `None` is a tombstone.
    #[serde(with = "crate::words::blob::maybe")]
    pub value: Option<Bytes>,
    /// Number of the namespace's commit that wrote the version.
    pub commit: i64,
    /// Time of the commit. Never before an earlier commit of the namespace, even if the clock was set back.
    pub at: Micros,
    /// Run that wrote the version; `None` for writers without a run.
    pub run: Option<RunNo>,
    /// Attempt of `run` that wrote the version.
    pub attempt: Option<AttemptNo>,
    pub position: Position,
}

/// A live key as a listing shows it: without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    pub key: String,
    pub version: i64,
    pub commit: i64,
    pub at: Micros,
}

/// A namespace with its newest commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    pub name: String,
    /// Newest commit number; 0 before the first commit.
    pub commit: i64,
    /// Time of the newest commit.
    pub at: Micros,
    pub keep: Retention,
    /// Number of the commit up to which transaction ids are forgotten.
    pub forgotten: i64,
}

/// Rule for which versions of a key are kept. The newest version is never removed.
///
/// A change of a key removes the key's versions beyond the rule; compaction does so for keys that are no
/// longer changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Retention {
    #[default]
    All,
    /// Keeps this many of the last versions, at least 1.
    Last(i64),
}

/// Point at which a key is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum At {
    #[default]
    Newest,
    /// After this commit of its namespace.
    Commit(i64),
    /// After the last commit of its namespace at or before this time.
    Time(Micros),
    Position(Position),
}

/// Result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Commit number in every namespace the transaction wrote; 0 if it wrote nothing.
    pub commit: i64,
    pub at: Micros,
    /// Version made by each change, in the order of the changes. Empty if this is the recorded outcome of a repeated
    /// transaction.
    pub versions: Vec<i64>,
}

/// Returns the namespace of a run's `run.state`.
pub fn run_namespace(id: &crate::words::id::RunId) -> String {
    format!("{}{id}", own::RUNS)
}

/// Returns the first bytes after every text that starts with `prefix`; `None` if there are none.
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

/// Rule by which a commit fails if transactions overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conflicts {
    /// A commit fails only if a key's version is not the one that a change expects.
    #[default]
    Expected,
    /// A commit fails also if a key that it writes was written since the transaction began.
    FirstCommitter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefixs_end_is_behind_all_that_starts_with_it() {
        let check = |prefix: &[u8], end: Option<&[u8]>| assert_eq!(prefix_end(prefix).as_deref(), end);
        check(b"", None);
        check(b"a", Some(b"b"));
        check(b"a\0", Some(b"a\x01"));
        check(b"a\xff\xff", Some(b"b"));
        check(b"\xff", None);
        let end = prefix_end("\u{10ffff}".as_bytes()).unwrap();
        assert!("\u{10ffff}\u{10ffff}".as_bytes() < end.as_slice());
    }
}
