//! What is read of a store without changing it.

pub(crate) mod body;
pub mod forked;
pub mod policies;
pub mod room;
pub mod spend;
