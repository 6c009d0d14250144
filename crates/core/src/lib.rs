//! The domain of Outlast. No I/O, no clock, no entropy of its own: `now`, ids and stored rows are
//! handed in, and what should change is handed back.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod approval;
pub mod attempt;
pub mod audit;
pub mod body;
pub mod budget;
pub mod calendar;
pub mod call;
pub mod clock;
pub mod digest;
pub mod divergence;
pub mod duration;
pub mod engine;
pub mod envelope;
pub mod forked;
pub mod id;
pub mod instance;
pub mod job;
pub mod journal;
pub mod loaded;
pub mod looping;
pub mod masks;
pub mod memory;
pub mod money;
pub mod op;
pub mod origin;
pub mod payload;
pub mod policies;
pub mod price;
pub mod reads;
pub mod row;
pub mod rules;
pub mod run;
pub mod scope;
pub mod size;
pub mod snapshot;
pub mod spend;
pub mod state;
pub mod status;
pub mod store;
pub mod token;
pub mod unit;
pub mod usage;
