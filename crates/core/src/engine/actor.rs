//! The actor of an operation: a run, an attempt and an instance.

use crate::words::{AttemptNo, InstanceNo, RunNo};

/// The run, attempt and instance for which an operation acts; checked before an entry is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor {
    pub run: RunNo,
    pub attempt: AttemptNo,
    /// The process that opens the entry. Only this instance may close it.
    pub instance: InstanceNo,
}
