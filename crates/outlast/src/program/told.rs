//! Variables that Outlast tells the programs of a run and of a loop.
//!
//! Settings of Outlast are named the same way, by `OUTLAST_` and a flag. No flag has a name of this table, so that an
//! `outlast` inside a run or a loop is not configured by what the programs there were told.

pub const AGENT_GIT: &str = "OUTLAST_AGENT_GIT";
pub const AGENT_NOTE: &str = "OUTLAST_AGENT_NOTE";
pub const ATTEMPT: &str = "OUTLAST_ATTEMPT";
pub const BEHIND: &str = "OUTLAST_BEHIND";
pub const CONFINED: &str = "OUTLAST_CONFINED";
pub const GRPC_URL: &str = "OUTLAST_GRPC_URL";
pub const INTERCEPTED: &str = "OUTLAST_INTERCEPTED";
pub const ITERATION: &str = "OUTLAST_ITERATION";
pub const LAST_EXIT: &str = "OUTLAST_LAST_EXIT";
pub const LOOP: &str = "OUTLAST_LOOP";
pub const MARK: &str = "OUTLAST_MARK";
pub const RECOVERED: &str = "OUTLAST_RECOVERED";
pub const RUN_ID: &str = "OUTLAST_RUN_ID";
pub const STATE_FILE: &str = "OUTLAST_STATE_FILE";
/// The one that configures, too: an `outlast` inside a run works on the run's store.
pub const STORE: &str = "OUTLAST_STORE";
pub const TASK_LIVES: &str = "OUTLAST_TASK_LIVES";
pub const TOKEN: &str = "OUTLAST_TOKEN";
pub const URL: &str = "OUTLAST_URL";

/// All of them but [`STORE`].
pub const ALL: [&str; 17] = [
    AGENT_GIT,
    AGENT_NOTE,
    ATTEMPT,
    BEHIND,
    CONFINED,
    GRPC_URL,
    INTERCEPTED,
    ITERATION,
    LAST_EXIT,
    LOOP,
    MARK,
    RECOVERED,
    RUN_ID,
    STATE_FILE,
    TASK_LIVES,
    TOKEN,
    URL,
];
