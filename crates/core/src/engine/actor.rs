//! Who acts.

use crate::words::id::{AttemptNo, InstanceNo, RunNo};

/// Who acts: checked before anything is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor {
    pub run: RunNo,
    pub attempt: AttemptNo,
    /// The process that opens the entry and alone may close it.
    pub instance: InstanceNo,
}
