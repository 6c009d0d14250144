//! `outlast ui`: the page of one store, on a listener of its own that serves nothing else.

use std::{
    io::{self, IsTerminal as _, Write as _},
    net::SocketAddr,
    sync::Arc,
    thread,
    time::Duration,
};

use clap::Args;
use outlast_core::{price::PriceTable, words::clock::random};
use outlast_server::door::{Access, Config, Provider, Providers, Proxy, Sessions, Shows};
use serde_json::json;

use super::{Reread, Stops, listen};
use crate::{
    cli::shared::ProxyArgs,
    program::{
        context::Context,
        error::{CliError, MachineError},
        exit_code, host, log,
        say::say,
        server,
    },
    proxy_setup,
};

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

/// Time for which requests of the page may go on after the stop.
const DRAIN: Duration = Duration::from_secs(1);

/// Runs `outlast ui` until a signal stops it. `settings` reads those of `outlast serve`. Returns the exit code.
pub fn ui(args: UiArgs, settings: Reread, context: Context) -> Result<u8, CliError> {
    if !args.listen.ip().is_loopback() {
        return Err(CliError::usage(
            format!("{} is not a loopback address, and the page is shown on loopback only", args.listen),
            Some("from another machine: ssh -L 7079:127.0.0.1:7079 HOST outlast ui --listen 127.0.0.1:7079"),
        ));
    }
    log::start(&context.around, "warn");
    let store = context.open(false, Default::default())?;
    let config = config(&settings(&context)?.proxy, &context)?;
    let sessions = Sessions::new(context.clock.clone(), context.entropy.clone(), args.read_only);
    let runtime = host::runtime(None)?;
    runtime.block_on(async {
        let listener = listen(args.listen, "--listen").await?;
        let node = proxy_setup::join(store, &context, "outlast ui")?;
        let proxy = Proxy::new(node.clone(), &context.entropy, config, None)?
            .with_page(Shows::Alone, sessions.clone());
        let links = Links { sessions, address: listener.local_addr()?, json: context.look.json };
        let mut stops = Stops::new()?;
        links.print(&context)?;
        let looks = if args.read_only { "; it only looks" } else { "" };
        say(&format!("the page of {}{looks}; the link works once, within a minute", context.place));
        if is_typed_at() {
            say("Enter prints another link, Ctrl-C ends the page");
            let context = context.clone();
            thread::spawn(move || {
                for line in io::stdin().lines() {
                    if line.is_err() || links.print(&context).is_err() {
                        return;
                    }
                }
            });
        }
        let beat = tokio::spawn(node.clone().keep_alive());
        proxy.serve(listener, stops.next(), DRAIN).await;
        beat.abort();
        tokio::task::spawn_blocking(move || node.leave()).await.map_err(MachineError::Task)??;
        Ok(exit_code::OK)
    })
}

/// Prints links to the page.
struct Links {
    sessions: Arc<Sessions>,
    address: SocketAddr,
    json: bool,
}

impl Links {
    fn print(&self, context: &Context) -> io::Result<()> {
        // The part behind # is not sent to the server, and stands in no log of it.
        let url = link(self.address, &self.sessions.link());
        let mut out = io::stdout().lock();
        match self.json {
            true => writeln!(out, "{}", json!({ "url": url, "store": context.place.to_string() }))?,
            false => writeln!(out, "{url}")?,
        }
        out.flush()
    }
}

/// Returns whether a person may type here: a process in the background would be stopped by its first read.
fn is_typed_at() -> bool {
    let stdin = io::stdin();
    let ours = || rustix::termios::tcgetpgrp(&stdin).ok() == Some(rustix::process::getpgrp());
    stdin.is_terminal() && ours()
}

/// Returns the configuration of a listener that asks no provider anything: it needs no keys and no prices.
fn config(args: &ProxyArgs, context: &Context) -> Result<Config, CliError> {
    let nowhere =
        || Provider::new("http://127.0.0.1:9", None).map_err(|e| CliError::usage(e.to_string(), None));
    let providers = Providers::new(|_| nowhere(), Vec::new())?;
    // Nobody is told the token: only the page's sessions are let in.
    let secret: [u8; 32] = random(context.entropy.as_ref());
    let token: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let access = Access { api_token: Some(token.into()), loopback: true, ..Access::default() };
    let prices = PriceTable::builtin();
    let network = server::network(&context.around)?;
    let (limits, policy) = Default::default();
    let config = proxy_setup::config(args, access, providers, network, prices, limits, policy);
    Ok(Config { files: Some(Arc::new(context.clone())), ..config })
}
