//! Named budgets: limits shared by all runs of a tag, over a period or for ever.
//!
//! Each period has an envelope of its own, its window, made at the first call of the period. A call is charged
//! to the windows it was admitted under, even if it settles in a later period.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    envelope::{Envelope, Limits, Unit},
    journal::ActDetail,
    named, stored_as_text,
    words::{
        BadText, BudgetNo, EnvelopeNo, Micros,
        calendar::{self, DAY},
        is_default,
    },
};

/// Name of a budget: 1 to 64 characters of `[A-Za-z0-9._-]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

impl Name {
    pub fn new(text: &str) -> Result<Name, BadText> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        match (1..=64).contains(&text.len()) && text.bytes().all(fits) {
            true => Ok(Name(text.into())),
            false => Err(BadText::new("the name of a budget", text, "1 to 64 of A-Z a-z 0-9 . _ -")),
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
    type Err = BadText;
    fn from_str(text: &str) -> Result<Name, BadText> {
        Name::new(text)
    }
}

stored_as_text!(Name);

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
    /// Returns whether a run with these tags is charged to the budget by its own tags, not through an ancestor.
    pub fn covers<'a>(&self, tags: impl IntoIterator<Item = (&'a String, &'a String)>) -> bool {
        let Some((key, value)) = &self.tag else { return true };
        tags.into_iter().any(|(k, v)| k == key && v == value)
    }
}

/// Envelope of one period of a named budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Start of the window's period.
    pub since: Micros,
    pub envelope: EnvelopeNo,
}

/// Number of past windows that a budget remembers: a clock may be wrong for as many periods.
const REMEMBERED: usize = 7;

/// Windows of a budget that were charged before its newest one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// Remembered windows, each with its envelope.
    windows: Vec<Window>,
    /// Start of the latest period whose window is forgotten: every later period has no window but those remembered.
    /// `None`: periods before the earliest window are not known, as in budgets of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forgotten: Option<Micros>,
}

impl Past {
    /// Remembers a window. Beyond [`REMEMBERED`] windows, forgets the one whose period is earliest.
    fn remember(&mut self, window: Window) {
        self.windows.push(window);
        if self.windows.len() > REMEMBERED {
            self.windows.sort_by_key(|w| w.since);
            self.forgotten = self.forgotten.max(Some(self.windows.remove(0).since));
        }
    }
}

/// Row of a named budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    pub no: BudgetNo,
    pub name: Name,
    pub terms: Terms,
    /// Terms last given by a settings file; `None` if none has named the budget. A file that repeats them changes
    /// nothing, so that changes made by a command since then stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configured: Option<Terms>,
    /// Window that was charged last; `None` if there is none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Windows that were charged before. They count again when a clock that had jumped ahead goes back.
    #[serde(default, skip_serializing_if = "is_default")]
    pub past: Past,
    /// Whether the budget was removed. Nothing is charged to it any more; the row stays, because runs name it.
    pub removed: bool,
    /// Whether runs that existed before the budget are charged to it, too.
    pub applied: bool,
    /// Newest changes by people, oldest first, at most [`ACTS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acts: Vec<Act>,
}

/// Most changes by people that a budget remembers.
pub const ACTS: usize = 20;

/// Change of a named budget by a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    pub at: Micros,
    /// Name of the order: `set`, `raise` or `remove`.
    pub what: String,
    #[serde(flatten)]
    pub detail: ActDetail,
}

impl Budget {
    /// Returns the period that counts at `now`: that of the current window if there is one, else that of the calendar.
    pub fn period(&self, now: Micros) -> Period {
        self.terms.per.period(self.current(now).map_or(now, |w| w.since))
    }

    /// Returns the window that counts at `now`; `None` if there is none yet.
    ///
    /// After the clock goes back, the window of that time counts again, with its spent amounts. If that window may be
    /// forgotten, the earliest window that is known counts: none is opened, so that nothing is spent twice.
    pub fn current(&self, now: Micros) -> Option<Window> {
        let since = self.terms.per.period(now).since;
        let known = || self.window.into_iter().chain(self.past.windows.iter().copied());
        let may_be_forgotten = match self.past.forgotten {
            Some(forgotten) => since <= forgotten,
            None => known().all(|w| since < w.since),
        };
        let earliest = || known().min_by_key(|w| w.since).filter(|_| may_be_forgotten);
        known().find(|w| w.since == since).or_else(earliest)
    }

    /// Remembers a change by a person.
    pub fn note(&mut self, act: Act) {
        self.acts.push(act);
        self.acts.drain(..self.acts.len().saturating_sub(ACTS));
    }

    /// Makes `window` the one that was charged last.
    pub fn charge(&mut self, window: Window) {
        match self.window.replace(window) {
            // The first of all: there is nothing that could be forgotten.
            None => self.past.forgotten = Some(Micros(0)),
            Some(last) if last == window => {}
            Some(last) => {
                self.past.windows.retain(|w| *w != window);
                self.past.remember(last);
            }
        }
    }
}

/// Budget as committed, with the envelope of its newest window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

named! {
    /// Length of a budget's period: how often the budget begins anew.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Per {
        Hour "hour",
        Day "day",
        Month "month",
        /// Never ends: one window for ever.
        None "none",
    }
}

