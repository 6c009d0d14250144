//! The limit that a run is nearest to: one of its own, of a run above it, or of a named budget.

use std::collections::BTreeMap;

use crate::{
    envelope::{BudgetView, Envelope, Owner, Unit, budget::Name},
    store::{self, RunView, Store},
    words::{EnvelopeNo, Micros, RunNo},
};

/// Owner of a limit, as a run under it sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    Own,
    Above(RunNo),
    Named(Name),
}

/// Limit of one unit, with what is used of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tightest {
    pub whose: Whose,
    pub unit: Unit,
    pub limit: i64,
    pub spent: i64,
    /// Amount held for calls in flight and in doubt.
    pub reserved: i64,
}

impl Tightest {
    /// Returns whether a larger share of this limit than of the other is used.
    fn is_tighter_than(&self, other: &Tightest) -> bool {
        let used = |t: &Tightest| i128::from(t.spent.max(0)) + i128::from(t.reserved.max(0));
        // A limit of zero is used up from the beginning.
        let of = |t: &Tightest| i128::from(t.limit.max(0));
        match (of(self), of(other)) {
            (_, 0) => false,
            (0, _) => true,
            (own, others) => used(self) * others > used(other) * own,
        }
    }
}

/// Envelopes of other owners that runs of one list are under, each read once.
pub struct Above<'a> {
    store: &'a dyn Store,
    now: Micros,
    budgets: Option<Vec<BudgetView>>,
    runs: BTreeMap<EnvelopeNo, Option<Envelope>>,
}

impl<'a> Above<'a> {
    pub fn new(store: &'a dyn Store, now: Micros) -> Self {
        Above { store, now, budgets: None, runs: BTreeMap::new() }
    }

    /// Returns the limit of which the largest share is used; `None` without a limit. Of equal ones the run's own counts,
    /// dollars first. Only a run that is not over has limits of others.
    pub fn tightest(&mut self, view: &RunView) -> Result<Option<Tightest>, store::Error> {
        let run = &view.run;
        let mut found: Option<Tightest> = None;
        let wall_ms = run.wall_ms(run.ended_at.unwrap_or(self.now));
        consider(&mut found, &Whose::Own, &view.envelope, wall_ms);
        if run.status.is_ended() {
            return Ok(found);
        }
        for no in run.charges.iter().skip(1) {
            if let Some(e) = self.envelope(*no)?
                && let Owner::Run(above) = e.owner
            {
                consider(&mut found, &Whose::Above(above), &e, 0);
            }
        }
        if !run.budgets.is_empty() {
            let now = self.now;
            for named in self.budgets()?.iter().filter(|b| run.budgets.contains(&b.budget.no)) {
                consider(&mut found, &Whose::Named(named.budget.name.clone()), &named.envelope_at(now), 0);
            }
        }
        Ok(found)
    }

    fn envelope(&mut self, no: EnvelopeNo) -> Result<Option<Envelope>, store::Error> {
        if let Some(known) = self.runs.get(&no) {
            return Ok(known.clone());
        }
        let found = self.store.envelope(no)?;
        self.runs.insert(no, found.clone());
        Ok(found)
    }

    fn budgets(&mut self) -> Result<&[BudgetView], store::Error> {
        if self.budgets.is_none() {
            self.budgets = Some(self.store.budgets()?);
        }
        Ok(self.budgets.as_deref().unwrap_or_default())
    }
}

/// Puts a limit of the envelope in the place of `found` if it is tighter.
fn consider(found: &mut Option<Tightest>, whose: &Whose, e: &Envelope, wall_ms: i64) {
    for unit in Unit::ALL {
        // The time since a run above began is that run's own.
        let Some(limit) = e.limits[unit].filter(|_| unit != Unit::WallMs || *whose == Whose::Own) else {
            continue;
        };
        let spent = if unit == Unit::WallMs { wall_ms } else { e.spent[unit] };
        let one = Tightest { whose: whose.clone(), unit, limit, spent, reserved: e.reserved[unit] };
        if found.as_ref().is_none_or(|had| one.is_tighter_than(had)) {
            *found = Some(one);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{
            SetBudget, Source,
            tests::bench::{Bench, Request, usd},
        },
        envelope::{Per, budget::Terms},
        run::Policy,
        store::{Ask as _, Durability},
    };

    fn one(unit: Unit, limit: i64, spent: i64, reserved: i64) -> Tightest {
        Tightest { whose: Whose::Own, unit, limit, spent, reserved }
    }

    #[test]
    fn a_larger_used_share_is_tighter_and_a_limit_of_zero_is_the_tightest() {
        let usd = |limit, spent, reserved| one(Unit::CostNanoUsd, limit, spent, reserved);
        let calls = |limit, spent| one(Unit::Calls, limit, spent, 0);
        for (a, b, wanted) in [
            (calls(10, 9), usd(10, 5, 0), true),
            (calls(10, 5), usd(10, 5, 0), false),
            (calls(10, 5), usd(10, 3, 3), false),
            (calls(0, 0), usd(10, 10, 0), true),
            (usd(10, 10, 0), calls(0, 0), false),
            (calls(i64::MAX, i64::MAX), usd(i64::MAX, 1, 0), true),
        ] {
            assert_eq!(a.is_tighter_than(&b), wanted, "{a:?} {b:?}");
        }
    }

    #[test]
    fn a_run_is_told_the_named_budget_or_the_run_above_that_is_nearer_to_its_end() {
        let b = Bench::new();
        let run = b.start("r", usd(5), None, Policy::default());
        let child = b.start("child", usd(9), Some(run), Policy::default());
        let told = |run: RunNo| {
            let view = b.store.run(run).unwrap().unwrap();
            Above::new(&b.store, b.store.now().unwrap()).tightest(&view).unwrap().unwrap().whose
        };
        assert_eq!((told(run), told(child)), (Whose::Own, Whose::Own));
        // Three of nine, and of the five above.
        let actor = b.claim(child, b.register()).unwrap().unwrap();
        b.go(actor, Request::of(1, 3));
        assert_eq!((told(run), told(child)), (Whose::Own, Whose::Above(run)));
        let name = Name::new("all").unwrap();
        let terms = Terms { limits: usd(0), per: Per::Day, tag: None };
        let set = SetBudget { name: name.clone(), terms, source: Source::Command };
        b.store.ask(set, Durability::Synced).wait().unwrap();
        let budget = b.store.budgets().unwrap().remove(0).budget;
        crate::reads::budgets::to_all(&b.store, &budget).unwrap();
        assert_eq!((told(run), told(child)), (Whose::Named(name.clone()), Whose::Named(name)));
    }
}
