//! The state over gRPC under a run: what is written carries the run, its attempt and its fence.

use std::{net::SocketAddr, sync::Arc};

use outlast_core::{id::InstanceNo, op::Actor, state::transaction::Conflicts, token::Claims};
use outlast_server::{
    grpc,
    node::Node,
    state::{StateDesk, Writer},
};
use tokio::net::TcpListener;

use crate::{context::Context, error::CliError, exit_code};

/// The served state. It ends with the runtime.
pub struct StateFace {
    desk: Arc<StateDesk>,
    address: SocketAddr,
}

impl StateFace {
    /// Serves at `address`, which is on loopback. Nothing can be written before [`StateFace::drive`].
    pub async fn start(address: SocketAddr, node: &Node, context: &Context) -> Result<StateFace, CliError> {
        let cannot = |e: std::io::Error| CliError::Other {
            exit: exit_code::UNAVAILABLE,
            code: "cannot_listen",
            message: format!("cannot serve the state on {address}: {e}"),
            hint: Some("is another run's state served there? choose another with --grpc".into()),
        };
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let (clock, entropy) = (context.clock.clone(), context.entropy.clone());
        let store = node.store().clone();
        let desk = StateDesk::new(store, clock, entropy, Conflicts::Expected, Writer::Run(None));
        let served = grpc::serve(desk.clone(), listener, None, std::future::pending());
        tokio::spawn(async move {
            if let Err(e) = served.await {
                tracing::warn!(error = %e, "the state is not served any more");
            }
        });
        Ok(StateFace { desk, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The attempt is open: it writes from now on.
    pub fn drive(&self, claims: Claims, instance: InstanceNo) {
        let actor = Actor { run: claims.run, attempt: claims.attempt, instance };
        self.desk.drive(Some((actor, claims.slot)));
    }

    /// The attempt is over: nobody writes, and what it left open is aborted.
    pub fn rest(&self) {
        self.desk.drive(None);
    }
}
