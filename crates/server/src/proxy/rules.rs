//! Under which masks a run's requests are compared: those it was created under, for all its life.

use std::{collections::BTreeMap, sync::Arc};

use outlast_core::{
    run::masks::{self, Masks, Rules},
    store::{Error, RunView},
};

use super::host::{Host, lock};

/// Beyond so many different masks those in memory are made anew.
const MANY: usize = 64;

/// Compiled once for all runs that have the same.
pub type Compiled = BTreeMap<Masks, Arc<Rules>>;

/// The rules of the run.
pub fn of(host: &Host, view: &RunView) -> Result<Arc<Rules>, Error> {
    let masks = masks::of(host.store.as_ref(), view)?;
    if let Some(rules) = lock(&host.rules).get(&masks) {
        return Ok(rules.clone());
    }
    let rules = Arc::new(masks.compile()?);
    let mut all = lock(&host.rules);
    if all.len() >= MANY {
        all.clear();
    }
    all.insert(masks, rules.clone());
    Ok(rules)
}
