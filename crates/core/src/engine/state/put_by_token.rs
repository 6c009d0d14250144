//! Put by token: lets a process of the agent change its run's state.

use std::sync::Arc;

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        rule::guard,
        state::put::{Author, Change},
    },
    run::token::Claims,
    state::Committed,
    words::id::Micros,
};

/// Changes the state as the attempt that a run token names. All of `changes`, or none.
///
/// The `Put` of processes that are no instances: an agent's children hold only its token. Synced.
/// Idempotent on `transaction`. Errors: `LeaseLost` once the attempt is over or another one drives its slot;
/// `Conflict` and `Changed`; `ReadOnlyNamespace` for another run's namespace and for one of Outlast's own. An
/// error writes nothing.
#[derive(Clone, Debug)]
pub struct PutByToken {
    /// Claims of a token whose signature was checked.
    pub claims: Claims,
    pub changes: Vec<Change>,
    /// The caller's id of this transaction, never used for another one; `None` for no id.
    pub transaction: Option<Arc<str>>,
    /// Whether the changes are progress of the agent: counted like a finished entry, so that a later death is no
    /// crash loop.
    pub progress: bool,
}

impl PutByToken {
    pub fn needs(&self) -> Vec<Need> {
        let Claims { run, attempt, slot, .. } = self.claims;
        let mut needs: Vec<Need> = self.changes.iter().map(Change::need).collect();
        needs.extend(self.transaction.clone().map(Need::Transaction));
        needs.extend([Need::Run(run), Need::Attempt(run, attempt), Need::Lease(run, slot)]);
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Committed, Error> {
        if let Some(outcome) = &l.state.outcome {
            return Ok(outcome.clone());
        }
        guard::bears(l, &self.claims)?;
        let by = Author::Attempt(self.claims.run, self.claims.attempt);
        let committed = Change::apply(&self.changes, l, by, self.transaction.as_ref(), now)?;
        if self.progress {
            l.run_mut(self.claims.run)?.closed += 1;
        }
        Ok(committed)
    }
}
