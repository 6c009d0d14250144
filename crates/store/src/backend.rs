//! One database, as the writer thread sees it.

use outlast_core::{
    engine::loaded::Loaded,
    store::{Error, load::Fetch},
    words::id::{InstanceNo, Micros},
};

/// Why a commit did not succeed.
pub enum CommitFailed {
    /// Nothing of the group is there.
    RolledBack(Error),
    /// It may be there.
    Unclear(Error),
}

/// One database, as the writer thread sees it.
pub trait Backend: Fetch + Send {
    /// Begins a write transaction and returns the store's `now`.
    fn begin(&mut self, synced: bool) -> Result<Micros, Error>;
    /// Begins a transaction that only reads, and returns the store's `now`.
    fn begin_read(&mut self) -> Result<Micros, Error>;
    /// What is loaded now: another one once anything is written, here or elsewhere. `None`: it cannot be told.
    fn ground(&self) -> Option<Ground> {
        None
    }
    /// Writes back the touched rows, at the latest with the commit.
    fn apply(&mut self, loaded: Loaded) -> Result<(), Error>;
    /// Writes the highest operation counter of the group into the instance's row.
    fn count(&mut self, instance: InstanceNo, counter: i64) -> Result<(), Error>;
    fn commit(&mut self) -> Result<(), CommitFailed>;
    fn rollback(&mut self);
    /// Ends a transaction that wrote nothing.
    fn release(&mut self) {
        self.rollback();
    }
    /// Whether the group that ended with `counter` is committed, asked on a fresh connection.
    /// `None`: it cannot be told.
    fn is_committed(&mut self, instance: InstanceNo, counter: i64) -> Option<bool>;
    /// Room was short: what may still be written? Called after `Error::Full`.
    fn free_ballast(&mut self) -> bool {
        false
    }
    /// Whether room is still short, and only closings are taken.
    fn is_short_of_room(&mut self) -> bool {
        false
    }
}

/// What decisions stand on: the other writers' commits, and our own writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ground {
    pub version: i64,
    pub writes: u64,
}
