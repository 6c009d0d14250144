//! Variables that Outlast tells the programs of a run and of a loop.
//!
//! Settings of Outlast are named the same way, by `OUTLAST_` and a flag. No flag has a name of this table, so that an
//! `outlast` inside a run or a loop is not configured by what the programs there were told.

macro_rules! variables {
    ($($name:ident $variable:literal)*) => {
        $(pub const $name: &str = $variable;)*

        /// All of them but [`STORE`].
        pub const ALL: &[&str] = &[$($name),*];
    };
}

variables! {
    AGENT_GIT "OUTLAST_AGENT_GIT"
    AGENT_NOTE "OUTLAST_AGENT_NOTE"
    ATTEMPT "OUTLAST_ATTEMPT"
    BEHIND "OUTLAST_BEHIND"
    CONFINED "OUTLAST_CONFINED"
    CRASHTEST "OUTLAST_CRASHTEST"
    GRPC_URL "OUTLAST_GRPC_URL"
    INTERCEPTED "OUTLAST_INTERCEPTED"
    ITERATION "OUTLAST_ITERATION"
    LAST_EXIT "OUTLAST_LAST_EXIT"
    LOOP "OUTLAST_LOOP"
    MARK "OUTLAST_MARK"
    RECOVERED "OUTLAST_RECOVERED"
    RUN_ID "OUTLAST_RUN_ID"
    STATE_FILE "OUTLAST_STATE_FILE"
    TASK_LIVES "OUTLAST_TASK_LIVES"
    TOKEN "OUTLAST_TOKEN"
    URL "OUTLAST_URL"
}

/// The one that configures, too: an `outlast` inside a run works on the run's store.
pub const STORE: &str = "OUTLAST_STORE";
