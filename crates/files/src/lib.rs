//! Snapshots of a directory tree, their differences, and their restoration.
//!
//! A tree is kept as objects that are named by their content, in packs that are written once. No file of the tree, and
//! nothing of a repository in it, is changed by a snapshot. A restoration changes only paths in which two snapshots
//! differ, and never a path that no snapshot holds. See `docs/design/files.md`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod beneath;
mod cache;
mod error;
mod fault;
mod measure;
mod objects;
mod pack;
mod restore;
mod rules;
mod shared;
mod take;
#[cfg(test)]
mod tests;
mod tree;

pub use cache::Cache;
pub use error::{Error, Refused};
pub use measure::{Size, is_local, measure};
pub use objects::{Collected, Held, Objects};
/// Name of an object: the SHA-256 of its content.
pub use outlast_core::words::Digest as Id;
pub use restore::{Known, Restored, Wish, recover, restore};
pub use rules::{Repository, Rules, SECRETS, is_working_tree};
pub use shared::SPARED_US;
pub use take::{Taken, take};
pub use tree::{Change, Node, Passed, Snapshot, at, diff};
