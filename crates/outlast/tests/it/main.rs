//! The command line from outside, and its commands on a story in a memory store.
#![allow(clippy::unwrap_used)]

mod approvals;
mod commands;
mod environment;
mod follow;
mod help;
mod hints;
mod jobs;
mod line;
mod pins;
mod prices;
mod repair;
mod said;
mod settings;
mod state;
mod story;
mod tidy;
