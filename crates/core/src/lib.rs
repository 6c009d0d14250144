//! The domain of Outlast. No I/O, no clock, no entropy of its own: `now`, ids and stored rows are
//! handed in, and what should change is handed back.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod body;
pub mod clock;
pub mod digest;
pub mod duration;
pub mod id;
pub mod money;
pub mod payload;
pub mod price;
pub mod size;
pub mod token;
pub mod usage;
