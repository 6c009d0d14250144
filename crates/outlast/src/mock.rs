//! `outlast mock`.

use crate::{cli::MockArgs, error::CliError};

/// Serves the fake provider until it is told to stop. Returns the exit code.
pub fn mock(_args: MockArgs) -> Result<u8, CliError> {
    Err(CliError::not_available("mock"))
}
