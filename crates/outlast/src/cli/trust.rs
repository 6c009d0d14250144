//! `outlast trust`.

use clap::Args;

/// Trust the outlast.toml of this directory, as it is now
///
/// Anybody who can change a directory can write its outlast.toml: a checkout, or an agent that works there. Until you trust
/// it, it sets how output looks and nothing else, and a command for which it would set more is refused. This prints it
/// and trusts it. Once it changes it is trusted no more. Acts, such as --add-usd, are set by no file.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  cd checkout && outlast trust")]
pub struct TrustArgs {
    /// Trust it no more
    #[arg(long)]
    pub withdraw: bool,
}
