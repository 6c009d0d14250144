//! Errors of a process inside a run, or of a loop's shell, that cannot act for it.

use std::process::ExitStatus;

use outlast_core::run::token::TokenError;

use crate::program::exit_code::{HELD, REFUSED, UNAVAILABLE};

#[derive(Debug, thiserror::Error)]
pub enum InsideError {
    #[error("`outlast agent` starts an agent inside of a run, and this is none")]
    NotInARun,
    #[error("this process belongs to no run: OUTLAST_RUN_ID and OUTLAST_TOKEN are not set")]
    NoRunHere,
    #[error("`outlast mcp` records the tools of a run, and this process and those above it belong to none")]
    NoRunForTools,
    #[error("OUTLAST_TOKEN is none of the store {store}: {why}")]
    BadToken { why: TokenError, store: String },
    #[error("this process is confined, and does not see the store of its run")]
    Confined,
    #[error("OUTLAST_TOKEN is not run {wanted}'s, but {had}'s")]
    ForeignRun { wanted: String, had: String },
    #[error("{run} is a run already, and none of a loop script")]
    NotALoop { run: String },
    #[error("loop {name} of run {run} is held by pid {pid} on {host}")]
    LoopHeld { name: String, run: String, pid: u32, host: String },
    #[error("another loop took {name} up while this one was taken for dead")]
    LoopTaken { name: String },
    #[error("the keeper of the loop's lease does not start: it ended with {0}")]
    Keeper(ExitStatus),
    #[error(transparent)]
    Task(#[from] TaskRefused),
}

/// Error of a task that a loop cannot begin or end as done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskRefused {
    #[error("task {had:?} is begun and not done: {asked:?} cannot be begun beside it")]
    Unfinished { had: String, asked: String },
    #[error("no task is begun")]
    NoTask,
    #[error("task {asked:?} is not the one that is begun: that is {had:?}")]
    Another { had: String, asked: String },
    #[error("a task needs a name")]
    Nameless,
}

impl InsideError {
    /// Returns the stable code, by which programs tell errors apart, and the exit code.
    pub fn fact(&self) -> (&'static str, u8) {
        match self {
            InsideError::NotInARun => ("not_in_a_run", REFUSED),
            InsideError::NoRunHere | InsideError::NoRunForTools => ("no_run_here", REFUSED),
            InsideError::BadToken { why, .. } => (why.code(), REFUSED),
            InsideError::ForeignRun { .. } => ("foreign_run", REFUSED),
            InsideError::Confined => ("confined", REFUSED),
            InsideError::NotALoop { .. } => ("not_a_loop", REFUSED),
            InsideError::LoopHeld { .. } => ("run_held", HELD),
            InsideError::LoopTaken { .. } => ("lease_lost", HELD),
            InsideError::Keeper(_) => ("keeper", UNAVAILABLE),
            InsideError::Task(_) => ("task_refused", REFUSED),
        }
    }

    /// Returns the hint that is printed below the error: what to do about it; `None` if there is none.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            InsideError::NotInARun => {
                "start the script with `outlast run -- SCRIPT`, or the agent itself with `outlast run`"
            }
            InsideError::NoRunHere => {
                "start its script with `outlast run -- CMD`, or put eval \"$(outlast shell-init --run NAME)\" into it"
            }
            InsideError::NoRunForTools => {
                "name one with --run ID, or start the client under `outlast run -- CMD`"
            }
            InsideError::BadToken { .. } => "a process of a run finds the run's store in OUTLAST_STORE",
            InsideError::ForeignRun { .. } => "take both from the same run's environment",
            InsideError::Confined => {
                "its own state, approvals and spend are at OUTLAST_URL: docs/reference/openapi.json"
            }
            InsideError::NotALoop { .. } => "give the loop another name with `outlast shell-init --run NAME`",
            InsideError::LoopHeld { .. } => "end it there, or give this one another name",
            InsideError::LoopTaken { .. } => "this one is over; `outlast show` tells what became of it",
            InsideError::Keeper(_) => return None,
            InsideError::Task(TaskRefused::Unfinished { .. }) => {
                "finish it first: outlast_recover tells where it stands, outlast_done ends it, `outlast ctx clear` drops it"
            }
            InsideError::Task(TaskRefused::NoTask) => "outlast_begin TASK begins one",
            InsideError::Task(TaskRefused::Another { .. }) => {
                "outlast_done without a name ends the one that is begun"
            }
            InsideError::Task(TaskRefused::Nameless) => "outlast_begin TASK",
        })
    }
}
