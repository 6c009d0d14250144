//! Verbs on versioned state.

pub mod put;
pub mod retain;
pub mod transaction;
