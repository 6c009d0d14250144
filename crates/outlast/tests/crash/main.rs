//! The built binary, real processes and real signals: whatever is killed, the run goes on where it was.
//!
//! A test makes a [`bed::Bed`]: a directory, a store in it, a fake provider. Agents are small Python scripts
//! ([`agents`]). Positions of a matrix run in parallel threads; nothing waits for time, only for conditions.
#![allow(clippy::unwrap_used)]

mod agents;
mod bad_input;
mod bed;
mod kept;
mod kills;
mod limits;
mod sdk;
mod secrets;
mod serve;
mod signals;
mod stopped;
mod terminals;
mod trees;
mod web;
