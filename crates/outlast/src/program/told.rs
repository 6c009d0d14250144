//! Variables that Outlast tells the programs of a run and of a loop.
//!
//! Settings of Outlast are named the same way, by `OUTLAST_` and a flag. No flag has a name of this table, so that an
//! `outlast` inside a run or a loop is not configured by what the programs there were told.

macro_rules! variables {
    ($($name:ident)*) => {
        $(pub const $name: &str = concat!("OUTLAST_", stringify!($name));)*

        /// All of them but [`STORE`].
        pub const ALL: &[&str] = &[$($name),*];
    };
}

variables! {
    AGENT_GIT AGENT_NOTE ATTEMPT BEHIND CONFINED CRASHTEST GRPC_URL INTERCEPTED ITERATION LAST_EXIT LOOP MARK RECOVERED
    RUN_ID STATE_FILE TASK_LIVES TOKEN URL
}

/// The one that configures, too: an `outlast` inside a run works on the run's store.
pub const STORE: &str = "OUTLAST_STORE";
