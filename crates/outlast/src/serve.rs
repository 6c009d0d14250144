//! `outlast serve`.

use crate::{cli::ServeArgs, context::Context, error::CliError};

/// Serves until it is told to stop. Returns the exit code.
pub fn serve(_args: ServeArgs, _context: Context) -> Result<u8, CliError> {
    Err(CliError::not_available("serve"))
}
