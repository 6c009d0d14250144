//! Moments and spans as people read and type them. All in UTC.

use outlast_core::{duration, id::Micros};

const DAY_MICROS: i64 = 86_400_000_000;

/// A text that names no moment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a day, a moment or a time back: {text:?} (wanted for example 2026-11-20, 2026-11-20T08:00:00Z or 7d)"
)]
pub struct BadMoment {
    text: String,
}

/// A moment as it was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    At(Micros),
    /// So many milliseconds before now.
    Ago(i64),
}

impl When {
    pub fn resolve(self, now: Micros) -> Micros {
        match self {
            When::At(at) => at,
            When::Ago(ms) => now.plus_ms(ms.saturating_neg()),
        }
    }
}

/// Reads `2026-11-20`, `2026-11-20T08:00:00Z` or `7d`.
pub fn parse_when(text: &str) -> Result<When, BadMoment> {
    if let Ok(ms) = duration::parse_ms(text) {
        return Ok(When::Ago(ms));
    }
    let bad = || BadMoment { text: text.chars().take(40).collect() };
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, time.strip_suffix('Z').ok_or_else(bad)?),
        None => (text, "00:00:00"),
    };
    let numbers = |text: &str, by: char, widths: [usize; 3]| -> Option<[i64; 3]> {
        let parts: Vec<&str> = text.split(by).collect();
        let [a, b, c] = parts.as_slice() else { return None };
        let mut out = [0; 3];
        for (slot, (part, width)) in out.iter_mut().zip([a, b, c].into_iter().zip(widths)) {
            if part.len() != width || !part.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            *slot = part.parse().ok()?;
        }
        Some(out)
    };
    let [year, month, day] = numbers(date, '-', [4, 2, 2]).ok_or_else(bad)?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2]).ok_or_else(bad)?;
    let days = days_of(year, month, day);
    // The way back tells the 31st of a month that has 30.
    if !(1..=12).contains(&month) || date_of(days) != (year, month, day) {
        return Err(bad());
    }
    if hour > 23 || minute > 59 || second > 59 {
        return Err(bad());
    }
    Ok(When::At(Micros(days * DAY_MICROS + ((hour * 60 + minute) * 60 + second) * 1_000_000)))
}

/// `2026-11-20`, for days since the epoch.
pub fn day(days: i64) -> String {
    let (year, month, day) = date_of(days);
    format!("{year:04}-{month:02}-{day:02}")
}

/// `2026-11-20 08:00:00`, for people.
pub fn utc(at: Micros) -> String {
    let (date, h, m, s, _) = parts(at);
    format!("{date} {h:02}:{m:02}:{s:02}")
}

/// `2026-11-20T08:00:00.000000Z`, for programs: always as long, so that texts sort as moments do.
pub fn rfc3339(at: Micros) -> String {
    let (date, h, m, s, micros) = parts(at);
    format!("{date}T{h:02}:{m:02}:{s:02}.{micros:06}Z")
}

/// How long ago: `12s`, `5m`, `3h`, `9d`. Rounded down.
pub fn age(ms: i64) -> String {
    let s = ms.max(0) / 1000;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m", s / 60),
        3600..172_800 => format!("{}h", s / 3600),
        _ => format!("{}d", s / 86_400),
    }
}

/// A span: milliseconds below a second, tenths of one below ten, else whole ones: `340ms`, `4.2s`, `1h2m3s`.
pub fn span(ms: i64) -> String {
    match ms {
        0 => "0s".into(),
        ..0 => duration::format_ms(ms),
        1..1000 => format!("{ms}ms"),
        1000..10_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        _ => duration::format_ms(ms / 1000 * 1000),
    }
}

fn parts(at: Micros) -> (String, i64, i64, i64, i64) {
    let rest = at.0.rem_euclid(DAY_MICROS);
    let seconds = rest / 1_000_000;
    (day(at.0.div_euclid(DAY_MICROS)), seconds / 3600, seconds / 60 % 60, seconds % 60, rest % 1_000_000)
}

/// Year, month and day of a day since the epoch, by counting in eras of 400 years from 1 March of year 0.
fn date_of(days: i64) -> (i64, i64, i64) {
    let from_era = days + 719_468;
    let (era, day_of_era) = (from_era.div_euclid(146_097), from_era.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March: their starts lie on a line of slope 153/5.
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// The other way.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let from_march = (month + 9) % 12;
    let day_of_year = (153 * from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_shown_in_utc() {
        for (micros, shown) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (1_700_000_000_123_456, "2023-11-14T22:13:20.123456Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (4_107_542_399_999_999, "2100-02-28T23:59:59.999999Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(rfc3339(Micros(micros)), shown);
        }
        assert_eq!(utc(Micros(1_700_000_000_123_456)), "2023-11-14 22:13:20");
    }

    #[test]
    fn every_day_is_read_back() {
        for days in -1_000_000..1_000_000 {
            let (y, m, d) = date_of(days);
            assert_eq!(days_of(y, m, d), days);
        }
    }

    #[test]
    fn moments_are_read_or_refused() {
        for (text, wanted) in [
            ("2023-11-14", Some(When::At(Micros(1_699_920_000_000_000)))),
            ("2023-11-14T22:13:20Z", Some(When::At(Micros(1_700_000_000_000_000)))),
            ("2023-11-14 22:13:20Z", Some(When::At(Micros(1_700_000_000_000_000)))),
            ("7d", Some(When::Ago(604_800_000))),
            ("2023-02-29", None),
            ("2023-13-01", None),
            ("2023-00-01", None),
            ("2023-11-14T22:13:20", None),
            ("2023-11-14T24:00:00Z", None),
            ("23-11-14", None),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(parse_when(text).ok(), wanted, "{text}");
        }
        assert_eq!(When::Ago(1000).resolve(Micros(5_000_000)), Micros(4_000_000));
    }

    #[test]
    fn spans_are_short() {
        for (ms, shown_age, shown_span) in [
            (0, "0s", "0s"),
            (340, "0s", "340ms"),
            (4_250, "4s", "4.2s"),
            (72_340, "1m", "1m12s"),
            (7_200_000, "2h", "2h"),
            (200_000_000, "2d", "2d7h33m20s"),
        ] {
            assert_eq!((age(ms).as_str(), span(ms).as_str()), (shown_age, shown_span));
        }
    }
}
