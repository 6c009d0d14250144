//! `outlast run` inside of a run: a child run, which spends of its parent's budget by its parent's proxy.

use std::net::SocketAddr;

use outlast_core::{run::token, words::id::RunNo};

use crate::{
    agent::inside::Inside,
    program::{
        context::Context,
        error::{CliError, RunError},
    },
    settings::{
        keys::{Key, Keys, Origin},
        surroundings::Surroundings,
    },
};

/// The run around this process.
pub struct Surrounding {
    pub run: RunNo,
    /// Its proxy, which has the keys and serves its children.
    pub proxy: SocketAddr,
}

/// `None` outside of a run, and where another store was asked for: that store's runs have no parent here.
///
/// Errors: the run around is over, or its proxy is not named.
pub fn surrounding(context: &Context) -> Result<Option<Surrounding>, CliError> {
    let around = context.around.var("OUTLAST_STORE").and_then(|s| s.to_str());
    if around != context.place.without_secret().as_deref() {
        return Ok(None);
    }
    let Some(inside) = Inside::of(context)? else { return Ok(None) };
    let url = context.around.var("OUTLAST_URL").and_then(|u| u.to_str()).unwrap_or_default();
    let proxy = url.strip_prefix("http://").and_then(|address| address.parse().ok());
    let proxy = proxy.ok_or_else(|| RunError::NoParentProxy {
        run: inside.view.run.id.to_string(),
        url: url.to_owned(),
    })?;
    Ok(Some(Surrounding { run: inside.claims.run, proxy }))
}

/// Claude Code's tools find the run's token in ANTHROPIC_AUTH_TOKEN alone: it stands for the provider's key.
pub fn show_keys(keys: &mut Keys, around: &Surroundings) {
    let shown = around.var("ANTHROPIC_AUTH_TOKEN").and_then(|t| t.to_str());
    if let Some(token) = shown.filter(|t| token::looks_like_token(t)) {
        keys.anthropic.get_or_insert(Key { value: token.to_owned(), origin: Origin::Environment });
    }
}
