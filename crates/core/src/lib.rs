//! The domain of Outlast, without I/O, clock or entropy of its own. Callers hand in `now`, ids and stored rows,
//! and get back the changes to write.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod body;
pub mod call;
pub mod engine;
pub mod envelope;
pub mod events;
pub mod journal;
pub mod memory;
pub mod price;
pub mod reads;
pub mod run;
pub mod state;
pub mod store;
pub mod words;
