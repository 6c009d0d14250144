//! Remove budget: stops charging calls to a named budget.

use serde::{Deserialize, Serialize};

use crate::{
    engine::{
        Error,
        budget::set_budget,
        loaded::{Loaded, Need},
    },
    envelope::budget::Name,
    words::id::Micros,
};

/// Removes a named budget. Calls in flight stay charged to their windows; runs that wait for the budget go on.
///
/// Synced. Errors: `UnknownBudget`.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
