//! `outlast run` inside a run: a child run, which spends its parent's budget, through its parent's proxy if it has one.

use std::net::SocketAddr;

use outlast_core::{run::token, words::id::RunNo};

use crate::{
    agent::inside::Inside,
    loops::is_loop,
    program::{
        context::Context,
        error::{CliError, RunError},
        told,
    },
    settings::{
        keys::{Key, Keys, Origin},
        surroundings::Surroundings,
    },
};
use outlast_server::dialect::Upstream;

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
    if is_loop(&inside.view) {
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
