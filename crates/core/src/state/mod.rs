//! What a run knows: versioned key-value by (namespace, agent, key).
//!
//! Every write of the store's whole state has a [`Position`] in one order; a transaction's positions
//! stand together, and it has one commit number in each of its namespaces. What was true at a
//! commit or at a time is what stood at a position: all such reads come down to that.

pub mod outcome;
mod progress;
pub mod rows;
mod value;

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::words::id::{AttemptNo, Micros, RunNo};

pub use progress::{Progress, ResumePoint, StepKey, furthest};
pub use value::Value;

/// Where a value is. The three parts are never joined to one text: `a:b`/`c` is not `a`/`b:c`.
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

/// A write's place in the order of all writes of a store, from 1; 0 is before the first.
///
/// Only grows, and is never given twice. Reads at one position agree with each other over all
/// namespaces: they show every transaction whole or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Position(pub i64);

/// One version of a key. Versions grow by one per operation on the key, from 1; a delete is a
/// version too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub namespace: String,
    pub agent: String,
    pub key: String,
    pub version: i64,
    /// `None` is a tombstone.
    pub value: Option<Bytes>,
    /// The namespace's commit that wrote it.
    pub commit: i64,
    /// When it was committed. Never before an earlier commit of the namespace, even if the clock was
    /// set back.
    pub at: Micros,
    /// The run that wrote it, and its attempt; none for writers without a run.
    pub run: Option<RunNo>,
    pub attempt: Option<AttemptNo>,
    pub position: Position,
}

/// A live key as it is listed: without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub key: String,
    pub version: i64,
    pub commit: i64,
    pub at: Micros,
}

/// A namespace with its newest commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    pub name: String,
    /// Its newest commit number; 0 before the first.
    pub commit: i64,
    /// When that was.
    pub at: Micros,
    pub keep: Keep,
    /// The transaction ids of its commits up to this one are forgotten.
    pub forgotten: i64,
}

/// Which versions of a key are kept. The newest is never touched.
///
/// A change of a key removes what is too much of it; compaction does so for keys that nobody changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    #[default]
    All,
    /// The last so many, at least 1.
    Last(i64),
}

/// When a key is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum At {
    #[default]
    Newest,
    /// After this commit of its namespace.
    Commit(i64),
    /// After the last commit of its namespace at or before this time.
    Time(Micros),
    Position(Position),
}

/// What a transaction came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The commit number in every namespace it wrote; 0 when it wrote nothing.
    pub commit: i64,
    pub at: Micros,
    /// The version each change made, in the order of the changes; empty when this is a recorded
    /// outcome that was asked for again.
    pub versions: Vec<i64>,
}

/// What namespaces of runs begin with.
const RUNS: &str = "run:";

/// The namespace of `run.state`.
pub fn run_namespace(id: &crate::words::id::RunId) -> String {
    format!("{RUNS}{id}")
}

/// What Outlast itself keeps in the state is under namespaces that begin so.
pub const OURS: &str = "outlast:";

/// Whether only one run may write here.
pub fn is_a_runs(namespace: &str) -> bool {
    namespace.starts_with(RUNS)
}

/// The first bytes behind every text that starts with `prefix`; `None` when there are none.
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

/// What decides between transactions that overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conflicts {
    /// Only the versions that changes expect.
    #[default]
    Expected,
    /// Also, a commit fails if a key it writes was written since the transaction began.
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
