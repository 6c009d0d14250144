//! Permission to write a run's context: the token of its attempt, from the environment.

use outlast_core::{
    engine::{Change, PutByToken},
    run::token::{self, Claims},
    state::Committed,
    store::{Ask as _, Durability, RunView, Store},
};

use crate::{
    program::{
        error::{CliError, InsideError},
        told,
    },
    settings::surroundings::Surroundings,
};

/// Verified run token of this process, with the run that the token names.
#[derive(Clone, Debug)]
pub struct Bearer {
    pub claims: Claims,
    pub view: RunView,
}

impl Bearer {
    /// Reads the token and the run from `OUTLAST_TOKEN` and `OUTLAST_RUN_ID`. Each write checks that the token's
    /// attempt is still open.
    ///
    /// Errors: `no_run_here` if either is not set; a token that this store did not sign; `foreign_run` if the token and
    /// the id name different runs.
    pub fn of_environment(store: &dyn Store, around: &Surroundings) -> Result<Bearer, CliError> {
        let text = |name: &str| around.var(name).map(|v| v.to_string_lossy().into_owned());
        let (Some(token), Some(run)) = (text(told::TOKEN), text(told::RUN_ID)) else {
            return Err(InsideError::NoRunHere.into());
        };
        let claims = token::verify(&token, &store.token_keys()?)
            .map_err(|why| InsideError::BadToken { why, store: store.place().to_string() })?;
        match store.run(claims.run)? {
            Some(view) if view.run.id.as_str() == run => Ok(Bearer { claims, view }),
            found => Err(InsideError::ForeignRun {
                wanted: run,
                had: found.map_or_else(|| "an unknown one".into(), |v| v.run.id.to_string()),
            }
            .into()),
        }
    }

    /// Commits `changes` together, on disk before it returns. `progress`: they count as progress of the run. Without
    /// changes, commits nothing.
    pub fn put(&self, store: &dyn Store, changes: Vec<Change>, progress: bool) -> Result<(), CliError> {
        if changes.is_empty() {
            return Ok(());
        }
        let put = PutByToken { claims: self.claims, changes, transaction: None, progress };
        let _: Committed = store.run_verb(put, Durability::Synced)?;
        Ok(())
    }

    /// Returns whether a supervisor drives the run, rather than a loop's own shell.
    pub fn is_supervised(&self) -> bool {
        self.view.spec.command.is_some()
    }
}
