//! Windows: the envelopes of named budgets that a call is charged to, one per budget and period.

use crate::{
    engine::{Error, Loaded, Numbers},
    envelope::{Budget, Envelope, Owner, Whose, budget::Window},
    words::{BudgetNo, EnvelopeNo, Micros, Row, RunNo},
};

/// Returns the windows that a new call of the run is charged to now. The first call of a period creates its window.
///
/// Needs `Windows` of the run. A run without named budgets costs nothing.
pub fn open(l: &mut Loaded, run: RunNo, now: Micros) -> Result<Vec<EnvelopeNo>, Error> {
    let budgets = l.run(run)?.budgets.clone();
    let mut windows = Vec::with_capacity(budgets.len());
    for &no in budgets.iter() {
        windows.extend(window(l, no, now)?);
    }
    Ok(windows)
}

/// Returns the budget's current window, and creates it if the period has none yet; `None` for a removed budget.
pub fn window(l: &mut Loaded, no: BudgetNo, now: Micros) -> Result<Option<EnvelopeNo>, Error> {
    let budget = l.all::<Budget>().find(|b| b.no == no);
    let budget = budget.ok_or(Error::NotLoaded("the budget"))?;
    if budget.removed {
        return Ok(None);
    }
    if let Some(window) = budget.current(now) {
        if budget.window != Some(window) {
            l.budget_mut(no)?.charge(window);
        }
        return Ok(Some(window.envelope));
    }
    let numbers = l.numbers()?;
    let envelope = numbers.envelope;
    let (opening, since) = (budget.opening(envelope, now), budget.period(now).since);
    l.numbers = Some(Numbers { envelope: EnvelopeNo(envelope.0 + 1), ..numbers });
    l.envelopes.push(Row::insert(opening));
    l.budget_mut(no)?.charge(Window { since, envelope });
    Ok(Some(envelope))
}

/// Returns the owner of an envelope: an ancestor run or a named budget. `None` if the budget now has another window.
pub fn whose(l: &Loaded, envelope: &Envelope, now: Micros) -> Option<Whose> {
    Some(match &envelope.owner {
        Owner::Run(run) => Whose::Parent(*run),
        Owner::Window { name, period } => {
            let named = |b: &&Budget| b.current(now).is_some_and(|w| w.envelope == envelope.no);
            let budget = l.all::<Budget>().find(named)?;
            Whose::Named { name: name.clone(), period: period.clone(), until: budget.period(now).until }
        }
    })
}
