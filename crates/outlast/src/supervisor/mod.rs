//! The supervisor: `outlast run` and `outlast resume`.

use crate::{
    cli::{ResumeArgs, RunArgs},
    context::Context,
    error::CliError,
};

/// Runs the command to its end. Returns the exit code.
pub fn run(_args: RunArgs, _context: Context) -> Result<u8, CliError> {
    Err(CliError::not_available("run"))
}

/// Goes on with interrupted runs. Returns the exit code.
pub fn resume(_args: ResumeArgs, _context: Context) -> Result<u8, CliError> {
    Err(CliError::not_available("resume"))
}
