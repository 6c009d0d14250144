//! Setting of a named budget, and its application to the runs that existed before it.
//! And the runs that wait for a budget above their own, and whether they may go on.

use std::collections::{BTreeMap, HashMap};

use crate::{
    engine::{ApplyBudget, BudgetSet, InName, SetBudget},
    envelope::{Budget, BudgetView, Envelope, Refusal, Whose},
    reads::{called::called, runs},
    run::{Run, Status},
    store::{self, Ask as _, Durability, RunFilter, RunView, Store},
    words::{Micros, RunId, RunNo},
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

/// Returns whether the amount that `refusal` refused fits now. A removed budget refuses nothing.
///
/// `parent` is the envelope of the ancestor that the refusal names, if it names one.
pub fn is_room(refusal: &Refusal, budgets: &[BudgetView], parent: Option<&Envelope>, now: Micros) -> bool {
    let (Some(whose), Some(unit)) = (&refusal.whose, refusal.unit) else { return true };
    let fits = |e: &Envelope| e.free(unit).is_none_or(|free| free >= refusal.needs);
    match whose {
        Whose::Parent(_) => parent.is_none_or(fits),
        Whose::Named { name, .. } => {
            let named = budgets.iter().find(|b| b.budget.name.as_str() == name);
            named.is_none_or(|b| fits(&b.envelope_at(now)))
        }
    }
}

/// Returns the refusal told with the run above whose budget refuses, if it is a run's.
pub fn told_with_above(store: &dyn Store, refusal: Refusal) -> Result<Refusal, store::Error> {
    let Some(Whose::Parent(no)) = refusal.whose else { return Ok(refusal) };
    let above = store.run(no)?.map(|view| called(&view).into());
    Ok(Refusal { above, ..refusal })
}

/// Returns the refusal with which a run halts that waits for room in the budget of a run above it, when only a person gives
/// that room: the run above does nothing more, and none of its calls is in flight. `None` for any other run.
pub fn hopeless(store: &dyn Store, run: &Run) -> Result<Option<Refusal>, store::Error> {
    let Some(refusal) = run.halt.as_ref().filter(|_| run.status == Status::Waiting) else { return Ok(None) };
    let Some(Whose::Parent(no)) = refusal.whose else { return Ok(None) };
    let goes_on = |above: RunView| {
        matches!(above.run.status, Status::Running | Status::Waiting | Status::Sleeping)
            || above.envelope.has_calls_in_flight()
            || is_room(refusal, &[], Some(&above.envelope), refusal.at)
    };
    match store.run(no)?.is_none_or(goes_on) {
        true => Ok(None),
        false => told_with_above(store, refusal.clone()).map(Some),
    }
}

/// Returns the runs that wait for a named budget, by its name, newest first. The cost grows with waiting runs only.
pub fn waiting(store: &dyn Store) -> Result<BTreeMap<String, Vec<RunId>>, store::Error> {
    let mut found = BTreeMap::<String, Vec<RunId>>::new();
    let filter = RunFilter { status: Some(Status::Waiting), ..RunFilter::default() };
    for view in runs::each(store, filter) {
        let run = view?.run;
        if let Some(Whose::Named { name, .. }) = run.halt.and_then(|h| h.whose) {
            found.entry(name).or_default().push(run.id);
        }
    }
    Ok(found)
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
            Amounts, Budget, Limits, Owner, Per, Unit,
            budget::{Name, Past, Terms, Window},
        },
        run::Policy,
        store::{Answer, Error, Question, Ticket},
        words::{BudgetNo, EnvelopeNo, RunNo},
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

    const DAY: i64 = 86_400_000_000;

    #[test]
    fn there_is_room_when_it_fits_in_the_window_of_now() {
        let mut limits = Limits::default();
        limits[Unit::CostNanoUsd] = Some(100);
        let owner = Owner::Window { name: "team".into(), period: "1970-01-01".into() };
        let mut spent = Envelope::new(EnvelopeNo(7), owner, limits);
        spent.spent += Amounts::of(70, 0);
        let budget = Budget {
            no: BudgetNo(1),
            name: Name::new("team").unwrap(),
            terms: Terms { limits, per: Per::Day, tag: None },
            configured: None,
            window: Some(Window { since: Micros(0), envelope: EnvelopeNo(7) }),
            past: Past::default(),
            removed: false,
            applied: true,
            acts: Vec::new(),
        };
        let views = [BudgetView { budget, envelope: Some(spent.clone()) }];
        let check = |whose: Whose, needs: i64, budgets: &[BudgetView], now: i64, wanted: bool| {
            let refusal = Refusal::of(Unit::CostNanoUsd, needs, &spent, 30, Micros(0)).by(whose.clone());
            assert_eq!(
                is_room(&refusal, budgets, Some(&spent), Micros(now)),
                wanted,
                "{whose:?} {needs} {now}"
            );
        };
        let team = || Whose::Named { name: "team".into(), period: "1970-01-01".into(), until: None };
        check(team(), 30, &views, 0, true);
        check(team(), 31, &views, DAY - 1, false);
        check(team(), 31, &views, DAY, true);
        check(team(), 101, &views, DAY, false);
        // It was removed.
        check(team(), 101, &[], 0, true);
        check(Whose::Parent(RunNo(1)), 30, &[], 0, true);
        check(Whose::Parent(RunNo(1)), 31, &[], DAY, false);
    }
}
