//! Setting of a named budget, and its application to the runs that existed before it.

use std::collections::HashMap;

use crate::{
    engine::{ApplyBudget, BudgetSet, InName, SetBudget},
    envelope::Budget,
    reads::runs,
    run::Status,
    store::{self, Ask as _, Durability, RunFilter, RunView, Store},
    words::RunNo,
};

/// Number of runs that are changed at a time.
const PAGE: usize = 200;

/// Statuses of runs that may call again: all but the final ones.
const MAY_CALL: [Status; 6] =
    [Status::Running, Status::Interrupted, Status::Waiting, Status::Sleeping, Status::Halted, Status::Failed];

/// Sets a named budget, in somebody's name if a person orders it, and charges existing runs with its tag to it. Returns
/// the number of runs newly charged.
///
/// May be interrupted and repeated: what an earlier one left is applied too. Errors: `BadLimit`; those of the store.
pub fn set(store: &dyn Store, set: SetBudget, by: Option<&str>) -> Result<(BudgetSet, usize), store::Error> {
    let told = match by {
        Some(by) => store.ask(InName::of(by, set), Durability::Synced).wait()?,
        None => store.ask(set, Durability::Synced).wait()?,
    };
    let known = if told.applied { Vec::new() } else { store.budgets()? };
    match known.iter().find(|view| view.budget.no == told.no) {
        Some(view) => Ok((told, to_all(store, &view.budget)?)),
        None => Ok((told, 0)),
    }
}

/// Applies a budget to existing runs with its tag, and to all runs below them. Returns the number of runs changed.
///
/// Reads a page of runs at a time. May be interrupted and repeated. Errors: those of the store.
pub fn to_all(store: &dyn Store, budget: &Budget) -> Result<usize, store::Error> {
    let mut total = 0;
    loop {
        let mut new = 0;
        for runs in missing(store, budget)?.chunks(PAGE) {
            let apply = ApplyBudget { budget: budget.no, runs: runs.to_vec(), last: false };
            new += store.ask(apply, Durability::Synced).wait()?;
        }
        total += new;
        // A child may have been created meanwhile under a parent that was not charged yet.
        if new == 0 {
            let last = ApplyBudget { budget: budget.no, runs: Vec::new(), last: true };
            store.ask(last, Durability::Synced).wait()?;
            return Ok(total);
        }
    }
}

/// Returns the runs that should be charged to the budget and are not yet.
fn missing(store: &dyn Store, budget: &Budget) -> Result<Vec<RunNo>, store::Error> {
    let mut covered = Covered { store, budget, known: HashMap::new() };
    let mut found = Vec::new();
    // All runs, by number, each read once: in a list by status, a run whose status changes meanwhile may be in none.
    for view in runs::each(store, RunFilter::default()) {
        let view = view?;
        // A completed job can be opened again.
        let may_call = MAY_CALL.contains(&view.run.status) || view.run.job.is_some();
        if may_call && !view.run.budgets.contains(&budget.no) && covered.is(&view)? {
            found.push(view.run.no);
        }
    }
    Ok(found)
}

/// Cached test of whether a run has the budget's tag, or is below a run that has it.
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
        // Every run below a covered run is covered; if none was found, no run on the way up is.
        self.known.extend(seen.into_iter().map(|no| (no, covers)));
        Ok(covers)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::{
        engine::{
            Op, Source,
            tests::bench::{Bench, usd},
        },
        envelope::{
            Per,
            budget::{Name, Terms},
        },
        run::Policy,
        store::{Answer, Error, Question, Ticket},
    };

    /// Store in which a run begins to work as soon as a list of runs has been read.
    struct Restless {
        bench: Bench,
        run: RunNo,
        works: AtomicBool,
    }

    impl Store for Restless {
        fn submit(&self, op: Op, durability: Durability) -> Ticket {
            self.bench.store.submit(op, durability)
        }

        fn answer(&self, question: &Question) -> Result<Answer, Error> {
            let answer = self.bench.store.answer(question);
            if matches!(question, Question::Runs { .. }) && !self.works.swap(true, Ordering::Relaxed) {
                self.bench.claim(self.run, self.bench.register())?.unwrap();
            }
            answer
        }

        fn place(&self) -> String {
            self.bench.store.place()
        }
    }

    /// Bug: a run whose status changed between the lists of two statuses was in neither. Consequence: it was never charged
    /// to a new budget. Cause: runs were looked for status by status.
    #[test]
    fn a_run_whose_status_changes_while_runs_are_listed_is_charged_to_a_new_budget() {
        let bench = Bench::new();
        let run = bench.start("r", usd(5), None, Policy::default());
        let store = Restless { bench, run, works: AtomicBool::new(false) };
        let terms = Terms { limits: usd(9), per: Per::Day, tag: None };
        let order = SetBudget { name: Name::new("all").unwrap(), terms, source: Source::Command };
        let (told, charged) = set(&store, order, None).unwrap();
        let view = store.run(run).unwrap().unwrap();
        assert_eq!((charged, view.run.status), (1, Status::Running));
        assert_eq!(*view.run.budgets, [told.no]);
    }
}
