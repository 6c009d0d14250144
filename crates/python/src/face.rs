//! Proxy in this process, for agents without a supervisor. It ends with the process.

use std::{net::SocketAddr, time::Duration};

use outlast::commands::embedded;
use outlast_core::words::clock::random;
use outlast_server::door::Proxy;
use tokio::net::TcpListener;

use crate::{error::Failure, shared::Core};

/// Time that calls in flight have when the process ends, as they are paid for.
const DRAIN: Duration = Duration::from_secs(1);

/// Starts the proxy on a free loopback port, and returns its address. It accepts run tokens only.
pub fn start(core: &Core) -> Result<SocketAddr, Failure> {
    let entropy = &core.context.entropy;
    let secret: [u8; 32] = random(entropy.as_ref());
    let config = embedded::proxy(&core.context, secret.iter().map(|b| format!("{b:02x}")).collect())?;
    core.runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .map_err(|e| Failure::new("cannot_listen", format!("cannot listen on 127.0.0.1: {e}"), None))?;
        let address =
            listener.local_addr().map_err(|e| Failure::new("cannot_listen", e.to_string(), None))?;
        let proxy = Proxy::new(core.node.clone(), entropy, config, Some(embedded::tells_outages()))?;
        tokio::spawn(proxy.serve(listener, std::future::pending(), DRAIN));
        Ok(address)
    })
}
