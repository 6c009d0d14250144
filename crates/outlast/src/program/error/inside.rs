//! Errors of a process inside a run, or of a loop's shell, that cannot act for it.

use std::process::ExitStatus;

use outlast_core::run::token::TokenError;

use crate::program::exit_code::{HELD, REFUSED, UNAVAILABLE};

error_rows! {
    #[derive(Debug, thiserror::Error)]
    pub enum InsideError {
        #[error("`outlast agent` starts an agent inside of a run, and this is none")]
        NotInARun => ("not_in_a_run", REFUSED),
            "start the script with `outlast run -- SCRIPT`, or the agent itself with `outlast run`";
        #[error("this process belongs to no run: OUTLAST_RUN_ID and OUTLAST_TOKEN are not set")]
        NoRunHere => ("no_run_here", REFUSED),
            "start its script with `outlast run -- CMD`, or put eval \"$(outlast shell-init --run NAME)\" into it";
        #[error("`outlast mcp` records the tools of a run, and this process and those above it belong to none")]
        NoRunForTools => ("no_run_here", REFUSED),
            "name one with --run ID, or start the client under `outlast run -- CMD`";
        #[error("OUTLAST_TOKEN is none of the store {store}: {why}")]
        BadToken { why: TokenError, store: String } => (why.code(), REFUSED),
            "a process of a run finds the run's store in OUTLAST_STORE";
        #[error("this process is confined, and does not see the store of its run")]
        Confined => ("confined", REFUSED),
            "its own state, approvals and spend are at OUTLAST_URL: docs/reference/openapi.json";
        #[error("OUTLAST_TOKEN is not run {wanted}'s, but {had}'s")]
        ForeignRun { wanted: String, had: String } => ("foreign_run", REFUSED),
            "take both from the same run's environment";
        #[error("{run} is a run already, and none of a loop script")]
        NotALoop { run: String } => ("not_a_loop", REFUSED),
            "give the loop another name with `outlast shell-init --run NAME`";
        #[error("loop {name} of run {run} is held by pid {pid} on {host}")]
        LoopHeld { name: String, run: String, pid: u32, host: String } => ("run_held", HELD),
            "end it there, or give this one another name";
        #[error("another loop took {name} up while this one was taken for dead")]
        LoopTaken { name: String } => ("lease_lost", HELD),
            "this one is over; `outlast show` tells what became of it";
        #[error("the keeper of the loop's lease does not start: it ended with {0}")]
        Keeper(ExitStatus as status) => ("keeper", UNAVAILABLE);
        #[error(transparent)]
        Task(#[from] TaskRefused as refused) => ("task_refused", REFUSED), match refused {
            TaskRefused::Unfinished { .. } => {
                "finish it first: outlast_recover tells where it stands, outlast_done ends it, `outlast ctx clear` drops it"
            }
            TaskRefused::NoTask => "outlast_begin TASK begins one",
            TaskRefused::Another { .. } => "outlast_done without a name ends the one that is begun",
            TaskRefused::Nameless => "outlast_begin TASK",
        };
    }
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
