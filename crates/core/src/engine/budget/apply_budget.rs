//! Apply budget: runs that were there before a named budget are charged to it, too.

use std::collections::HashMap;

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
        op::Durability,
    },
    envelope::budget::Budget,
    run::status::Status,
    store::{self, Ask as _, RunFilter, RunView, Store},
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

/// How many runs are read, and changed, at a time.
const PAGE: usize = 200;

/// Runs that may call again: all but those that are over for good.
const MAY_CALL: [Status; 6] =
    [Status::Running, Status::Interrupted, Status::Waiting, Status::Sleeping, Status::Halted, Status::Failed];

/// Applies a budget to the runs of its tag, and all below them, that were there before it; answers to how many.
///
/// Reads a page of runs at a time. May be broken off and repeated. Errors: those of the store.
pub fn to_all(store: &dyn Store, budget: &Budget) -> Result<usize, store::Error> {
    let mut total = 0;
    loop {
        let mut new = 0;
        for runs in missing(store, budget)?.chunks(PAGE) {
            let apply = ApplyBudget { budget: budget.no, runs: runs.to_vec(), last: false };
            new += store.ask(apply, Durability::Synced).wait()?;
        }
        total += new;
        // A child may have been made meanwhile under a parent that was not charged yet.
        if new == 0 {
            let last = ApplyBudget { budget: budget.no, runs: Vec::new(), last: true };
            store.ask(last, Durability::Synced).wait()?;
            return Ok(total);
        }
    }
}

/// Runs that should be charged to the budget, and are not yet.
fn missing(store: &dyn Store, budget: &Budget) -> Result<Vec<RunNo>, store::Error> {
    let mut covered = Covered { store, budget, known: HashMap::new() };
    let mut found = Vec::new();
    let of = |status: Status| RunFilter { status: Some(status), limit: PAGE, ..RunFilter::default() };
    let filters = MAY_CALL.map(of).into_iter();
    // A job that is completed can be opened again.
    for mut filter in filters.chain([RunFilter { jobs: true, limit: PAGE, ..RunFilter::default() }]) {
        loop {
            let page = store.runs(&filter)?;
            filter.before = page.last().map(|view| view.run.no);
            for view in &page {
                if !view.run.budgets.contains(&budget.no) && covered.is(view)? {
                    found.push(view.run.no);
                }
            }
            if page.len() < PAGE {
                break;
            }
        }
    }
    Ok(found)
}

/// Which runs are of the budget's tag, or below one that is.
struct Covered<'a> {
    store: &'a dyn Store,
    budget: &'a Budget,
    known: HashMap<RunNo, bool>,
}

impl Covered<'_> {
    fn is(&mut self, view: &RunView) -> Result<bool, store::Error> {
        let (mut seen, mut next) = (vec![view.run.no], view.run.parent);
        let mut covers = self.budget.terms.covers(&view.spec.tags);
        while let Some(no) = next.filter(|_| !covers) {
            if let Some(known) = self.known.get(&no) {
                covers = *known;
                break;
            }
            seen.push(no);
            let Some(above) = self.store.run(no)? else { break };
            covers = self.budget.terms.covers(&above.spec.tags);
            next = above.run.parent;
        }
        // Whoever is below one that is covered is so, too; where none was, none on the way is.
        self.known.extend(seen.into_iter().map(|no| (no, covers)));
        Ok(covers)
    }
}
