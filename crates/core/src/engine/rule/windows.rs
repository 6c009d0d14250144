//! Windows: the envelopes of named budgets that a call is charged to, each of its budget's period.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need, Row},
    },
    envelope::{Envelope, Owner, Whose, budget::Budget},
    journal::State,
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
    let envelope = l.numbers.envelope;
    if envelope == EnvelopeNo::default() {
        return Err(Error::NotLoaded("the next envelope's number"));
    }
    let (opening, since) = (budget.opening(envelope, now), budget.period(now).since);
    l.numbers.envelope = EnvelopeNo(envelope.0 + 1);
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

/// Adds to what was loaded for an operation the named budgets it needs, and the windows of the calls it found.
///
/// `load` loads needs, and is asked only for what is missing. Stores call it after loading, inside the same
/// transaction; runs and calls without named budgets cost nothing.
pub fn complete<E>(
    l: &mut Loaded,
    needs: &[Need],
    now: Micros,
    mut load: impl FnMut(&[Need]) -> Result<Loaded, E>,
) -> Result<(), E> {
    let mut wanted: Vec<EnvelopeNo> = Vec::new();
    for need in needs {
        let Need::Windows(whose) = need else { continue };
        let found: Vec<Need> = match whose {
            None => vec![Need::Budgets],
            Some(run) => match l.run(*run) {
                Ok(run) => run.budgets.iter().copied().map(Need::Budget).collect(),
                Err(_) => continue,
            },
        };
        if found.is_empty() {
            continue;
        }
        l.budgets.extend(load(&found)?.budgets);
        wanted.extend(l.budgets.iter().filter_map(|b| b.value.window).map(|w| w.envelope));
        if l.budgets.iter().any(|b| b.value.current(now).is_none()) {
            l.numbers = load(&[Need::Numbers])?.numbers;
        }
    }
    // What is closed for good is charged nothing more.
    let charged = l.entries.iter().map(|row| &row.value);
    let charged = charged.filter(|e| matches!(e.state, State::Open | State::Unknown));
    wanted.extend(charged.flat_map(|e| e.windows()));
    wanted.retain(|no| l.envelope(*no).is_err());
    wanted.sort();
    wanted.dedup();
    if !wanted.is_empty() {
        l.envelopes.extend(load(&[Need::Envelopes(wanted)])?.envelopes);
    }
    Ok(())
}
