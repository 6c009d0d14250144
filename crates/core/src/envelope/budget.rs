//! Named budgets: limits shared by all runs of a tag, over a period or for ever.
//!
//! Each period has an envelope of its own, its window, made at the first call of the period. A call is charged
//! to the windows it was admitted under, even if it settles in a later period.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

pub use crate::envelope::period::{Per, Period};

use crate::{
    envelope::{
        Envelope,
        unit::{Limits, Unit},
    },
    words::id::{BudgetNo, EnvelopeNo, Micros},
};

/// Name of a budget: 1 to 64 characters of `[A-Za-z0-9._-]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

/// Error for a text that is not the name of a budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a budget: {text:?} (wanted 1 to 64 of A-Z a-z 0-9 . _ -)")]
pub struct BadName {
    pub text: String,
}

impl Name {
    pub fn new(text: &str) -> Result<Name, BadName> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        match (1..=64).contains(&text.len()) && text.bytes().all(fits) {
            true => Ok(Name(text.into())),
            false => Err(BadName { text: text.chars().take(80).collect() }),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = BadName;
    fn from_str(text: &str) -> Result<Name, BadName> {
        Name::new(text)
    }
}

impl TryFrom<String> for Name {
    type Error = BadName;
    fn try_from(text: String) -> Result<Name, BadName> {
        Name::new(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0.to_string()
    }
}

/// Terms of a budget, as a person sets them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Limits of cost, tokens and calls. Other units belong to each run alone.
    pub limits: Limits,
    pub per: Per,
    /// Tag of the runs whose calls count, along with all runs below them. `None`: every run.
    pub tag: Option<(String, String)>,
}

impl Terms {
    /// Tells whether a run with these tags is charged directly, not through an ancestor.
    pub fn covers<'a>(&self, tags: impl IntoIterator<Item = (&'a String, &'a String)>) -> bool {
        let Some((key, value)) = &self.tag else { return true };
        tags.into_iter().any(|(k, v)| k == key && v == value)
    }
}

/// Envelope of one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Start of the window's period.
    pub since: Micros,
    pub envelope: EnvelopeNo,
}

/// Row of a named budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    pub no: BudgetNo,
    pub name: Name,
    pub terms: Terms,
    /// Terms last given by a settings file. A file that repeats them changes nothing, so that changes made by a
    /// command since then stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configured: Option<Terms>,
    /// Window that was charged last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Window that was charged before `window`. It counts again when a clock that had jumped ahead goes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Window>,
    /// Whether the budget was removed. Nothing is charged to it any more; the row stays, because runs name it.
    pub removed: bool,
    /// Whether runs that existed before the budget are charged to it, too.
    pub applied: bool,
}

impl Budget {
    /// Returns the period that counts at `now`: that of the current window, if there is one.
    pub fn period(&self, now: Micros) -> Period {
        self.terms.per.period(self.current(now).map_or(now, |w| w.since))
    }

    /// Returns the window that counts at `now`, if there is one yet.
    ///
    /// A clock that goes back finds what was spent then: the window of that time if it is known, and none is opened
    /// for a time before all that are known, so that nothing is spent twice.
    pub fn current(&self, now: Micros) -> Option<Window> {
        let since = self.terms.per.period(now).since;
        let known = || [self.window, self.before].into_iter().flatten();
        let is_first = known().all(|w| since < w.since);
        known().find(|w| w.since == since).or(self.window.filter(|_| is_first))
    }

    /// Makes `window` the one that was charged last.
    pub fn charge(&mut self, window: Window) {
        if self.window != Some(window) {
            self.before = self.window.replace(window);
        }
    }
}

/// Budget as committed, with the envelope of its newest window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetView {
    pub budget: Budget,
    pub envelope: Option<Envelope>,
}

impl BudgetView {
    /// Returns the envelope that counts at `now`: the window's, or an empty one if the period had no call yet.
    pub fn envelope_at(&self, now: Micros) -> Envelope {
        let current = self.budget.current(now).map(|window| window.envelope);
        let current = self.envelope.clone().filter(|e| Some(e.no) == current);
        current.unwrap_or_else(|| self.budget.opening(EnvelopeNo::default(), now))
    }
}

