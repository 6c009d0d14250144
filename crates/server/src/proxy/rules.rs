//! Compiled masks, under which the requests of a run are compared. A run keeps the masks that it was created with.

use std::{collections::BTreeMap, sync::Arc};

use outlast_core::{
    reads,
    run::masks::{Masks, Rules},
    store::{Error, RunView, Store},
};
use parking_lot::Mutex;

/// Number of cached sets of masks at which the cache is emptied.
const MANY: usize = 64;

/// Cache of compiled masks, shared by all runs with the same masks.
#[derive(Default)]
pub struct Compiled(Mutex<BTreeMap<Masks, Arc<Rules>>>);

impl Compiled {
    /// Returns the masks of the run, compiled. Errors: the store's; masks that cannot be compiled.
    pub fn of(&self, store: &dyn Store, view: &RunView) -> Result<Arc<Rules>, Error> {
        let masks = reads::runs::masks(store, view)?;
        if let Some(rules) = self.0.lock().get(&masks) {
            return Ok(rules.clone());
        }
        let rules = Arc::new(masks.compile()?);
        let mut all = self.0.lock();
        if all.len() >= MANY {
            all.clear();
        }
        all.insert(masks, rules.clone());
        Ok(rules)
    }
}
