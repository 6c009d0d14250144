//! Runs that wait for a budget above their own, and whether they may go on.

use std::collections::BTreeMap;

use crate::{
    envelope::{BudgetView, Envelope, Refusal, Whose},
    reads::{called::called, runs},
    run::{Run, Status},
    store::{self, RunFilter, RunView, Store},
    words::{Micros, RunId},
};

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
    use super::*;
    use crate::{
        envelope::{
            Amounts, Budget, Limits, Owner, Per, Unit,
            budget::{Name, Past, Terms, Window},
        },
        words::{BudgetNo, EnvelopeNo, RunNo},
    };

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
