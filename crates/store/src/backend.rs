//! The interface between the writer thread and one database.

use outlast_core::{
    engine::{Loaded, Need},
    store::{Error, load::Fetch},
    words::{InstanceNo, Micros},
};

use crate::gate::Inside;

/// Reason why a commit did not succeed.
pub enum CommitFailed {
    /// Nothing of the group was written.
    RolledBack(Error),
    /// Nothing was written: the group was decided on rows that others have changed. The backend has forgotten them, and
    /// reads them when the group is begun again.
    Stale,
    /// Whether the group was committed is not known.
    Unclear(Error),
}

/// One database connection, as the writer thread uses it.
pub trait Backend: Fetch + Send {
    /// Keeps forks waiting until the result is dropped: held from a transaction's begin to its end. `None` if forks
    /// need not wait.
    fn enter(&self) -> Option<Inside> {
        None
    }
    /// Begins a write transaction for operations with these needs and returns the store's `now`. A remote store loads
    /// here what the needs name, for all operations at once.
    fn begin(&mut self, synced: bool, group: &[Vec<Need>]) -> Result<Micros, Error>;
    /// Begins a read-only transaction for operations with these needs and returns the store's `now`. `None` if the
    /// backend cannot tell now, without a wait, what they would decide.
    fn begin_read(&mut self, group: &[Vec<Need>]) -> Result<Option<Micros>, Error>;
    /// Returns the version of the data from which loaded rows were read. Any write, by this or another
    /// process, changes the version. `None` if the backend cannot determine it.
    fn ground(&self) -> Option<DataVersion> {
        None
    }
    /// Writes back the touched rows: at once, or at the latest with the commit.
    fn apply(&mut self, loaded: Box<Loaded>) -> Result<(), Error>;
    /// Writes the highest operation counter of the group into the instance's row.
    fn count(&mut self, instance: InstanceNo, counter: i64) -> Result<(), Error>;
    fn commit(&mut self) -> Result<(), CommitFailed>;
    fn rollback(&mut self);
    /// Ends a transaction that wrote nothing.
    fn release(&mut self) {
        self.rollback();
    }
    /// Returns whether the group that ended with the operation counter `counter` is committed, asked on a new
    /// connection. Waits a bounded time for the answer. `None` if that cannot be determined, or not yet.
    fn is_committed(&mut self, instance: InstanceNo, counter: i64) -> Option<bool>;
    /// Returns whether the store can go on after a commit whose outcome is unclear: `is_committed` returns the outcome
    /// once the database is back, and another connection reads only what was committed.
    fn tells_later(&self) -> bool {
        false
    }
    /// Frees disk space that was kept in reserve, after `Error::Full`. Returns whether there was any.
    fn free_ballast(&mut self) -> bool {
        false
    }
    /// Returns whether disk space is still short, so that only operations that close open work are accepted.
    fn is_short_of_room(&mut self) -> bool {
        false
    }
}

/// Version of the data that a decision was made on: commits by other connections and our own writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataVersion {
    pub version: i64,
    pub writes: u64,
}
