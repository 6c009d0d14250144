//! A process inside a run: an agent's hook, an agent that a script starts, another `outlast run`. That one is a child run,
//! which spends its parent's budget, through its parent's proxy if it has one.

use std::{net::SocketAddr, sync::Arc};

use outlast_core::{
    engine::{self, Actor},
    run::token::{self, Claims},
    store::{self, RunView, Store},
    words::RunNo,
};
use outlast_server::dialect::Upstream;

use crate::{
    program::{
        context::Context,
        error::{CliError, InsideError, RunError},
        find, told,
    },
    settings::{
        keys::{Key, Keys, Origin},
        surroundings::Surroundings,
    },
};

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
        let Some(token) = context.around.var(told::TOKEN).and_then(|t| t.to_str()) else { return Ok(None) };
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

/// Run inside which this process runs.
pub struct Surrounding {
    pub run: RunNo,
    /// Address of the surrounding run's proxy, which has the keys and serves child runs; `None` in a loop's shell, which
    /// is metered by none.
    pub proxy: Option<SocketAddr>,
}

/// Returns the run inside which this process runs. `None` outside of a run, and if a store other than that run's was
/// asked for: its runs have no parent here.
///
/// Errors: the surrounding run's attempt is over, or `OUTLAST_URL` names no proxy.
pub fn surrounding(context: &Context) -> Result<Option<Surrounding>, CliError> {
    let around = context.around.var(told::STORE).and_then(|s| s.to_str());
    if around != context.place.without_secret().as_deref() {
        return Ok(None);
    }
    let Some(inside) = Inside::of(context)? else { return Ok(None) };
    let run = inside.claims.run;
    if inside.view.spec.is_shell_loop() {
        return Ok(Some(Surrounding { run, proxy: None }));
    }
    let url = context.around.var(told::URL).and_then(|u| u.to_str()).unwrap_or_default();
    let proxy = url.strip_prefix("http://").and_then(|address| address.parse().ok());
    let proxy = proxy.ok_or_else(|| RunError::NoParentProxy {
        run: inside.view.run.id.to_string(),
        url: url.to_owned(),
    })?;
    Ok(Some(Surrounding { run, proxy: Some(proxy) }))
}

/// Adds the run's token from ANTHROPIC_AUTH_TOKEN to `keys` as Anthropic's key, if there is none: Claude Code's tools
/// get the token in this variable only.
pub fn show_keys(keys: &mut Keys, around: &Surroundings) {
    let shown = around.var("ANTHROPIC_AUTH_TOKEN").and_then(|t| t.to_str());
    if let Some(token) = shown.filter(|t| token::looks_like_token(t)) {
        keys.of_mut(Upstream::Anthropic)
            .get_or_insert(Key { value: token.to_owned(), origin: Origin::Environment });
    }
}
