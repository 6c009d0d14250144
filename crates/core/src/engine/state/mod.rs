//! Verbs on versioned state.

pub mod compact;
pub mod put;
pub mod put_by_token;
pub mod put_row;
pub mod retain;
pub mod transaction;
