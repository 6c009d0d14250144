//! Under which masks a run's requests are compared: those it was created under, for all its life.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outlast_core::{
    reads,
    run::masks::{Masks, Rules},
    store::{Error, RunView, Store},
};

/// Beyond so many different masks those in memory are made anew.
const MANY: usize = 64;

/// Compiled once for all runs that have the same.
#[derive(Default)]
pub struct Compiled(Mutex<BTreeMap<Masks, Arc<Rules>>>);

impl Compiled {
    /// The rules of the run.
    pub fn of(&self, store: &dyn Store, view: &RunView) -> Result<Arc<Rules>, Error> {
        let masks = reads::masks::of(store, view)?;
        if let Some(rules) = self.lock().get(&masks) {
            return Ok(rules.clone());
        }
        let rules = Arc::new(masks.compile()?);
        let mut all = self.lock();
        if all.len() >= MANY {
            all.clear();
        }
        all.insert(masks, rules.clone());
        Ok(rules)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Masks, Arc<Rules>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
