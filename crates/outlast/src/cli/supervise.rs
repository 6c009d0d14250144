//! Flags of how a run's processes are held.

use clap::Args;
use outlast_core::run::{Pty, Supervision};

use super::values;

/// How the command's processes are held, at this start and at each that follows.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Processes (of a new run, for its whole life)")]
pub struct SuperviseArgs {
    /// Keep nothing of what it prints: it gets this command's own output
    #[arg(long)]
    pub no_logs: bool,
    /// Whether it gets a terminal of its own: where it is started from one, always, never
    #[arg(long, value_name = "WHEN", value_parser = values::pty())]
    pub pty: Option<Pty>,
}

impl SuperviseArgs {
    pub fn supervision(&self) -> Supervision {
        Supervision { no_logs: self.no_logs, pty: self.pty.unwrap_or_default(), ..Supervision::default() }
    }
}
