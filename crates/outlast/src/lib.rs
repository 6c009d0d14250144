//! The product: the command line and the supervisor; the only place where the pieces meet.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod process;

use std::{ffi::OsString, process::ExitCode};

/// Runs the command line and returns its exit code.
pub fn main(_args: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::from(2)
}
