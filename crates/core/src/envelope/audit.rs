//! Audit: compares an envelope with the entries that were charged to it.

use crate::{
    envelope::{Amounts, Envelope, Unit},
    journal::{Entry, Kind, State},
    run::Run,
    words::RunNo,
};

/// Units that calls charge to every envelope of their run.
const SHARED: [Unit; 3] = [Unit::CostNanoUsd, Unit::Tokens, Unit::Calls];

/// Sums of the entries charged to an envelope.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    pub held: Amounts,
    pub doubt: Amounts,
    pub spent: Amounts,
    /// Cost and tokens that providers billed beyond the reservations.
    pub overrun: Amounts,
}

impl Sums {
    /// Adds a call. Other entries are ignored: items and steps repeat the charges of the calls made in them.
    pub fn add(&mut self, e: &Entry) {
        if e.kind != Kind::Call {
            return;
        }
        self.held += e.held;
        self.spent += e.spent;
        if e.state == State::Unknown {
            self.doubt += e.held;
        }
        self.overrun += e.call.as_ref().map_or_else(Amounts::default, |call| call.overrun());
    }

    /// Describes the first limit of the envelope that is passed by more than the overruns; `None` if none is.
    pub fn passed(&self, e: &Envelope) -> Option<String> {
        let used = |u: Unit| e.spent[u] + e.reserved[u];
        let passes =
            |u: &Unit| e.limits[*u].is_some_and(|limit| used(*u) > limit.saturating_add(self.overrun[*u]));
        let u = SHARED.into_iter().find(passes)?;
        let (name, over) = (u.name(), self.overrun[u]);
        let limit = e.limits[u].unwrap_or_default();
        Some(format!(
            "{} {name} spent and reserved, over the limit of {limit} by more than the overruns of {over}",
            used(u)
        ))
    }

    /// Describes the first sum of the envelope that differs from the sum of its entries; `None` if none does.
    ///
    /// `forgotten`: some entries may be gone with their run. Their `spent` and `doubt` stay charged, so the
    /// envelope may then exceed the sums of the remaining entries, but never fall below them.
    pub fn differ(&self, e: &Envelope, forgotten: bool) -> Option<String> {
        let said = |unit: Unit, what: &str, has: i64, adds: i64| {
            format!("{what} {has} {}, and its entries add up to {adds}", unit.name())
        };
        let wrong = |has: i64, adds: i64| if forgotten { has < adds } else { has != adds };
        let differs = |u: Unit| {
            let (spent, doubt, held) = (self.spent[u], self.doubt[u], self.held[u]);
            // Calls in flight never belong to a forgotten run, so their holds must add up exactly.
            let held = if forgotten { e.doubt[u] + held - doubt } else { held };
            if wrong(e.spent[u], spent) {
                Some(said(u, "spent", e.spent[u], spent))
            } else if e.reserved[u] != held {
                Some(said(u, "reserved", e.reserved[u], held))
            } else if wrong(e.doubt[u], doubt) {
                Some(said(u, "in doubt", e.doubt[u], doubt))
            } else {
                None
            }
        };
        SHARED.into_iter().find_map(differs).or_else(|| e.inconsistency())
    }
}

/// Detects forgotten runs in a walk from the newest run down to the oldest. Run numbers are given without a
/// gap, and the newest run is never forgotten.
#[derive(Clone, Debug, Default)]
pub struct Gone {
    last: Option<RunNo>,
    gap: bool,
}

impl Gone {
    /// Takes the next older run that exists. Returns whether a child of `run` may be gone, with entries that were
    /// charged to its envelope. A run that can go on has all its children (see `forget`).
    pub fn child_of(&mut self, run: &Run) -> bool {
        self.gap |= self.last.is_some_and(|last| last.0 != run.no.0 + 1);
        self.last = Some(run.no);
        self.gap && run.over_since().is_some()
    }

    /// Returns whether any run is gone, once all existing runs were passed to `child_of`.
    pub fn any(&self) -> bool {
        self.gap || self.last.is_some_and(|last| last.0 != 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        envelope::{Limits, Owner},
        words::EnvelopeNo,
    };

    #[test]
    fn an_envelope_may_be_ahead_of_its_entries_only_by_what_a_forgotten_run_can_have_left() {
        let check = |(reserved, doubt, spent): (i64, i64, i64), forgotten: bool, wanted: Option<&str>| {
            let mut e = Envelope::new(EnvelopeNo(1), Owner::Run(RunNo(1)), Limits::default());
            let of = |cost| Amounts::of(cost, 0);
            (e.reserved, e.doubt, e.spent) = (of(reserved), of(doubt), of(spent));
            // 7 held, 4 of that in doubt; 10 spent.
            let sums = Sums { held: of(7), doubt: of(4), spent: of(10), ..Sums::default() };
            let differs = sums.differ(&e, forgotten);
            let what = differs.as_deref().and_then(|said| said.split(" cost_nano_usd").next());
            assert_eq!(what, wanted, "{reserved} {doubt} {spent} {forgotten}");
        };
        for forgotten in [false, true] {
            check((7, 4, 10), forgotten, None);
            check((7, 4, 9), forgotten, Some("spent 9"));
            check((6, 3, 10), forgotten, Some(if forgotten { "in doubt 3" } else { "reserved 6" }));
            check((8, 4, 10), forgotten, Some("reserved 8"));
            check((6, 4, 10), forgotten, Some("reserved 6"));
        }
        check((7, 4, 11), false, Some("spent 11"));
        check((7, 4, 11), true, None);
        check((9, 6, 10), false, Some("reserved 9"));
        check((9, 6, 10), true, None);
    }
}
