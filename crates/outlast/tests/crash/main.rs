//! The built binary, real processes and real signals: whatever is killed, the run goes on where it was.
//!
//! A test makes a [`bed::Bed`]: a directory, a store in it, a fake provider. Agents are small Python scripts
//! ([`agents`]). Positions of a matrix run in parallel threads; nothing waits for time, only for conditions.
#![allow(clippy::unwrap_used)]

mod agents;
mod away;
mod bad_input;
mod bed;
mod bundle;
mod busy_waiting;
mod cli_agents;
mod confined_net;
mod crashtest;
mod cut_off;
mod declared_agents;
mod files;
mod fleet;
mod forked_sessions;
mod guardian;
mod guards;
mod hosts;
mod in_flight;
mod intercept;
mod kept;
mod kept_sessions;
mod kills;
mod limits;
mod loop_bed;
mod loop_examples;
mod loop_restarts;
mod loops;
mod mistakes;
mod night;
mod on_halt;
mod operating;
mod over_a_server;
mod plans;
mod restarts;
mod resume_tax;
mod sdk;
mod secrets;
mod serve;
mod shared_limits;
mod shell_loops;
mod shell_tasks;
mod signals;
mod sleeps;
mod stopped;
mod task_context;
mod terminals;
mod trees;
mod web;
