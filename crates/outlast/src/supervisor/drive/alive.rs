//! Questions that a supervisor asks as a live instance, which registers again when it was declared dead.

use outlast_core::{
    engine::{self, op::Verb},
    store::{self, Ask as _, Durability},
    words::id::InstanceNo,
};

use super::Driver;
use crate::program::error::CliError;

impl Driver {
    /// Submits an operation as this process's instance, which is registered again if it was declared dead. Returns the
    /// answer and the instance in whose name it was submitted.
    ///
    /// Errors: `RunHeld` if another process drives the run. A holder that cannot be seen from here (a container killed
    /// a moment ago) may be dead, so this waits once until that is decided.
    pub(super) async fn ask_alive<V: Verb>(
        &self,
        verb: impl Fn(InstanceNo) -> V,
    ) -> Result<(V::Answer, InstanceNo), CliError> {
        let mut waited = false;
        loop {
            let instance = self.node.instance();
            match self.store.ask(verb(instance), Durability::Synced).await {
                Ok(answer) => return Ok((answer, instance)),
                Err(store::Error::Engine(engine::Error::InstanceDead)) => {
                    let registered = self.node.register_anew(instance).await;
                    registered.or_else(comes_back)?;
                }
                Err(store::Error::Engine(engine::Error::RunHeld { .. })) if !waited => {
                    waited = self.await_verdicts().await?;
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Waits until each process that may be dead has renewed its heartbeat or was declared dead. Returns
    /// false if the store went away meanwhile.
    async fn await_verdicts(&self) -> Result<bool, CliError> {
        let node = self.node.clone();
        let judged = tokio::task::spawn_blocking(move || node.await_verdicts()).await;
        let judged = judged.map_err(std::io::Error::other)?;
        let is_done = judged.is_ok();
        judged.or_else(comes_back)?;
        Ok(is_done)
    }
}

/// Turns the error of a store that is away into success, because the next operation waits for the store. Any other
/// error is returned.
fn comes_back(e: store::Error) -> Result<(), store::Error> {
    if e.is_away() { Ok(()) } else { Err(e) }
}
