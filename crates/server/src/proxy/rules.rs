//! Compiled masks, under which the requests of a run are compared. A run keeps the masks that it was created with.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outlast_core::{
    reads,
    run::masks::{Masks, Rules},
    store::{Error, RunView, Store},
};

/// Number of cached sets of masks at which the cache is emptied.
const MANY: usize = 64;

/// Cache of compiled masks, shared by all runs with the same masks.
#[derive(Default)]
pub struct Compiled(Mutex<BTreeMap<Masks, Arc<Rules>>>);

impl Compiled {
    /// Returns the masks of the run, compiled. Errors: the store's; masks that cannot be compiled.
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
