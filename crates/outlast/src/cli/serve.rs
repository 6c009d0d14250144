//! `outlast serve` and `outlast mock`.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, ValueEnum};
use outlast_core::{call::rate::Rate, engine::state::transaction::Conflicts, envelope::unit::Unit};
use outlast_mock::{Encoding, Failure, FixedUsage, Outages, RateLimit, Window};

use super::{
    shared::{PolicyArgs, ProxyArgs},
    values::{self, Limit},
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
    #[arg(long, value_name = "AMOUNT", default_value = "5", value_parser = values::usd_limit)]
    pub default_usd: Limit,
    /// Turns of the agent's loop
    #[arg(long, value_name = "N", default_value = "100", value_parser = values::count_limit)]
    pub default_loops: Limit,
    /// Time since the run began
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = values::ms_limit)]
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

/// A fake provider for tests and demos: every provider API, no network, no keys
#[derive(Args, Clone, Debug)]
#[command(after_help = MOCK_EXAMPLES)]
pub struct MockArgs {
    /// Address and port; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7078")]
    pub listen: SocketAddr,
    /// Time to the first byte of an answer
    #[arg(long = "latency", value_name = "TIME", default_value = "0s", value_parser = values::ms)]
    pub latency_ms: i64,
    /// Tokens to report for each call; by default estimated from its bytes
    #[arg(long, value_name = "IN,OUT")]
    pub usage: Option<FixedUsage>,
    /// Compress answers for clients that accept it: gzip
    #[arg(long, value_name = "NAME")]
    pub encoding: Option<Encoding>,
    /// Refuse requests at random with a status, without charge: STATUS:PROBABILITY; can be repeated
    #[arg(long, value_name = "STATUS:P")]
    pub fail: Vec<Failure>,
    /// Seed of the chance by which requests are refused
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Take so many calls a second, and so many at once; refuse the others with 429, without charge: 20/s,40
    #[arg(long, value_name = "RATE")]
    pub rate_limit: Option<RateLimit>,
    /// Phases from the start: `ok`, `refused` (nobody listens), `reset`, a status, `key` (the key is refused), `quota` (the account is used up), each with a time or `N calls`
    #[arg(long, value_name = "PHASES")]
    pub outage: Option<Outages>,
    /// A usage window of the plan that all calls are on: LENGTH:TOKENS, and used=40% (at the start), others=0.5% (another device's part, for each call), turns=4s (time until it resets); can be repeated
    #[arg(long = "plan-window", value_name = "WINDOW")]
    pub plan: Vec<Window>,
    /// Append one line for each request that was paid for
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

const MOCK_EXAMPLES: &str = "\
Examples:
  outlast mock --latency 300ms --log /tmp/paid.log
  outlast mock --listen 127.0.0.1:0 --usage 1000,500 --fail 429:0.1
  outlast mock --plan-window 5h:1000000,used=20%,turns=60s    the plan of a subscription
  outlast mock --outage 'ok 3 calls, refused 1h, 529 2h, key 30m, quota 10m'    rehearse a night";
