//! Live answers: what the recording does not have is asked of the real providers, through a proxy in this process, by one
//! run that has a limit of dollars.

use std::{future, net::SocketAddr};

use outlast_mock::recorded::{Asked, pass_on};
use outlast_server::door::Proxy;
use tokio::{
    net::TcpListener,
    runtime::{Handle, Runtime},
};

use super::super::{embedded, prelude::*};
use crate::{cli::values::Limit, proxy_setup};

/// Run that buys all live answers of a crash test.
const RUN: &str = "live";

/// Proxy of this process. It ends with the runtime that it was begun on.
pub struct Live {
    proxy: SocketAddr,
    token: String,
    runtime: Handle,
}

impl Live {
    /// Begins the proxy, with a store of its own. Errors: settings, keys or prices that are not understood; those of the store.
    pub fn begin(context: &Context, store: PathBuf, usd: Limit, runtime: &Runtime) -> Result<Live> {
        let context = Context { place: StoreAddress::File(store), ..context.clone() };
        let mut random = [0; 16];
        context.entropy.fill(&mut random);
        let token = format!("{:032x}", u128::from_le_bytes(random));
        let mut config = embedded::proxy(&context, token.clone())?;
        config.default_limits = Limits::default();
        config.default_limits[Unit::CostNanoUsd] = usd.at();
        let store = context.open(true, Default::default())?;
        let _within = runtime.enter();
        let node = proxy_setup::join(store, &context, "outlast crashtest")?;
        let proxy = Proxy::new(node.clone(), &context.entropy, config, None)?;
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
        let live = Live { proxy: listener.local_addr()?, token, runtime: runtime.handle().clone() };
        runtime.spawn(node.keep_alive());
        runtime.spawn(proxy.serve(listener, future::pending(), Duration::ZERO));
        Ok(live)
    }

    /// Asks for an answer, and waits for all of it. Errors, in words: it was refused, as it is behind the limit, or is no text.
    pub fn answer(&self, asked: &Asked) -> Result<String, String> {
        let ours = [("authorization", format!("Bearer {}", self.token)), ("x-outlast-run", RUN.to_owned())];
        let said = self.runtime.block_on(pass_on(asked, self.proxy, ours));
        let (status, body) = said.map_err(|e| e.to_string())?;
        let text = String::from_utf8(body.into()).map_err(|e| e.to_string())?;
        if status == 200 { Ok(text) } else { Err(format!("{status}: {text}")) }
    }
}
