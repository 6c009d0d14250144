//! Reads of the agents' state: one trait, implemented by every store.

use crate::{
    state::{At, Committed, Item, Listed, Namespace, Position, ResumePoint},
    store::{Error, Which},
    words::id::Micros,
};

/// Query for a page of an agent's live keys, in the order of their UTF-8 bytes.
#[derive(Clone, Debug, Default)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Commit(i64),
    Time(Micros),
}

/// Query for a page of the changes to an agent's keys, in commit order.
#[derive(Clone, Debug, Default)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventPage {
    pub events: Vec<Event>,
    /// Whether compaction removed versions of this agent from the range of this page.
    pub compacted: bool,
}

/// Version of a key, with the transaction that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub item: Item,
    /// Id under which the transaction was committed; `None` if it had none.
    pub transaction: Option<String>,
}

/// Versions of a key, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub items: Vec<Item>,
    /// Oldest version that is kept; compaction removed earlier ones. 1 when none was removed, 0 when the key was
    /// never written.
    pub oldest: i64,
}

/// Reads of committed state. Each read sees one moment.
///
/// Errors: `Corrupt` for a value that cannot be read; `Compacted` for a read of what compaction has removed.
pub trait Reads {
    /// Returns the newest version of a key: the tombstone of a deleted key, `None` for an unknown one.
    fn state(&self, namespace: &str, agent: &str, key: &str) -> Result<Option<Item>, Error>;
    /// Returns one version of a key, by number or by point in time. `None` when it did not exist yet.
    fn state_at(&self, namespace: &str, agent: &str, key: &str, which: Which) -> Result<Option<Item>, Error>;
    /// Returns versions of a key above `after`, oldest first, at most `limit`.
    fn state_history(
        &self,
        namespace: &str,
        agent: &str,
        key: &str,
        after: i64,
        limit: usize,
    ) -> Result<History, Error>;
    /// Lists live keys without reading their values.
    fn state_keys(&self, scan: &Scan) -> Result<Vec<Listed>, Error>;
    /// Returns live keys with their values.
    fn state_scan(&self, scan: &Scan) -> Result<Vec<Item>, Error>;
    /// Returns the changes to an agent's keys.
    fn state_events(&self, range: &EventRange) -> Result<EventPage, Error>;
    /// Returns the point at which a loop over `prefix0`, `prefix1`, … resumes. The cost does not depend on
    /// the number of keys, except for a prefix that ends in a digit.
    fn resume_point(&self, namespace: &str, agent: &str, prefix: &str) -> Result<ResumePoint, Error>;
    /// Returns the newest position of the store, at which a transaction that begins now reads.
    fn state_position(&self) -> Result<Position, Error>;
    fn namespace(&self, name: &str) -> Result<Option<Namespace>, Error>;
    /// Returns at most `limit` namespaces after `after`, in the order of their UTF-8 bytes.
    fn namespaces(&self, after: Option<&str>, limit: usize) -> Result<Vec<Namespace>, Error>;
    /// Returns at most `limit` agents of a namespace after `after`, in the order of their UTF-8 bytes.
    fn agents(&self, namespace: &str, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error>;
    /// Returns the outcome of the transaction with this id. `None` when it was not committed, or was committed longer
    /// ago than ids are kept: see [`crate::engine::state::transaction::unknown`].
    fn transaction_outcome(&self, id: &str) -> Result<Option<Committed>, Error>;
}
