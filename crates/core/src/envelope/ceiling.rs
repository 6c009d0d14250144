//! Ceilings on a subscription's plan: how much of its windows of time may be used, by anybody, before a run rests.
//!
//! A provider counts a plan in windows (five hours, a week) and tells how much of each is used. It does not tell tokens.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    stored_as_text,
    words::{BadText, Micros, duration},
};

const MINUTE_MS: i64 = 60_000;
const WEEK_MINUTES: i64 = 7 * 24 * 60;

/// Part of a window, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Share(pub i64);

impl Share {
    /// One hundredth of a window, a percentage point: the step in which people read shares.
    pub const POINT: Share = Share(10_000);
    pub const WHOLE: Share = Share(1_000_000);

    /// Returns the share that a fraction means, 1 being the whole window; `None` for what is no amount. More than a
    /// window may be used: plans can be overdrawn.
    pub fn of_fraction(fraction: f64) -> Option<Share> {
        let is_amount = fraction.is_finite() && (0.0..=1000.0).contains(&fraction);
        is_amount.then(|| Share((fraction * 1_000_000.0).round() as i64))
    }

    pub fn of_percent(percent: f64) -> Option<Share> {
        Share::of_fraction(percent / 100.0)
    }

    /// Returns the share in percent.
    pub fn percent(self) -> f64 {
        self.0 as f64 / 10_000.0
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Hundredths of a point tell nobody anything.
        let tenths = self.0.div_euclid(1000);
        match tenths % 10 {
            0 => write!(f, "{} %", tenths / 10),
            tenth => write!(f, "{}.{} %", tenths / 10, tenth),
        }
    }
}

/// Window of a plan, named by its length in minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Length(pub i64);

impl Length {
    pub const WEEK: Length = Length(WEEK_MINUTES);

    /// Returns whether both lengths mean the same window. A provider may report a minute less than the whole:
    /// 299 for five hours.
    pub fn is(self, other: Length) -> bool {
        (self.0 - other.0).abs() * 100 <= self.0.max(other.0)
    }

    pub fn us(self) -> i64 {
        self.0.saturating_mul(MINUTE_MS).saturating_mul(1000)
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Length::WEEK => f.write_str("week"),
            Length(minutes) => f.write_str(&duration::format_ms(minutes.saturating_mul(MINUTE_MS))),
        }
    }
}

/// Ceilings by window, such as `5h=40%,week=15%`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ceilings(BTreeMap<Length, Share>);

impl Ceilings {
    pub fn iter(&self) -> impl Iterator<Item = (Length, Share)> + '_ {
        self.0.iter().map(|(length, share)| (*length, *share))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the ceiling on the plan's usage window of this length; `None` if it has none.
    pub fn on(&self, length: Length) -> Option<Share> {
        self.iter().find(|(named, _)| named.is(length)).map(|(_, share)| share)
    }

    /// Returns the ceilings of both lists; where both limit the same window, the lower ceiling.
    #[must_use]
    pub fn under(&self, other: &Ceilings) -> Ceilings {
        let mut all = self.0.clone();
        for (length, share) in other.iter() {
            let same = all.iter_mut().find(|(named, _)| named.is(length));
            match same {
                Some((_, own)) => *own = share.min(*own),
                None => drop(all.insert(length, share)),
            }
        }
        Ceilings(all)
    }
}

impl FromStr for Ceilings {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Ceilings, BadText> {
        let wanted = "for example 5h=40%,week=15%: windows, and percent of each";
        let bad = || BadText::new("a plan's ceilings", text, wanted);
        let mut all = Ceilings::default();
        for part in text.split(',') {
            let (window, percent) = part.split_once('=').ok_or_else(bad)?;
            let length = match window.trim() {
                "week" => Length::WEEK,
                time => Length(duration::parse_ms(time).map_err(|_| bad())? / MINUTE_MS),
            };
            let percent: f64 =
                percent.trim().strip_suffix('%').and_then(|n| n.trim().parse().ok()).ok_or_else(bad)?;
            let share = Share::of_percent(percent).filter(|s| *s > Share(0) && *s <= Share::WHOLE);
            if length.0 <= 0 || all.on(length).is_some() {
                return Err(bad());
            }
            all.0.insert(length, share.ok_or_else(bad)?);
        }
        Ok(all)
    }
}

impl fmt::Display for Ceilings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<String> = self.iter().map(|(l, s)| format!("{l}={}%", s.percent())).collect();
        f.write_str(&each.join(","))
    }
}

stored_as_text!(Ceilings);

/// A ceiling that the next call would exceed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    pub window: Length,
    /// Share of the window that is used, as the provider reported it last.
    pub used: Share,
    pub ceiling: Share,
    /// Estimated share of the window that one of the latest calls cost.
    pub per_call: Share,
    /// Time at which the window resets.
    pub until: Micros,
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reached { window, used, ceiling, per_call, .. } = self;
        write!(f, "the plan's window ({window}) is used to {used}, its ceiling here is {ceiling}")?;
        match used < ceiling {
            true => write!(f, ", and a call takes about {per_call}"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_read_as_they_are_written() {
        for (text, shown) in [
            ("5h=40%,week=15%", "5h=40%,week=15%"),
            (" week = 2.5 % , 5h=100%", "5h=100%,week=2.5%"),
            ("7d=15%", "week=15%"),
            ("1d12h=1%", "1d12h=1%"),
        ] {
            let read: Ceilings = text.parse().unwrap();
            assert_eq!(read.to_string(), shown);
            assert_eq!(shown.parse(), Ok(read.clone()));
            let json = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<Ceilings>(&json).unwrap(), read);
        }
        for text in [
            "",
            "5h",
            "5h=40",
            "5h=0%",
            "5h=101%",
            "5h=-1%",
            "5h=NaN%",
            "40%",
            "5=40%",
            "0=4%",
            "5h=4%,5h=5%",
            "week=4%,7d=5%",
            "5h=4%,",
            "1s=5%",
        ] {
            assert!(text.parse::<Ceilings>().is_err(), "{text}");
        }
    }

    #[test]
    fn of_two_ceilings_on_a_window_the_lower_one_counts() {
        let read = |text: &str| text.parse::<Ceilings>().unwrap();
        let both = read("5h=40%,week=15%").under(&read("299m=30%,1d=50%"));
        assert_eq!(both, read("5h=30%,1d=50%,week=15%"));
        assert_eq!(both.on(Length(299)), Some(Share(300_000)));
        assert_eq!(both.on(Length(30)), None);
    }

    #[test]
    fn shares_are_shown_in_tenths_of_a_point() {
        for (share, shown) in
            [(0, "0 %"), (1_000, "0.1 %"), (999, "0 %"), (392_499, "39.2 %"), (1_050_000, "105 %")]
        {
            assert_eq!(Share(share).to_string(), shown);
        }
        assert_eq!((Share::of_fraction(f64::NAN), Share::of_fraction(-0.1)), (None, None));
        assert_eq!(Share::of_percent(12.5), Some(Share(125_000)));
    }
}
