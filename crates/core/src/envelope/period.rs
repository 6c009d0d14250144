//! Periods of a budget: hours, days and months of UTC.

use serde::{Deserialize, Serialize};

use crate::{
    named,
    words::{
        Micros,
        calendar::{self, DAY},
    },
};

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
