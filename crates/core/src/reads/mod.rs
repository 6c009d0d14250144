//! What is read of a store without changing it.

pub mod approvals;
pub mod budgets;
pub mod checkpoints;
pub mod forks;
pub mod iterations;
pub mod masks;
pub mod snapshots;
