//! Remove budget: nothing more is charged to it.

use crate::{
    engine::{
        Error,
        budget::set_budget,
        loaded::{Loaded, Need},
    },
    envelope::budget::Name,
    words::id::Micros,
};

/// Takes a named budget away. Calls in flight are charged to their windows to the end; runs that wait for it go on.
///
/// Synced. Errors: `UnknownBudget`.
#[derive(Clone, Debug)]
pub struct RemoveBudget {
    pub name: Name,
}

impl RemoveBudget {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Budgets]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        let no = set_budget::named(l, &self.name)?.no;
        l.budget_mut(no)?.removed = true;
        Ok(())
    }
}