/// One period of a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Period {
    /// First moment of the period.
    pub since: Micros,
    /// First moment of the next period; `None` if there is no next one.
    pub until: Option<Micros>,
    /// Name of the period: `2026-11-20T08`, `2026-11-20` or `2026-11`; empty if it never ends.
    pub name: String,
}

const HOUR: i64 = 3_600_000_000;

impl Per {
    /// Returns the period in which `at` lies, in UTC.
    pub fn period(self, at: Micros) -> Period {
        let date = calendar::utc(at).date();
        match self {
            Per::Hour => {
                let since = at.0.div_euclid(HOUR) * HOUR;
                let hour = since.rem_euclid(DAY) / HOUR;
                Period {
                    since: Micros(since),
                    until: Some(Micros(since + HOUR)),
                    name: format!("{date}T{hour:02}"),
                }
            }
            Per::Day => {
                let since = at.0.div_euclid(DAY) * DAY;
                Period { since: Micros(since), until: Some(Micros(since + DAY)), name: date.to_string() }
            }
            Per::Month => Period {
                since: calendar::start(date.first_of_month()),
                until: date.last_of_month().tomorrow().ok().map(calendar::start),
                name: format!("{:04}-{:02}", date.year(), date.month()),
            },
            Per::None => Period { since: Micros(0), until: None, name: String::new() },
        }
    }
}

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
            past: Past::default(),
            removed: false,
            applied: true,
            acts: Vec::new(),
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

    /// Bug: a clock that was a few hours ahead while an hour ended left a budget by the hour in a later one's window.
    /// Consequence: one hour's money had to do until that hour was over.
    /// Cause: a budget knew two windows, and took any period before both for one whose money may be spent.
    #[test]
    fn a_clock_that_is_wrong_over_the_end_of_a_period_counts_by_its_right_period() {
        const DAY: i64 = 86_400_000_000;
        let mut b = budget(Per::Day, None);
        let mut opened = 0;
        let mut charged = |day: i64| {
            let window = b.current(Micros(day * DAY + 5)).unwrap_or_else(|| {
                opened += 1;
                Window { since: b.period(Micros(day * DAY)).since, envelope: EnvelopeNo(opened) }
            });
            b.charge(window);
            (window.since.0 / DAY, window.envelope.0)
        };
        // Ten days ahead at the first call, and over the end of day 2.
        for (day, wanted) in
            [(12, (12, 1)), (2, (2, 2)), (13, (13, 3)), (3, (3, 4)), (2, (2, 2)), (14, (14, 5)), (5, (5, 6))]
        {
            assert_eq!(charged(day), wanted, "on day {day}");
        }
        // What may be forgotten is not opened again.
        let later: Vec<i64> = (20..20 + REMEMBERED as i64).map(|day| charged(day).0).collect();
        assert_eq!((later[0], charged(13), charged(14)), (20, (14, 5), (14, 5)));
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
            (1, 9, (2, 1)),
        ] {
            assert_eq!(charged(&mut b, day * DAY + 5, envelope), wanted, "on day {day}");
        }
        // Without a call on the right day before the jump, that day is new.
        let mut b = budget(Per::Day, Some(DAY));
        assert_eq!(charged(&mut b, 367 * DAY, 2), (367, 2));
        assert_eq!(charged(&mut b, 2 * DAY, 3), (2, 3));
    }
}

#[cfg(test)]
mod period_tests {
    use super::*;

    #[test]
    fn periods_are_those_of_utc() {
        let check = |per: Per, at: i64, since: i64, until: i64, name: &str| {
            let had = per.period(Micros(at * 1_000_000));
            let wanted = Period {
                since: Micros(since * 1_000_000),
                until: Some(Micros(until * 1_000_000)),
                name: name.into(),
            };
            assert_eq!(had, wanted, "{} of {at}", per.name());
        };
        // 2026-11-20 08:15:30.
        let at = 1_795_162_530;
        check(Per::Hour, at, 1_795_161_600, 1_795_165_200, "2026-11-20T08");
        check(Per::Day, at, 1_795_132_800, 1_795_219_200, "2026-11-20");
        check(Per::Month, at, 1_793_491_200, 1_796_083_200, "2026-11");
        // A year's end, a leap day, and a clock before the epoch.
        check(Per::Month, 1_798_761_599, 1_796_083_200, 1_798_761_600, "2026-12");
        check(Per::Month, 1_835_395_200, 1_832_976_000, 1_835_481_600, "2028-02");
        check(Per::Day, 1_835_395_200, 1_835_395_200, 1_835_481_600, "2028-02-29");
        check(Per::Day, -1, -86_400, 0, "1969-12-31");
        assert_eq!(Per::None.period(Micros(5)), Period { since: Micros(0), until: None, name: "".into() });
    }

    #[test]
    fn each_moment_lies_in_its_period_and_its_end_begins_the_next() {
        for per in [Per::Hour, Per::Day, Per::Month] {
            let mut at = Micros(-200 * DAY);
            for _ in 0..500 {
                let period = per.period(at);
                let until = period.until.unwrap();
                assert!(period.since <= at && at < until, "{period:?}");
                assert_eq!(per.period(until).since, until, "{period:?}");
                at = until;
            }
        }
    }
}
