//! Windows: the envelopes of named budgets that a call is charged to, each of its budget's period.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Numbers, Row},
    },
    envelope::{Envelope, Owner, Whose, budget::Budget},
    words::id::{BudgetNo, EnvelopeNo, Micros, RunNo},
};

/// The windows a new call of the run is charged to now. A period's first call makes its window.
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

/// The budget's window now, which is made where the period has none yet; `None` when it was removed.
pub fn window(l: &mut Loaded, no: BudgetNo, now: Micros) -> Result<Option<EnvelopeNo>, Error> {
    let budget = l.budgets.iter().map(|row| &row.value).find(|b| b.no == no);
    let budget = budget.ok_or(Error::NotLoaded("the budget"))?;
    if budget.removed {
        return Ok(None);
    }
    if let Some(window) = budget.current(now) {
        return Ok(Some(window.envelope));
    }
    let numbers = l.numbers()?;
    let envelope = numbers.envelope;
    let (opening, since) = (budget.opening(envelope, now), budget.period(now).since);
    l.numbers = Some(Numbers { envelope: EnvelopeNo(envelope.0 + 1), ..numbers });
    l.envelopes.push(Row::insert(opening));
    l.budget_mut(no)?.window = Some(crate::envelope::budget::Window { since, envelope });
    Ok(Some(envelope))
}

/// Whose budget an envelope is: an ancestor's or a window's.
pub fn whose(l: &Loaded, envelope: &Envelope, now: Micros) -> Option<Whose> {
    Some(match &envelope.owner {
        Owner::Run(run) => Whose::Parent(*run),
        Owner::Window { name, period } => {
            let named = |b: &&Budget| b.window.is_some_and(|w| w.envelope == envelope.no);
            let budget = l.budgets.iter().map(|row| &row.value).find(named)?;
            Whose::Named { name: name.clone(), period: period.clone(), until: budget.period(now).until }
        }
    })
}
