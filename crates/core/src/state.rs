//! What a run knows: versioned key-value by (namespace, agent, key).

use bytes::Bytes;

use crate::id::{AttemptNo, Micros, RunNo};

/// One version of a key. Versions grow by one per operation on the key; a delete is a version too.
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
    pub at: Micros,
    pub run: Option<RunNo>,
    pub attempt: Option<AttemptNo>,
}

/// A namespace's newest commit number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub namespace: String,
    pub commit: i64,
}

/// The namespace of `run.state`.
pub fn run_namespace(id: &crate::id::RunId) -> String {
    format!("run:{id}")
}
