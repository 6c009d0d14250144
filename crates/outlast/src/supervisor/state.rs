//! The state under a run, over gRPC. Writes carry the run, its attempt and its fence.
//!
//! The published client of the state shows no credential. So a caller that shows none is known by the user who owns its
//! end of the connection, as the kernel tells.

use std::{net::SocketAddr, sync::Arc};

use outlast_core::{
    engine::{actor::Actor, state::transaction::Conflicts},
    run::token::{self, Claims},
    store::Store,
    words::id::{InstanceNo, RunId, RunNo},
};
use outlast_process::sockets;
use outlast_server::{
    grpc,
    node::Node,
    state::{StateDesk, Writer},
};
use tokio::net::TcpListener;

use crate::program::{
    context::Context,
    error::{CliError, MachineError},
};

/// Server of a run's state over gRPC, which ends with the runtime.
pub struct StateFace {
    desk: Arc<StateDesk>,
    address: SocketAddr,
}

impl StateFace {
    /// Starts serving at `address`, which must be on loopback, to processes of our own user and to whoever shows a token of
    /// the run. Nothing can be written before [`StateFace::drive`].
    ///
    /// Errors: `ListenForState` if the address is not available; nothing was started then.
    pub async fn start(
        run: (RunNo, &RunId),
        address: SocketAddr,
        conflicts: Conflicts,
        node: &Node,
        context: &Context,
    ) -> Result<StateFace, CliError> {
        let cannot =
            |why: std::io::Error| MachineError::ListenForState { address, why, run: run.1.to_string() };
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let desk = StateDesk::new(node, context.entropy.clone(), conflicts, Writer::Run(None));
        let (no, store) = (run.0, node.store().clone());
        let lets_in = move |shown: &str, peer| is_ours(peer, address) || is_runs(shown, no, &*store);
        let admission = grpc::Admission::By(Box::new(lets_in));
        let served = grpc::serve(desk.clone(), listener, admission, std::future::pending());
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

    /// Lets the open attempt write to the state from now on.
    pub fn drive(&self, claims: Claims, instance: InstanceNo) {
        let actor = Actor { run: claims.run, attempt: claims.attempt, instance };
        self.desk.drive(Some((actor, claims.slot)));
    }

    /// Refuses writes from now on, because the attempt is over. Its open transactions are aborted.
    pub fn rest(&self) {
        self.desk.drive(None);
    }
}

/// Returns whether a caller's end of a connection to `here` belongs to our own user.
fn is_ours(peer: Option<SocketAddr>, here: SocketAddr) -> bool {
    let owner = peer.and_then(|peer| sockets::tcp_owner(peer, here).ok().flatten());
    owner == Some(rustix::process::geteuid().as_raw())
}

/// Returns whether a caller has shown a token of the run.
fn is_runs(shown: &str, run: RunNo, store: &dyn Store) -> bool {
    let keys = store.token_keys().unwrap_or_default();
    token::verify(shown, &keys).is_ok_and(|claims| claims.run == run)
}
