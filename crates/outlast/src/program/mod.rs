//! Base of every command: context, errors, exit codes, store and messages.

pub mod actor;
pub mod checkout;
pub mod context;
pub mod error;
pub mod exit_code;
pub mod fence;
pub mod find;
pub mod host;
pub mod jsonl;
pub(crate) mod log;
pub mod mark;
pub mod patient;
pub mod resume_tax;
pub mod run_directory;
pub(crate) mod say;
pub mod server;
pub mod stops;
pub mod told;
pub(crate) mod untaken;
