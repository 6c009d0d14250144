//! REST over the state, below `/v1/state/`.
//!
//! Times are microseconds since the Unix epoch.

pub(super) mod item;
pub(super) mod keep;
pub(super) mod list;
pub(super) mod replay;
pub mod show;
pub(super) mod transaction;
