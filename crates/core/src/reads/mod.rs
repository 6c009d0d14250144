//! Reads that combine rows of a store, without changing it.

pub mod approvals;
pub(crate) mod body;
pub mod budgets;
pub mod checkpoints;
pub mod entries;
pub mod forked;
pub mod forks;
pub mod idle;
pub mod iterations;
pub mod keys;
pub mod masks;
pub mod places;
pub mod plans;
pub mod policies;
pub mod resume;
pub mod room;
pub mod runs;
pub mod shares;
pub mod snapshots;
pub mod spend;
pub mod still;
pub mod tightest;
