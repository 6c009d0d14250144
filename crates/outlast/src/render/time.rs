//! Times and durations as people read and type them. What is typed without an offset is UTC; what is shown has its
//! offset.

use std::{ffi::OsStr, fs, path::Path, sync::OnceLock};

use jiff::{
    Timestamp, Zoned,
    civil::{Date, Time},
    tz::TimeZone,
};
pub use outlast_core::words::calendar::rfc3339;
use outlast_core::words::{Micros, OutSince, calendar, duration};

/// Directory of the machine's time zones.
const ZONES: &str = "/usr/share/zoneinfo";

/// Zone in which people are shown times; UTC until it is set.
static ZONE: OnceLock<TimeZone> = OnceLock::new();

/// Sets the time zone in which times are shown to people. Later calls have no effect.
pub fn set_zone(zone: TimeZone) {
    let _ = ZONE.set(zone);
}

/// Returns the time zone `name`, the value of `TZ`, else the machine's own; UTC if neither can be read.
///
/// Implemented here because jiff's own search is a feature of its standard library, which the domain does without.
pub fn zone_of(name: Option<&OsStr>) -> TimeZone {
    let read = |path: &Path| TimeZone::tzif("local", &fs::read(path).ok()?).ok();
    let zone = match name.map(OsStr::to_string_lossy) {
        None => read(Path::new("/etc/localtime")),
        Some(name) => {
            let name = name.trim_start_matches(':');
            read(&Path::new(ZONES).join(name)).or_else(|| TimeZone::posix(name).ok())
        }
    };
    zone.unwrap_or(TimeZone::UTC)
}

/// Returns the time zone of a name such as `Asia/Tokyo`, for an empty one that in which people are shown times; `None`
/// if this machine does not know it.
pub fn zone_named(name: &str) -> Option<TimeZone> {
    if name.is_empty() {
        return ZONE.get().cloned();
    }
    let is_name = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-+".contains(&b))
    };
    let path = Path::new(ZONES).join(name);
    name.split('/')
        .all(is_name)
        .then(|| fs::read(path).ok())
        .flatten()
        .and_then(|tzif| TimeZone::tzif(name, &tzif).ok())
}

/// Returns the time in the zone in which people are shown times.
fn zoned(at: Micros) -> Zoned {
    calendar::timestamp(at).to_zoned(ZONE.get().cloned().unwrap_or(TimeZone::UTC))
}

/// Formats a time by a pattern of `strftime`, in the zone in which people are shown times.
fn local(at: Micros, pattern: &str) -> String {
    zoned(at).strftime(pattern).to_string()
}

/// Returns the offset from UTC that local time has at `at`: `+01:00`.
pub fn offset(at: Micros) -> String {
    local(at, "%:z")
}

/// Formats a time as local time with its offset: `2026-11-20 09:00:00 +01:00`.
pub fn moment(at: Micros) -> String {
    local(at, "%F %T %:z")
}

/// Tells since when an outage holds: `since 2026-11-20 09:40:00 +01:00, out since 2026-11-20 09:00:00 +01:00`. The second time
/// is that of its begin, where its cause is another one by now.
pub fn since(since: OutSince) -> String {
    let cause = format!("since {}", moment(since.cause));
    if since.cause > since.began { format!("{cause}, out since {}", moment(since.began)) } else { cause }
}

/// Formats a time of these days for people: `Thu 3 Dec 14:00 +01:00`.
pub fn day_and_clock(at: Micros) -> String {
    local(at, "%a %-d %b %H:%M %:z")
}

/// Formats a time of these days as short as it is still clear: `3 Dec 14:00`.
pub fn clock(at: Micros) -> String {
    local(at, "%-d %b %H:%M")
}

/// Formats a time for a column whose header has the offset `headed`. A time with another offset has its own.
pub fn cell(at: Micros, headed: &str) -> String {
    if offset(at) == headed { local(at, "%F %T") } else { moment(at) }
}

/// Formats the time of day: `09:00:00`.
pub fn time_of_day(at: Micros) -> String {
    local(at, "%T")
}

/// Returns the last moment up to `now` at which clocks showed `clock`, in the zone in which people are shown times.
pub fn last_at(clock: Time, now: Micros) -> Micros {
    let here = zoned(now);
    let on = |day: Date| {
        let at = here.time_zone().to_timestamp(day.to_datetime(clock));
        at.map_or(now, |at| Micros(at.as_microsecond()))
    };
    let at = on(here.date());
    if at <= now { at } else { here.date().yesterday().map_or(at, on) }
}

/// Parses a time of day, `22:00`.
pub fn parse_clock(text: &str) -> Option<Time> {
    let (hour, minute) =
        text.split_once(':').filter(|(hour, minute)| hour.len() <= 2 && minute.len() == 2)?;
    Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok()
}

/// Error of a text that is not a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a day, a moment or a time back: {text:?} (wanted for example 2026-11-20, 2026-11-20T08:00:00Z, 22:00 or 7d)"
)]
pub struct BadMoment {
    text: String,
}

/// Time as it was typed, absolute or relative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    At(Micros),
    /// Time this many milliseconds before now.
    Ago(i64),
    /// Last time at which clocks showed this.
    Clock(Time),
}

impl When {
    pub fn resolve(self, now: Micros) -> Micros {
        match self {
            When::At(at) => at,
            When::Ago(ms) => now.plus_ms(ms.saturating_neg()),
            When::Clock(clock) => last_at(clock, now),
        }
    }
}

