//! Apply budget: runs that were there before a named budget are charged to it, too.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
    },
    words::id::{BudgetNo, Micros, RunNo},
};

/// Charges the runs' calls to the budget from now on, and answers how many runs that is new to. Calls that are open
/// stay charged as they were admitted.
///
/// That the runs are its tag's, or below such a run, is the caller's to see to. `last`: all of them are named by
/// now. Synced. Idempotent.
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
            // It may have been forgotten since it was listed.
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
