//! The command line from outside, and its commands on a story in a memory store.
#![allow(clippy::unwrap_used)]

mod approvals;
mod budget;
mod commands;
mod environment;
mod find;
mod follow;
mod forget;
mod help;
mod hints;
mod jobs;
mod journal;
mod line;
mod money;
mod pins;
mod prices;
mod repair;
mod said;
mod settings;
mod show;
mod state;
mod story;
mod tell;
mod tidy;
