//! The domain of Outlast. No I/O, no clock, no entropy of its own: `now`, ids and stored rows are
//! handed in, and what should change is handed back.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod body;
pub mod call;
pub mod engine;
pub mod envelope;
pub mod journal;
pub mod memory;
pub mod price;
pub mod reads;
pub mod run;
pub mod state;
pub mod store;
pub mod words;
