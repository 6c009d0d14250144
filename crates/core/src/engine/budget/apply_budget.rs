//! Apply budget: charges existing runs to a named budget.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
    },
    words::id::{BudgetNo, Micros, RunNo},
};

/// Charges further calls of the runs to the budget. Returns the number of runs that were not charged to it before. Open
/// calls stay charged as they were admitted.
///
/// The caller ensures that each run has the budget's tag or is below such a run. `last`: with this operation, all such
/// runs have been named. Synced. Idempotent.
#[derive(Clone, Debug)]
pub struct ApplyBudget {
    pub budget: BudgetNo,
    pub runs: Vec<RunNo>,
    pub last: bool,
}

impl ApplyBudget {
    pub fn needs(&self) -> Vec<Need> {
        let runs = self.runs.iter().copied().map(Need::Run);
        runs.chain([Need::Budget(self.budget)]).collect()
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<usize, Error> {
        let budget = l.budgets.iter().map(|row| &row.value).find(|b| b.no == self.budget);
        let budget = budget.ok_or_else(|| Error::UnknownBudget { name: format!("#{}", self.budget) })?;
        if self.last && !budget.applied {
            l.budget_mut(self.budget)?.applied = true;
        }
        let mut new = 0;
        for no in &self.runs {
            // The run may have been forgotten since it was listed.
            let Ok(run) = l.run(*no) else { continue };
            if run.budgets.contains(&self.budget) {
                continue;
            }
            let mut budgets = run.budgets.to_vec();
            budgets.push(self.budget);
            budgets.sort();
            l.run_mut(*no)?.budgets = budgets.into();
            new += 1;
        }
        Ok(new)
    }
}
