//! `outlast serve`: the proxy and the state for agents that are started elsewhere.

pub mod mock;
pub(crate) mod settings;
pub mod ui;

use std::{
    io::{self, IsTerminal as _},
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};

use clap::{Args, ValueEnum};
use outlast_core::{call::Rate, engine::state::transaction::Conflicts, envelope::Unit};
use outlast_server::{
    door::{Proxy, Sessions, Shows},
    grpc,
    state::{StateDesk, Writer},
};
use tokio::{net::TcpListener, signal::unix, sync::oneshot};

use crate::{
    cli::{
        shared::{PolicyArgs, ProxyArgs},
        values::{self, Limit},
    },
    mcp::{self, host::Serving},
    notify,
    program::{
        context::Context,
        error::{CliError, MachineError},
        exit_code, host, log,
        say::say,
    },
    proxy_setup,
    serve::ui::link,
    settings::policies,
};

/// Serve the proxy for agents that are started elsewhere
///
/// Agents name their run by a header, or by a path that begins with /run/TOKEN; a run that is not known is created under the default limits.
#[derive(Args, Clone, Debug)]
#[command(after_help = SERVE_EXAMPLES)]
pub struct ServeArgs {
    /// Address and port; other than loopback only with an API token
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7077")]
    pub listen: SocketAddr,
    /// A private file with the token that callers have to show (Authorization: Bearer TOKEN), or with lines of NAME TOKEN
    #[arg(long, value_name = "FILE")]
    pub api_token_file: Option<PathBuf>,
    /// A host name that callers may use for this server, besides its addresses; can be repeated
    #[arg(long, value_name = "NAME", value_parser = values::host_name)]
    pub allow_host: Vec<String>,
    /// Serve the versioned state over gRPC too, for Python's outlast.Statehouse and clients of the Statehouse daemon
    #[arg(long, value_name = "ADDRESS")]
    pub grpc: Option<SocketAddr>,
    /// Two gRPC transactions that write the same key: the later one wins (last_writer), or it is refused (first_committer)
    #[arg(long, value_name = "RULE", default_value = "last_writer", value_parser = values::conflicts())]
    pub grpc_conflicts: Conflicts,
    /// Longest time for which calls in flight may go on after SIGTERM; those still open then are cut off, and charged as --in-doubt says
    #[arg(long = "drain", value_name = "TIME", default_value = "15m", value_parser = values::ms)]
    pub drain_ms: i64,
    /// Complete a run that a request created, after this long without a request; later ones are refused [default: never]
    #[arg(long = "idle-end", value_name = "TIME", value_parser = values::ms)]
    pub idle_end_ms: Option<i64>,
    /// Stop when standard input ends: for a program that starts a server of its own, which must not outlive it
    #[arg(long)]
    pub until_eof: bool,
    /// Most calls that may be on their way to one provider at once, over all runs; further ones wait [default: any number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub upstream_concurrency: Option<u32>,
    /// Most requests and tokens a minute to one provider, over all runs, for example 500rpm,200000tpm; further calls wait for their turn, up to --admit-wait [default: any number]
    #[arg(long, value_name = "RATE")]
    pub upstream_rate: Option<Rate>,
    /// Format of the log's lines; with json, one line for each call
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log: LogFormat,
    #[command(flatten)]
    pub defaults: DefaultArgs,
    #[command(flatten)]
    pub policy: PolicyArgs,
    #[command(flatten)]
    pub proxy: ProxyArgs,
}

/// Format of the log's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// The limits of runs that are created by a request.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
#[command(next_help_heading = "Limits of runs that a request creates (`none` removes one)")]
pub struct DefaultArgs {
    /// Dollars
    #[arg(long, value_name = "AMOUNT", default_value = "5", value_parser = values::limit(values::usd))]
    pub default_usd: Limit,
    /// Turns of the agent's loop
    #[arg(long, value_name = "N", default_value = "100", value_parser = values::limit(values::count))]
    pub default_loops: Limit,
    /// Time since the run began
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = values::limit(values::ms))]
    pub default_wall: Limit,
}

impl DefaultArgs {
    pub fn limits(&self) -> outlast_core::envelope::unit::Limits {
        let mut limits = outlast_core::envelope::unit::Limits::default();
        limits[Unit::CostNanoUsd] = self.default_usd.at();
        limits[Unit::Loops] = self.default_loops.at();
        limits[Unit::WallMs] = self.default_wall.at();
        limits
    }
}

const SERVE_EXAMPLES: &str = "\
Examples:
  outlast serve
  outlast serve --listen 127.0.0.1:7077 --default-usd 2 --default-wall none
  outlast serve --listen 0.0.0.0:7077 --api-token-file /etc/outlast/token
  outlast serve --grpc 127.0.0.1:50051 --grpc-conflicts first_committer

Then: OPENAI_BASE_URL=http://127.0.0.1:7077/v1, and a header X-Outlast-Run: my-run with each request.";

/// Longest time that gRPC calls in flight may go on after the stop.
const GRPC_DRAIN: Duration = Duration::from_secs(5);

/// Reads the settings of `outlast serve` again, as its command line was typed, or the flags alone for another command.
pub type Reread = fn(&Context) -> Result<ServeArgs, CliError>;

