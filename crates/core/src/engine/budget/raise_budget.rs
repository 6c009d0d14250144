//! Raise budget: adds to the limits of a named budget's window.

use serde::{Deserialize, Serialize};

use crate::{
    engine::{
        Error,
        budget::set_budget,
        loaded::{Loaded, Need},
    },
    envelope::{
        budget::{Name, Per, UNITS},
        unit::{Limits, Unit},
    },
    words::id::Micros,
};

/// Adds to the limits of a named budget's current window. Returns the new limits.
///
/// The next period begins with the budget's own limits again; a budget without periods keeps the added amount. Calls
/// that wait for room are decided again. Synced. Errors: `UnknownBudget`; `BadLimit` when there is no limit to add
/// to, or it would become negative.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RaiseBudget {
    pub name: Name,
    pub add: Limits,
}

impl RaiseBudget {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Windows(None)]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Limits, Error> {
        let (budget, window) = set_budget::window_of(l, &self.name, now)?;
        let mut limits = l.envelope(window)?.limits;
        for unit in Unit::ALL {
            let Some(add) = self.add[unit] else { continue };
            let limit = limits[unit]
                .filter(|_| UNITS.contains(&unit))
                .ok_or_else(|| Error::BadLimit(format!("{} has no limit to add to; set one", unit.name())))?;
            let sum = limit.saturating_add(add);
            if sum < 0 {
                return Err(Error::BadLimit(format!("{} would become {sum}", unit.name())));
            }
            limits[unit] = Some(sum);
        }
        l.envelope_mut(window)?.limits = limits;
        let budget = l.budget_mut(budget)?;
        if budget.terms.per == Per::None {
            budget.terms.limits = limits;
        }
        Ok(limits)
    }
}
