//! Flags of how a run's processes are held.

use clap::Args;
use outlast_core::run::Supervision;

/// How the command's processes are held, at this start and at each that follows.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Processes (of a new run, for its whole life)")]
pub struct SuperviseArgs {
    /// Keep nothing of what it prints: it gets this command's own output
    #[arg(long)]
    pub no_logs: bool,
}

impl SuperviseArgs {
    pub fn supervision(&self) -> Supervision {
        Supervision { no_logs: self.no_logs, ..Supervision::default() }
    }
}
