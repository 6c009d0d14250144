//! Budgets: the lines of a run's own one, and named budgets.

use outlast_core::{
    envelope::{
        Envelope, Unit,
        budget::{self, BudgetView, UNITS},
    },
    reads::budgets,
    store::{self, RunView, Store},
    words::{Micros, RunId},
};
use serde::Serializer;

use crate::{Time, money::usd};

shape! {
    /// Limit and use of one unit, in whole numbers of that unit (`cost_nano_usd`, `wall_ms`, `calls`, …).
    pub BudgetLine(e: &Envelope, unit: Unit, spent: i64; let left = e.limits[unit].map(|limit| limit.saturating_sub(spent).saturating_sub(e.reserved[unit]))) {
        #[serde(serialize_with = "unit_name")] unit: Unit = unit;
        limit: Option<i64> = e.limits[unit];
        spent: i64 = spent;
        /// Amount held for calls in flight and in doubt.
        reserved: i64 = e.reserved[unit];
        in_doubt: i64 = e.doubt[unit];
        /// Rest of the limit; below zero after an overrun, `None` without a limit.
        left: Option<i64> = left;
        #[serde(flatten)]
        dollars: Option<Dollars> = (unit == Unit::CostNanoUsd).then(|| Dollars::new(e, spent, left));
    }
}

shape! {
    /// Amounts of a line of dollars as decimal text.
    pub Dollars(e: &Envelope, spent: i64, left: Option<i64>) {
        limit_usd: Option<String> = e.limits[Unit::CostNanoUsd].map(usd);
        spent_usd: String = usd(spent);
        reserved_usd: String = usd(e.reserved.cost());
        in_doubt_usd: String = usd(e.doubt.cost());
        left_usd: Option<String> = left.map(usd);
    }
}

fn unit_name<S: Serializer>(unit: &Unit, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(unit.name())
}

/// Returns the lines of a run's own budget as of `now`, one for every unit.
pub fn lines(view: &RunView, now: Micros) -> Vec<BudgetLine> {
    let (run, e) = (&view.run, &view.envelope);
    let line = |unit: Unit| {
        // Wall time is not stored: it is the time since the run began, up to its end.
        let wall_ms = || run.wall_ms(run.ended_at.unwrap_or(now));
        BudgetLine::new(e, unit, if unit == Unit::WallMs { wall_ms() } else { e.spent[unit] })
    };
    Unit::ALL.into_iter().map(line).collect()
}

shape! {
    /// Named budget in its current period. `waiting` are the runs that wait for room in it.
    pub NamedBudget(view: &BudgetView, waiting: Vec<RunId>, now: Micros; let (b, period, e) = (&view.budget, view.budget.period(now), view.envelope_at(now))) {
        name: String = b.name.as_str().to_owned();
        per: &'static str = b.terms.per.name();
        /// Tag of the runs that it is for, as `KEY=VALUE`; `None`: every run.
        tag: Option<String> = b.terms.tag.as_ref().map(|(key, value)| format!("{key}={value}"));
        /// Name of the period; empty if the budget has no end.
        period: String = period.name;
        /// When the next period begins.
        until: Option<Time> = period.until.map(Time);
        /// Units that have a limit.
        units: Vec<BudgetLine> = UNITS
            .into_iter()
            .filter(|unit| e.limits[*unit].is_some())
            .map(|unit| BudgetLine::new(&e, unit, e.spent[unit]))
            .collect();
        /// Newest acts of persons.
        acts: Vec<Act> = b.acts.iter().map(Act::new).collect();
        waiting: Vec<RunId> = waiting;
    }
}

impl NamedBudget {
    /// Returns all named budgets as they are now. Errors: those of the store.
    pub fn all(store: &dyn Store) -> Result<Vec<NamedBudget>, store::Error> {
        let (now, mut waiting) = (store.now()?, budgets::waiting(store)?);
        let budgets = store.budgets()?;
        let mut waiting_for = |name: &str| waiting.remove(name).unwrap_or_default();
        Ok(budgets.iter().map(|b| NamedBudget::new(b, waiting_for(b.budget.name.as_str()), now)).collect())
    }
}

shape! {
    /// Act of a person on a named budget.
    pub Act(act: &budget::Act) {
        at: Time = Time(act.at);
        what: String = act.what.clone();
        by: String = act.detail.by.clone();
        about: Option<String> = act.detail.about.clone();
    }
}
