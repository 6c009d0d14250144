//! `outlast notify`: the endpoints that are told what happens.

use clap::{Args, Subcommand};

/// Show, test and retry notifications to webhooks, chats and commands
///
/// Endpoints are configured in ~/.config/outlast/outlast.toml, below [notify]. Running `outlast run` and `outlast serve`
/// deliver; what a killed one left is delivered by the next that starts. Without a subcommand: as `ls`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast notify                 what was delivered, what waits, what was given up\n  outlast notify test phone      send a test message now\n  outlast notify retry phone     try again what failed"
)]
pub struct NotifyArgs {
    #[command(subcommand)]
    pub verb: Option<NotifyVerb>,
}

#[derive(Subcommand, Clone, Debug)]
pub enum NotifyVerb {
    /// List the endpoints
    #[command(after_help = "Example:\n  outlast notify ls --json | jq '.endpoints[].waiting'")]
    Ls,
    /// Try again at once what failed or was given up
    #[command(after_help = "Examples:\n  outlast notify retry\n  outlast notify retry phone")]
    Retry(EndpointArgs),
    /// Send a test message, and say whether it arrived
    #[command(after_help = "Examples:\n  outlast notify test\n  outlast notify test phone")]
    Test(EndpointArgs),
}

#[derive(Args, Clone, Debug)]
pub struct EndpointArgs {
    /// Only this endpoint, by its name in the settings
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
}
