//! Pages of the agents' state: the keys, versions and changes that a question selects, and its answers.

use serde::{Deserialize, Serialize};

use crate::{
    state::{At, Item, Position},
    words::Micros,
};

/// Query for a page of an agent's live keys, in the order of their UTF-8 bytes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Scan {
    pub namespace: String,
    pub agent: String,
    /// Prefix that the keys must start with.
    pub prefix: String,
    /// Last key of the previous page, after which this page begins; `None` for the first page.
    pub after: Option<String>,
    /// Position to read at. Pages of one scan agree when all are read at the same position.
    pub at: At,
    pub limit: usize,
}

/// Commit or time at one end of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    Commit(i64),
    Time(Micros),
}

/// Query for a page of the changes to an agent's keys, in commit order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EventRange {
    pub namespace: String,
    pub agent: String,
    /// First commit or time of the range, inclusive; `None`: from the beginning.
    pub from: Option<Moment>,
    /// Last commit or time of the range, inclusive; `None`: up to the newest.
    pub to: Option<Moment>,
    /// Position of the last event seen; only later events are returned. To follow new events, ask again with the
    /// position of the newest one.
    pub after: Position,
    pub limit: usize,
}

/// Events in commit order. The events of one commit are adjacent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventPage {
    pub events: Vec<Event>,
    /// Whether compaction removed versions of this agent from the range of this page.
    pub compacted: bool,
}

/// Version of a key, with the transaction that made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub item: Item,
    /// Id under which the transaction was committed; `None` if it had none.
    pub transaction: Option<String>,
}

/// Versions of a key, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    pub items: Vec<Item>,
    /// Oldest version that is kept; compaction removed earlier ones. 1 when none was removed, 0 when the key was
    /// never written.
    pub oldest: i64,
}
