//! A process inside a run: an agent's hook, an agent that a script starts, another `outlast run`.

use std::sync::Arc;

use outlast_core::{
    engine::{self, actor::Actor},
    run::token::{self, Claims},
    store::{self, RunView, Store},
};

use crate::program::{
    context::Context,
    error::{CliError, InsideError},
    find, told,
};

/// Environment variable that holds the run's token.
pub const TOKEN: &str = told::TOKEN;

/// Run inside which this process runs, found by the token in its environment.
pub struct Inside {
    pub store: Arc<dyn Store>,
    pub view: RunView,
    pub claims: Claims,
    /// Attempt that the token names, and the instance that drives this attempt.
    pub actor: Actor,
}

impl Inside {
    /// Returns the run inside which this process runs; `None` without `OUTLAST_TOKEN`.
    ///
    /// Errors: a token that this store did not sign; `LeaseLost` if the token's attempt is over.
    pub fn of(context: &Context) -> Result<Option<Inside>, CliError> {
        let Some(token) = context.around.var(TOKEN).and_then(|t| t.to_str()) else { return Ok(None) };
        let store = context.open(false, Default::default())?;
        let claims = token::verify(token, &store.token_keys()?)
            .map_err(|why| InsideError::BadToken { why, store: store.place().to_string() })?;
        let view = find::view(store.as_ref(), claims.run)?;
        let attempts = store.attempts(claims.run)?;
        let open = attempts.iter().find(|a| a.no == claims.attempt && a.is_open() && a.fence == claims.fence);
        let Some(instance) = open.and_then(|a| a.instance) else {
            let (id, attempt) = (view.run.id.to_string(), claims.attempt.0);
            return Err(store::Error::Engine(engine::Error::LeaseLost { id, attempt }).into());
        };
        let actor = Actor { run: claims.run, attempt: claims.attempt, instance };
        Ok(Some(Inside { store, view, claims, actor }))
    }
}
