//! Verbs on named budgets: set, raise and remove one, and charge runs to it.

use crate::{
    engine::prelude::*,
    envelope::{
        Per,
        budget::{Name, Past, Terms, UNITS},
    },
};

/// Source of a budget's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// A person's command.
    Command,
    /// A settings file, read when a program starts. Terms that the file leaves unchanged change nothing, so that what a
    /// person has set, raised or removed since then stays.
    #[serde(skip)]
    File,
}

/// Creates a named budget or changes its terms. The budget's current window gets the new limits and keeps its spent
/// amounts.
///
/// A changed period begins a new window. A changed tag creates another budget: calls of the old tag are no longer
/// charged to either. Synced. Idempotent. Errors: `BadLimit`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SetBudget {
    pub name: Name,
    pub terms: Terms,
    pub source: Source,
}

impl SetBudget {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Windows(None)]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<BudgetSet, Error> {
        check(&self.terms)?;
        let newest = l.all::<Budget>().filter(|b| b.name == self.name).max_by_key(|b| b.no);
        let configured = (self.source == Source::File).then(|| self.terms.clone());
        if let Some(known) = newest
            && configured.is_some()
            && known.configured == configured
        {
            return Ok(BudgetSet { no: known.no, changed: false, applied: known.removed || known.applied });
        }
        match newest.filter(|b| !b.removed).cloned() {
            Some(known) if known.terms.tag == self.terms.tag => self.change(l, known, configured, now),
            known => {
                if let Some(known) = &known {
                    l.budget_mut(known.no)?.removed = true;
                }
                let acts = known.as_ref().map(|known| known.acts.clone()).unwrap_or_default();
                let configured = configured.or_else(|| known?.configured);
                let no = BudgetNo(l.budgets.iter().map(|b| b.value.no.0).max().unwrap_or(0) + 1);
                l.budgets.push(Row::insert(Budget {
                    no,
                    name: self.name.clone(),
                    terms: self.terms.clone(),
                    configured,
                    window: None,
                    past: Past::default(),
                    removed: false,
                    applied: false,
                    acts,
                }));
                Ok(BudgetSet { no, changed: true, applied: false })
            }
        }
    }

    fn change(
        &self,
        l: &mut Loaded,
        known: Budget,
        configured: Option<Terms>,
        now: Micros,
    ) -> Result<BudgetSet, Error> {
        let terms = self.terms.clone();
        let configured = configured.or(known.configured.clone());
        let same_period = known.terms.per == terms.per;
        let mut after = Budget { terms, configured, ..known.clone() };
        if !same_period {
            (after.window, after.past) = (None, Past::default());
        }
        let current = after.current(now).map(|w| w.envelope);
        let mut changed = known.terms != after.terms;
        if let Some(no) = current
            && l.envelope(no)?.limits != after.terms.limits
        {
            changed = true;
            l.envelope_mut(no)?.limits = after.terms.limits;
        }
        let answer = BudgetSet { no: known.no, changed, applied: known.applied };
        if after != known {
            *l.budget_mut(known.no)? = after;
        }
        Ok(answer)
    }
}

fn check(terms: &Terms) -> Result<(), Error> {
    let bad = |why: String| Err(Error::BadLimit(why));
    for unit in Unit::ALL {
        match terms.limits[unit] {
            Some(_) if !UNITS.contains(&unit) => {
                return bad(format!(
                    "a named budget has no limit of {}: that is each run's own",
                    unit.name()
                ));
            }
            Some(limit) if limit < 0 => {
                return bad(format!("{} must not be negative, got {limit}", unit.name()));
            }
            _ => {}
        }
    }
    match UNITS.into_iter().any(|unit| terms.limits[unit].is_some()) {
        true => Ok(()),
        false => bad("a named budget limits cost, tokens or calls, and it limits none".into()),
    }
}

/// Returns the budget of this name. Needs `Need::Windows(None)`. Errors: `UnknownBudget`, also for a removed one.
pub fn named<'a>(l: &'a Loaded, name: &Name) -> Result<&'a Budget, Error> {
    let found = l.all::<Budget>().find(|b| !b.removed && b.name == *name);
    found.ok_or_else(|| Error::UnknownBudget { name: name.to_string() })
}

/// Returns the budget and the envelope of its current window.
pub fn window_of(
    l: &mut Loaded,
    name: &Name,
    now: Micros,
) -> Result<(BudgetNo, crate::words::id::EnvelopeNo), Error> {
    let no = named(l, name)?.no;
    let window = windows::window(l, no, now)?;
    Ok((no, window.ok_or_else(|| Error::UnknownBudget { name: name.to_string() })?))
}

/// Outcome of setting a named budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetSet {
    pub no: BudgetNo,
    /// False when the budget had these terms already.
    pub changed: bool,
    /// False while earlier runs are still to be charged to the budget: see `ApplyBudget`.
    pub applied: bool,
}

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
        let (budget, window) = window_of(l, &self.name, now)?;
        let mut limits = l.envelope(window)?.limits;
        for unit in Unit::ALL {
            let Some(add) = self.add[unit] else { continue };
            let limit = limits[unit]
                .filter(|_| UNITS.contains(&unit))
                .ok_or_else(|| Error::BadLimit(format!("{} has no limit to add to; set one", unit.word())))?;
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

/// Removes a named budget. Calls in flight stay charged to their windows; runs that wait for the budget go on.
///
/// Synced. Errors: `UnknownBudget`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RemoveBudget {
    pub name: Name,
}

impl RemoveBudget {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Budgets]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<(), Error> {
        let no = named(l, &self.name)?.no;
        l.budget_mut(no)?.removed = true;
        Ok(())
    }
}

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
