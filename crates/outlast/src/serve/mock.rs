//! `outlast mock`: the fake provider.

use std::time::Duration;

use outlast_mock as mock;

use crate::{
    cli::MockArgs,
    program::{
        error::{CliError, MachineError},
        exit_code,
    },
};

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
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(MachineError::Runtime)?;
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
