//! The words of the command line that several commands share, and those of the commands whose rooms are elsewhere.

pub mod change;
pub mod crashtest;
pub mod files;
pub mod mcp;
pub mod run;
pub mod shared;
pub mod supervise;

pub use crate::settings::values;

pub use self::{
    change::BudgetArgs,
    mcp::McpArgs,
    run::{AgentArgs, ResumeArgs, RunArgs},
    shared::Globals,
};
