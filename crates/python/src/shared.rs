//! Resources of an open engine, which its handles share.

use std::{net::SocketAddr, sync::Arc};

use outlast::program::{actor, context::Context};
use outlast_core::{run::TokenKey, store::Store};
use outlast_server::{
    node::{Beat, Node},
    state::StateDesk,
    work::Openings,
};
use parking_lot::Mutex;
use pyo3::{PyResult, Python};
use tokio::runtime::{Handle, Runtime};

use crate::{error::Failure, ticket::Post};

/// Resources that all handles of one engine share.
pub struct Core {
    pub context: Context,
    pub store: Arc<dyn Store>,
    pub node: Arc<Node>,
    pub beat: Arc<Beat>,
    /// Transactions of the state that are open in this process.
    pub desk: Arc<StateDesk>,
    pub runtime: Handle,
    pub post: Post,
    pub token_keys: Vec<TokenKey>,
    pub openings: Arc<Openings>,
    pub face: Mutex<Option<SocketAddr>>,
}

impl Core {
    /// Returns who acts through this process: a person's program, or an agent of a run.
    pub fn actor(&self) -> String {
        actor::by(&self.context.around, "python")
    }
}

/// Resources of an engine while it is open, usable only in the process that opened it.
pub struct Shared {
    pid: u32,
    core: Mutex<Option<(Arc<Core>, Runtime)>>,
}

impl Shared {
    pub fn new(core: Core, runtime: Runtime) -> Shared {
        Shared { pid: outlast_store::process::id(), core: Mutex::new(Some((Arc::new(core), runtime))) }
    }

    /// Takes the resources in order to close the engine; `None` if they were taken before, or in a forked child.
    pub fn take(&self) -> Option<(Arc<Core>, Runtime)> {
        self.is_own().ok()?;
        self.core.lock().take()
    }

    /// Checks that this process opened the engine. Errors: `ForkedHandle` in a forked child.
    pub fn is_own(&self) -> Result<(), Failure> {
        let here = outlast_store::process::id();
        if self.pid == here {
            return Ok(());
        }
        Err(Failure::new(
            "forked_handle",
            format!(
                "this handle was opened by process {}, and this is process {here}, forked from it",
                self.pid
            ),
            Some(
                "call outlast.connect() in each process, after the fork, and not before it; or start processes with \
                 the `spawn` or `forkserver` method",
            ),
        ))
    }

    /// Returns the open engine's resources. Errors: `ForkedHandle` in a forked child, `Closed`.
    pub fn core(&self) -> Result<Arc<Core>, Failure> {
        // The pid is checked first: in a forked child, the holder of the lock may not exist.
        self.is_own()?;
        let core = self.core.lock();
        core.as_ref().map(|(core, _)| core.clone()).ok_or_else(Failure::closed)
    }

    /// Does something with the open engine, without the interpreter's lock.
    pub fn read<T: Send, E: Into<Failure> + Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&Core) -> Result<T, E> + Send,
    ) -> PyResult<T> {
        let core = self.core()?;
        Ok(py.detach(|| act(&core)).map_err(Into::into)?)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.pid != outlast_store::process::id() {
            // The store's threads exist only in the parent: closing it here would wait for them forever.
            std::mem::forget(self.core.get_mut().take());
        }
    }
}