impl Budget {
    /// Returns an envelope for the period of `now`, with nothing spent.
    pub fn opening(&self, no: EnvelopeNo, now: Micros) -> Envelope {
        let owner =
            crate::envelope::Owner::Window { name: self.name.to_string(), period: self.period(now).name };
        Envelope::new(no, owner, self.terms.limits)
    }
}

/// Units that a named budget can limit.
pub const UNITS: [Unit; 3] = [Unit::CostNanoUsd, Unit::Tokens, Unit::Calls];

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(per: Per, window: Option<i64>) -> Budget {
        let terms = Terms { limits: Limits::default(), per, tag: None };
        let window = window.map(|since| Window { since: Micros(since), envelope: EnvelopeNo(1) });
        Budget {
            no: BudgetNo(1),
            name: Name::new("b").unwrap(),
            terms,
            configured: None,
            window,
            before: None,
            removed: false,
            applied: true,
        }
    }

    #[test]
    fn a_name_is_what_can_stand_in_a_table_header_and_a_label() {
        for (text, fits) in
            [("team-search", true), ("a.b_C-9", true), ("", false), ("a b", false), ("é", false)]
        {
            assert_eq!(Name::new(text).is_ok(), fits, "{text:?}");
        }
        assert!(Name::new(&"x".repeat(64)).is_ok() && Name::new(&"x".repeat(65)).is_err());
    }

    #[test]
    fn a_budget_covers_its_tag_and_one_without_a_tag_everybody() {
        let tags = std::collections::BTreeMap::from([("team".to_owned(), "search".to_owned())]);
        let check = |tag: Option<(&str, &str)>, wanted: bool| {
            let tag = tag.map(|(k, v)| (k.to_owned(), v.to_owned()));
            let terms = Terms { limits: Limits::default(), per: Per::Day, tag };
            assert_eq!(terms.covers(&tags), wanted);
        };
        check(None, true);
        check(Some(("team", "search")), true);
        check(Some(("team", "ads")), false);
        check(Some(("user", "search")), false);
    }

    #[test]
    fn a_clock_that_goes_back_opens_no_old_window() {
        const DAY: i64 = 86_400_000_000;
        let b = budget(Per::Day, Some(2 * DAY));
        for (now, current) in [(2 * DAY, true), (3 * DAY - 1, true), (DAY, true), (3 * DAY, false)] {
            assert_eq!(b.current(Micros(now)).is_some(), current, "{now}");
        }
        assert_eq!(b.period(Micros(0)).since, Micros(2 * DAY));
    }

    /// Bug: a clock that jumped a year ahead, and was set right, left a budget by the day in next year's window.
    /// Consequence: one day's money had to do for a year.
    /// Cause: a budget knew its newest window only, and never went back behind it.
    #[test]
    fn a_clock_that_jumped_ahead_and_went_back_counts_by_its_right_day() {
        const DAY: i64 = 86_400_000_000;
        let mut b = budget(Per::Day, Some(2 * DAY));
        let charged = |b: &mut Budget, now: i64, envelope: i64| {
            let found = b.current(Micros(now));
            let since = b.period(Micros(now)).since;
            let window = found.unwrap_or(Window { since, envelope: EnvelopeNo(envelope) });
            b.charge(window);
            (window.since.0 / DAY, window.envelope.0)
        };
        for (day, envelope, wanted) in [
            (2, 2, (2, 1)),
            (367, 3, (367, 3)),
            (2, 4, (2, 1)),
            (367, 5, (367, 3)),
            (2, 6, (2, 1)),
            (3, 7, (3, 7)),
            (4, 8, (4, 8)),
            (3, 9, (3, 7)),
            (1, 9, (3, 7)),
        ] {
            assert_eq!(charged(&mut b, day * DAY + 5, envelope), wanted, "on day {day}");
        }
        // Without a call on the right day before the jump, that day is new.
        let mut b = budget(Per::Day, Some(DAY));
        assert_eq!(charged(&mut b, 367 * DAY, 2), (367, 2));
        assert_eq!(charged(&mut b, 2 * DAY, 3), (2, 3));
    }
}
