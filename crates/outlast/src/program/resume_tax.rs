//! Resume tax of a run, as `show`, `spend`, a digest and a run's end tell it.

use std::ops::Range;

use outlast_core::{
    reads::entries,
    run::Attempt,
    store::{RunView, Store},
    words::Micros,
};

use crate::{
    program::error::Result,
    render::amount::{some, usd},
    settings::prices,
};

pub use outlast_server::api::read::resume_tax::{Restarts, Resumption, Tax};

/// Finds the conversations that later attempts of a run went on with.
///
/// Errors: those of the store. Returns none for a run that does not record requests.
pub fn resumptions(store: &dyn Store, view: &RunView, attempts: &[Attempt]) -> Result<Vec<Resumption>> {
    if attempts.len() < 2 {
        return Ok(Vec::new());
    }
    let mut restarts = Restarts::of(attempts.iter().map(|attempt| attempt.no));
    for entry in entries::each(store, view.run.no) {
        restarts.add(&entry?);
    }
    of_restarts(store, view, &restarts)
}

/// Returns the conversations that later attempts of a run went on with, from the calls around its restarts.
///
/// Errors: those of the store.
pub fn of_restarts(store: &dyn Store, view: &RunView, restarts: &Restarts) -> Result<Vec<Resumption>> {
    if restarts.is_empty() {
        return Ok(Vec::new());
    }
    Ok(restarts.resumptions(store, view.run.no, &prices::of_view(view)?)?)
}

/// Returns what the attempts of a run that began `within` a time bought again. Errors: those of the store.
pub fn tax_within(store: &dyn Store, view: &RunView, within: &Range<Micros>) -> Result<Tax> {
    let attempts = store.attempts(view.run.no)?;
    let mut all = resumptions(store, view, &attempts)?;
    let began = |no| attempts.iter().find(|attempt| attempt.no == no).map(|attempt| attempt.started_at);
    all.retain(|one| began(one.attempt).is_some_and(|at| within.contains(&at)));
    Ok(Tax::of(&all))
}

/// Returns the line about the resume tax for `outlast show`; `None` if no token was paid for again.
pub fn line(tax: &Tax) -> Option<String> {
    let (tokens, restarts) = (some(tax.tokens, "token"), some(tax.restarts, "restart"));
    let cost = usd(tax.cost_nano_usd);
    (tax.tokens > 0).then(|| format!("re-bought {cost} usd, {tokens} that the cache had, over {restarts}"))
}
