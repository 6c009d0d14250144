//! The proxy in this process, for agents that nobody supervises: it dies with them.

use std::{net::SocketAddr, time::Duration};

use outlast::{
    cli::{self, Command},
    program::context::Context,
    serve::proxy_setup,
    settings::{prices, surroundings::Surroundings},
};
use outlast_core::words::clock::random;
use outlast_server::door::{Access, Proxy};
use tokio::net::TcpListener;

use crate::{engine::Core, error::Failure};

/// Calls in flight have this long when the process ends: they are paid.
const DRAIN: Duration = Duration::from_secs(1);

/// Starts the proxy on a free loopback port. It lets run tokens in, and nobody else.
///
/// Its keys, prices and upstreams are those of `outlast serve`: variables, and the file of settings.
pub fn start(core: &Core) -> Result<SocketAddr, Failure> {
    // As they are now: a notebook sets its keys when it needs them.
    let context = &Context { around: Surroundings::of_process(), ..core.context.clone() };
    let parsed = cli::parse(&["outlast".into(), "serve".into()], &context.around)?;
    let Command::Serve(args) = parsed.command else {
        return Err(Failure::new("internal", "`outlast serve` was read as another command", None));
    };
    let keys = context.keys()?;
    let providers = proxy_setup::providers(&args.proxy, &keys, &Default::default(), context)?;
    let secret: [u8; 32] = random(context.entropy.as_ref());
    let token: String = secret.iter().map(|b| format!("{b:02x}")).collect();
    let access = Access { api_token: Some(token), loopback: true, allowed_hosts: Vec::new(), only_run: None };
    let table = prices::typed(&args.proxy)?;
    let (limits, policy) = (args.defaults.limits(), args.policy.policy());
    let config = proxy_setup::config(&args.proxy, access, providers, table, limits, policy);
    core.runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .map_err(|e| Failure::new("cannot_listen", format!("cannot listen on 127.0.0.1: {e}"), None))?;
        let address =
            listener.local_addr().map_err(|e| Failure::new("cannot_listen", e.to_string(), None))?;
        let proxy = Proxy::new(core.node.clone(), context.entropy.as_ref(), config, None)?;
        tokio::spawn(proxy.serve(listener, std::future::pending(), DRAIN));
        Ok(address)
    })
}
