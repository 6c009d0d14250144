//! Openings: an open entry, as the operation that opened it names it.

use super::Entry;
use crate::words::id::{InstanceNo, OpNo, RunNo, Seq};

/// Entry that a process opened, or took over from a dead one. Every closing presents it.
///
/// When a database comes back without its last commits, a journal number can be given out a second time. The
/// operation's number tells the two entries apart, so that no result reaches the other one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Opening {
    pub run: RunNo,
    pub seq: Seq,
    pub instance: InstanceNo,
    /// Number of the operation that opened the entry, or took it over last.
    pub op: OpNo,
}

impl Opening {
    /// Returns the opening that has `entry` now; `None` for an item that was given back.
    pub fn of(entry: &Entry) -> Option<Opening> {
        let (run, seq, op) = (entry.run, entry.seq, entry.opened_by);
        entry.instance.map(|instance| Opening { run, seq, instance, op })
    }
}