/// Parses a day, a moment in RFC 3339, a time of day or a time back: `2026-11-20`, `2026-11-20T08:00:00Z`, `22:00` or `7d`.
pub fn parse_when(text: &str) -> Result<When, BadMoment> {
    if let Ok(ms) = duration::parse_ms(text) {
        return Ok(When::Ago(ms));
    }
    if let Some(clock) = parse_clock(text) {
        return Ok(When::Clock(clock));
    }
    // Decided by length: a date would also parse from the start of a time without a zone.
    let at = match text.len() {
        DAYS_LENGTH => text.parse::<Date>().map(calendar::start),
        _ => text.parse::<Timestamp>().map(|at| Micros(at.as_microsecond())),
    };
    at.map(When::At).map_err(|_| BadMoment { text: text.chars().take(40).collect() })
}

/// Length of `2026-11-20` in bytes.
const DAYS_LENGTH: usize = 10;

/// Formats a time as `2026-11-20 08:00:00`, in UTC.
pub fn utc(at: Micros) -> String {
    calendar::utc(at).strftime("%F %T").to_string()
}

/// Formats an age in milliseconds as `12 s`, `5 min`, `3 h` or `9 d`, rounded down.
pub fn age(ms: i64) -> String {
    let s = ms.max(0) / 1000;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min", s / 60),
        3600..172_800 => format!("{} h", s / 3600),
        _ => format!("{} d", s / 86_400),
    }
}

/// Formats a duration in milliseconds as `340 ms`, `4.2 s` or `1 h 2 min 3 s`: tenths of a second below ten seconds,
/// else whole seconds.
pub fn span(ms: i64) -> String {
    match ms {
        1000..10_000 if ms % 1000 >= 100 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        1000.. => duration::words(ms / 1000 * 1000),
        _ => duration::words(ms),
    }
}

/// Formats a duration in milliseconds by its two largest units: `1 d 2 h`; tenths of a second below ten seconds.
pub fn about(ms: i64) -> String {
    let ms = ms.max(0);
    if ms < 10_000 {
        return span(ms);
    }
    let unit = [86_400_000, 3_600_000, 60_000, 1000].into_iter().find(|unit| ms >= *unit).unwrap_or(1);
    let next = if unit == 86_400_000 { 3_600_000 } else { (unit / 60).max(if unit == 1 { 1 } else { 1000 }) };
    duration::words(ms / next * next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_the_one_that_tz_names_or_utc() {
        let offset_of = |name: &str| {
            let zone = zone_of(Some(name.as_ref()));
            zone.to_offset(Timestamp::from_second(1_795_161_600).unwrap()).seconds()
        };
        assert_eq!((offset_of("UTC"), offset_of("<+0530>-5:30"), offset_of("no/zone")), (0, 19_800, 0));
        assert_eq!(moment(Micros(1_795_161_600_000_000)), "2026-11-20 08:00:00 +00:00");
        assert_eq!(cell(Micros(1_795_161_600_000_000), "+01:00"), "2026-11-20 08:00:00 +00:00");
    }

    #[test]
    fn two_units_tell_about_how_long() {
        for (ms, wanted) in [
            (0, "0 s"),
            (340, "340 ms"),
            (7_345, "7.3 s"),
            (72_340, "1 min 12 s"),
            (3_672_340, "1 h 1 min"),
            (93_679_000, "1 d 2 h"),
        ] {
            assert_eq!(about(ms), wanted);
        }
    }

    #[test]
    fn people_are_shown_whole_seconds() {
        assert_eq!(utc(Micros(1_700_000_000_123_456)), "2023-11-14 22:13:20");
    }

    #[test]
    fn moments_are_read_or_refused() {
        for (text, wanted) in [
            ("2023-11-14", Some(When::At(Micros(1_699_920_000_000_000)))),
            ("2023-11-14T22:13:20Z", Some(When::At(Micros(1_700_000_000_000_000)))),
            ("2023-11-14 22:13:20Z", Some(When::At(Micros(1_700_000_000_000_000)))),
            ("7d", Some(When::Ago(604_800_000))),
            ("22:00", Some(When::Clock(Time::constant(22, 0, 0, 0)))),
            ("25:00", None),
            ("22:0", None),
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
    fn a_time_of_day_is_its_last_one() {
        let at = |text: &str| Micros(text.parse::<Timestamp>().unwrap().as_microsecond());
        for (clock, now, wanted) in [
            ("08:00", "2026-11-20T08:00:00Z", "2026-11-20T08:00:00Z"),
            ("08:00", "2026-11-20T07:59:59Z", "2026-11-19T08:00:00Z"),
            ("22:00", "2026-11-20T08:00:00Z", "2026-11-19T22:00:00Z"),
        ] {
            assert_eq!(last_at(parse_clock(clock).unwrap(), at(now)), at(wanted), "{clock} {now}");
        }
    }

    #[test]
    fn spans_are_short() {
        for (ms, shown_age, shown_span) in [
            (0, "0 s", "0 s"),
            (340, "0 s", "340 ms"),
            (4_000, "4 s", "4 s"),
            (4_250, "4 s", "4.2 s"),
            (72_340, "1 min", "1 min 12 s"),
            (7_200_000, "2 h", "2 h"),
            (200_000_000, "2 d", "2 d 7 h 33 min 20 s"),
        ] {
            assert_eq!((age(ms).as_str(), span(ms).as_str()), (shown_age, shown_span));
        }
    }
}
