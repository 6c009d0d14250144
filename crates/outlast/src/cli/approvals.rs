//! The commands of what waits for a person: `approvals`, `approve`.

use clap::Args;

/// List the tool calls that wait for a person's decision
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast approvals\n  outlast approvals nightly --all\n  outlast approvals --json | jq '.approvals[].id'"
)]
pub struct ApprovalsArgs {
    /// Only those of this run: its id, its name, or the start of its id
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// Also those that are decided, have expired or are blocked
    #[arg(long)]
    pub all: bool,
    /// Largest number of approvals to list, the newest first
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: usize,
}

/// Decide on a tool call that an agent asked about
///
/// The decision is durable, and bound to the arguments that are shown. The run goes on once all that it waits for
/// is decided. Refused in a process of a run: an agent does not decide on its own tools.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast approve apr_3_12\n  outlast approve apr_3_12 --deny --reason \"not on a friday\""
)]
pub struct ApproveArgs {
    /// The approval, as `outlast approvals` prints it
    #[arg(value_name = "ID")]
    pub id: String,
    /// Say no
    #[arg(long)]
    pub deny: bool,
    /// Why, for the agent and for `outlast approvals --all`
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Only if its arguments have this digest, as `outlast approvals --json` prints it
    #[arg(long, value_name = "SHA256")]
    pub digest: Option<outlast_core::words::digest::Digest>,
    /// Who decides [default: the user's name]
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
}