/// Runs `outlast serve` until a signal stops it. `reread` reads the settings again at SIGHUP. Returns the exit code.
pub fn serve(args: ServeArgs, reread: Reread, context: Context) -> Result<u8, CliError> {
    log::start_as(&context.around, "info", args.log == LogFormat::Json);
    // Bad settings are refused before anything is opened.
    let config = settings::config(&args, &context)?;
    let told = notify::endpoint::load(&context.around)?;
    let servers = mcp::configured::load(&context.around)?;
    let (token, network) = (config.access.api_token.clone(), config.network.clone());
    let drain = Duration::from_millis(u64::try_from(args.drain_ms).unwrap_or(0));
    let tell = |text: &str| match args.log {
        LogFormat::Text => say(text),
        LogFormat::Json => tracing::info!("{text}"),
    };
    let runtime = host::runtime(None)?;
    runtime.block_on(async {
        let listener = listen(args.listen, "--listen").await?;
        let grpc = match args.grpc {
            Some(address) => Some(listen(address, "--grpc").await?),
            None => None,
        };
        let context = context.waiting(args.proxy.store_wait_ms);
        let store = context.open(true, args.proxy.durability)?;
        settings::sync_budgets(store.clone(), &context).await?;
        policies::register(&policies::load(&context.around)?, &*store)?;
        let node = proxy_setup::join(store, &context, "outlast serve")?;
        let desk = StateDesk::new(&node, context.entropy.clone(), args.grpc_conflicts, Writer::NoRun);
        let sessions = Sessions::new(context.clock.clone(), context.entropy.clone(), false);
        let proxy = Proxy::new(node.clone(), &context.entropy, config, None)?
            .with_page(Shows::Beside, sessions.clone());
        let served = Serving::begin(servers, &context, node.store().clone());
        let proxy = match &served {
            Some(served) => proxy.with_mcp(served.front.clone()),
            None => proxy,
        };
        let mut stops = Stops::new()?;
        let address = listener.local_addr()?;
        tell(&format!("serving on http://{address}, store {}", context.place));
        tell(&format!("OPENAI_BASE_URL=http://{address}/v1 ANTHROPIC_BASE_URL=http://{address}, and a header X-Outlast-Run"));
        // On a terminal only: a link in a log could be opened by whoever reads it first.
        if address.ip().is_loopback() && std::io::stderr().is_terminal() {
            tell(&format!("the page, once and within a minute: {}", link(address, &sessions.link())));
        }
        let (stop_grpc, stopped) = oneshot::channel();
        let mut serving_grpc = None;
        if let Some(listener) = grpc {
            let address = listener.local_addr()?;
            tell(&format!("serving the state over gRPC on {address}"));
            let stopped = async { drop(stopped.await) };
            let admission = token.map_or(grpc::Admission::Everybody, grpc::Admission::ApiToken);
            serving_grpc = Some(tokio::spawn(grpc::serve(desk, listener, admission, stopped)));
        }
        let telling = notify::Delivering::start(told, &context, &network, node.store().clone(), node.clone());
        let beat = tokio::spawn(node.clone().keep_alive());
        proxy.begin_sharing();
        let sharing = tokio::spawn(proxy.clone().keep_sharing());
        let (drain_now, told_to_drain) = oneshot::channel();
        // One stream counts both signals: of two streams, one can still hold the first signal unread when the
        // second arrives, and a stream keeps no count of what it holds unread.
        let twice = async {
            tokio::select! { () = stops.next() => {}, () = input_ends(args.until_eof) => {} }
            tell("stopping; waiting for calls in flight (once more leaves them in doubt)");
            let _ = drain_now.send(());
            stops.next().await;
        };
        let hangup = unix::signal(unix::SignalKind::hangup())
            .map_err(MachineError::Signals)?;
        let store = node.store().clone();
        let following = settings::follow(proxy.clone(), store, args.clone(), context.clone(), reread, hangup);
        let following = tokio::spawn(following);
        let ending = args.idle_end_ms.map(|ms| tokio::spawn(proxy.clone().keep_ending_idle(ms)));
        let at_once = tokio::select! {
            () = proxy.clone().serve(listener, async { drop(told_to_drain.await) }, drain) => false,
            () = twice => true,
        };
        if let Some(served) = served.filter(|_| !at_once) {
            served.finish().await;
        }
        if let Some(telling) = telling.filter(|_| !at_once) {
            telling.finish().await;
        }
        following.abort();
        ending.inspect(tokio::task::JoinHandle::abort);
        beat.abort();
        let _ = stop_grpc.send(());
        if let Some(serving) = serving_grpc.filter(|_| !at_once) {
            // A replay stream that no client reads must not hold up the stop.
            let _ = tokio::time::timeout(GRPC_DRAIN, serving).await;
        }
        sharing.abort();
        tokio::task::spawn_blocking(move || proxy.end_sharing().and(node.leave()))
            .await
            .map_err(MachineError::Task)??;
        Ok(exit_code::OK)
    })
}

async fn listen(address: SocketAddr, flag: &'static str) -> Result<TcpListener, CliError> {
    let bound = TcpListener::bind(address).await;
    Ok(bound.map_err(|why| MachineError::Listen { address, why, flag: Some(flag) })?)
}

/// Waits for the end of standard input, if `is_awaited`: the program that holds its other end has ended. Else waits for
/// ever.
async fn input_ends(is_awaited: bool) {
    if is_awaited {
        let (ended, end) = oneshot::channel();
        // A thread of its own: one of the runtime's would hold its end up.
        std::thread::spawn(move || {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            let _ = ended.send(());
        });
        let _ = end.await;
    } else {
        std::future::pending().await
    }
}

/// Stream of SIGTERM and SIGINT.
struct Stops {
    term: unix::Signal,
    int: unix::Signal,
}

impl Stops {
    fn new() -> Result<Stops, CliError> {
        let on = |kind| unix::signal(kind).map_err(MachineError::Signals);
        Ok(Stops { term: on(unix::SignalKind::terminate())?, int: on(unix::SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! { _ = self.term.recv() => {}, _ = self.int.recv() => {} }
    }
}
