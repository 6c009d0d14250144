//! `outlast ui` and `outlast watch`.

use std::net::SocketAddr;

use clap::Args;

/// Show the runs of a store in your browser
///
/// Prints a link that works once, for a minute; Enter prints another one. The page lives as long as this command does, and
/// needs nobody else: not the run's supervisor, not `outlast serve`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast ui\n  outlast ui --read-only\n  outlast --store postgres://ann@db/outlast ui\n  ssh -L 7079:127.0.0.1:7079 host outlast ui --listen 127.0.0.1:7079"
)]
pub struct UiArgs {
    /// Address and port, on loopback; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Only look: the page stops nothing, raises nothing and decides nothing
    #[arg(long)]
    pub read_only: bool,
}

/// Returns the link to a page, with the secret in the part that a browser sends nobody.
pub fn link(address: SocketAddr, secret: &str) -> String {
    format!("http://{address}/#in={secret}")
}

/// Watch runs as they go, in the terminal
///
/// Lists the runs, or follows one: its attempts, its calls as they happen, its spend. Approvals are decided by a key. Where
/// standard output is no terminal, each change is a plain line.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast watch\n  outlast watch nightly\n  ssh -t host outlast watch\n  outlast watch nightly --plain | tee nightly.log"
)]
pub struct WatchArgs {
    /// The run: its id, its name, or the start of its id; all runs where none is named
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    /// Print plain lines, on a terminal too
    #[arg(long)]
    pub plain: bool,
}
