//! `outlast mock`: the fake provider.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;
use outlast_mock as mock;
use outlast_mock::{Encoding, Failure, FixedUsage, Outages, RateLimit, Window};

use crate::{
    cli::values,
    program::{
        error::{CliError, MachineError},
        exit_code, host,
    },
};

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
    /// Phases from the start: `ok`, `refused` (nobody listens), `reset`, a status, `key` (the key is refused), `quota` (the account is used up), `limit` (a plan's limit for 5 h), each with a time or `N calls`
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

/// Runs the fake provider of `outlast mock` until a signal stops it. Returns the exit code.
pub fn mock(args: MockArgs) -> Result<u8, CliError> {
    let options = mock::Options {
        latency: Duration::from_millis(u64::try_from(args.latency_ms).unwrap_or(0)),
        usage: args.usage,
        encoding: args.encoding,
        fail: args.fail,
        seed: args.seed,
        rate_limit: args.rate_limit,
        outages: args.outage.unwrap_or_default(),
        plan: args.plan,
        log: args.log,
    };
    let runtime = host::runtime(None)?;
    runtime.block_on(async {
        let listener = super::listen(args.listen, "--listen").await?;
        let address = listener.local_addr()?;
        // Printed as the first line of standard output: scripts that asked for port 0 read it.
        println!("http://{address}");
        eprintln!(
            "hint: with any keys in the environment: outlast run --openai-base-url=http://{address}/v1 \
             --anthropic-base-url=http://{address} -- CMD"
        );
        let stop = async {
            // Without a handler the default action ends the process just as well.
            let _ = tokio::signal::ctrl_c().await;
        };
        mock::serve(listener, options, stop).await.map_err(MachineError::Mock)?;
        Ok(exit_code::OK)
    })
}
