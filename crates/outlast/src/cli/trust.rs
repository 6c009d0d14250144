//! `outlast init` and `outlast trust`: the outlast.toml of a directory.

use clap::Args;

/// Write an outlast.toml for this directory, and say the one command to type
///
/// Looks for Claude Code, Codex, and programs in Python and for Node. In the file every key is a comment, so that
/// nothing changes until you want it to. A file that is there is left as it is.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  cd project && outlast init")]
pub struct InitArgs {}

/// Trust the outlast.toml of this directory, as it is now
///
/// Anybody who can change a directory can write its outlast.toml: a checkout, or an agent that works there. Until you trust
/// it, it sets how output looks and nothing else, and a command for which it would set more is refused. This prints it
/// and trusts it. Once it changes it is no longer trusted. Acts, such as --add-usd, are set by no file.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  cd checkout && outlast trust")]
pub struct TrustArgs {
    /// Withdraw the trust
    #[arg(long)]
    pub withdraw: bool,
}
