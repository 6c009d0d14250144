//! Who may write a run's context: whoever was given the token of its attempt, in the environment.

use outlast_core::{
    engine::state::{put::Change, put_by_token::PutByToken},
    run::token::{self, Claims},
    state::Committed,
    store::{Ask as _, Durability, RunView, Store},
};

use crate::{
    program::error::{CliError, InsideError},
    settings::surroundings::Surroundings,
};

/// The bearer of a run token, and its run.
#[derive(Clone, Debug)]
pub struct Bearer {
    pub claims: Claims,
    pub view: RunView,
}

impl Bearer {
    /// Of `OUTLAST_TOKEN` and `OUTLAST_RUN_ID`. That its attempt is not over is checked with each write.
    ///
    /// Errors: `no_run_here` without them; a token that is none of this store's; `foreign_run` where the two
    /// disagree.
    pub fn of_environment(store: &dyn Store, around: &Surroundings) -> Result<Bearer, CliError> {
        let text = |name: &str| around.var(name).map(|v| v.to_string_lossy().into_owned());
        let (Some(token), Some(run)) = (text("OUTLAST_TOKEN"), text("OUTLAST_RUN_ID")) else {
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

    /// Commits `changes` together, on disk before it returns. Nothing to change is no commit.
    pub fn put(&self, store: &dyn Store, changes: Vec<Change>, progress: bool) -> Result<(), CliError> {
        if changes.is_empty() {
            return Ok(());
        }
        let put = PutByToken { claims: self.claims, changes, transaction: None, progress };
        let _: Committed = store.run_verb(put, Durability::Synced)?;
        Ok(())
    }

    /// Whether a supervisor drives the run, and not a loop's own shell.
    pub fn is_supervised(&self) -> bool {
        self.view.spec.command.is_some()
    }
}
