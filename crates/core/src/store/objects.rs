//! Objects that machines share through a store: what the snapshots of runs' files are made of.

use super::Error;
use crate::words::{Digest, Micros};

/// An object as it is stored: compressed where `bytes` are fewer than `length`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// SHA-256 of the content.
    pub name: Digest,
    /// Length of the content.
    pub length: u32,
    pub bytes: Vec<u8>,
}

/// Place of objects beside the rows of a store. Each call is a transaction by itself.
///
/// An object stays for some time after it was added or marked, though no journal names it yet: see
/// [`SharedObjects::remove`].
pub trait SharedObjects: Send + Sync {
    /// Marks objects as used now. Returns those that are there.
    fn mark(&self, names: &[Digest]) -> Result<Vec<Digest>, Error>;

    /// Adds objects; one that is there is marked.
    fn add(&self, objects: Vec<Object>) -> Result<(), Error>;

    /// Reads objects, in any order: at least one if any is there, and some MiB at most.
    fn read(&self, names: &[Digest]) -> Result<Vec<Object>, Error>;

    /// Returns names after `after`, in order.
    fn list(&self, after: &Digest, limit: usize) -> Result<Vec<Digest>, Error>;

    /// Returns the number of bytes that all objects take.
    fn size(&self) -> Result<u64, Error>;

    /// Removes objects, but for those that were added or marked since `since`.
    fn remove(&self, names: &[Digest], since: Micros) -> Result<(), Error>;
}
