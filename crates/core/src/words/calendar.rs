//! The calendar of UTC. jiff does the arithmetic; its clock and its time zones are left out of the build.

use jiff::{
    Timestamp,
    civil::{Date, DateTime, Time},
    fmt::temporal::DateTimePrinter,
    tz::Offset,
};

use crate::words::Micros;

/// One day in microseconds.
pub const DAY: i64 = 86_400_000_000;

/// Returns the UTC date and time of day of a moment, clamped to the years -9999 to 9999 of the calendar.
pub fn utc(at: Micros) -> DateTime {
    Offset::UTC.to_datetime(timestamp(at))
}

/// Returns the moment at which a date begins, in UTC.
pub fn start(date: Date) -> Micros {
    let begins = Offset::UTC.to_timestamp(date.to_datetime(Time::midnight()));
    // The last day of the year 9999 alone begins too late for a time stamp.
    Micros(begins.unwrap_or(Timestamp::MAX).as_microsecond())
}

/// Formats the UTC date: `2026-11-20`.
pub fn day(at: Micros) -> String {
    utc(at).date().to_string()
}

/// Formats a moment for programs: `2026-11-20T08:00:00.000000Z`. The text has a fixed length, so that texts
/// sort as moments do.
pub fn rfc3339(at: Micros) -> String {
    const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(6));
    PRINTER.timestamp_to_string(&timestamp(at))
}

/// Parses a moment in RFC 3339, whose offset has to be there: `2026-11-20T08:00:00Z`.
pub fn parse_rfc3339(text: &str) -> Option<Micros> {
    text.parse::<Timestamp>().ok().map(|at| Micros(at.as_microsecond()))
}

/// Returns the moment as jiff has it, clamped to the years -9999 to 9999 of the calendar.
pub fn timestamp(at: Micros) -> Timestamp {
    let last = if at.0 < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_microsecond(at.0).unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_shown_in_utc() {
        for (micros, shown) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (1_700_000_000_123_456, "2023-11-14T22:13:20.123456Z"),
            (1_795_132_800_000_001, "2026-11-20T00:00:00.000001Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (4_107_542_399_999_999, "2100-02-28T23:59:59.999999Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(rfc3339(Micros(micros)), shown);
        }
    }

    #[test]
    fn moments_beyond_the_calendar_are_its_ends() {
        assert_eq!(utc(Micros(i64::MAX)).year(), 9999);
        assert_eq!(utc(Micros(i64::MIN)).year(), -9999);
        assert!(rfc3339(Micros(i64::MAX)).starts_with("9999-12-30T"));
        assert!(start(Date::MAX) <= Micros(Timestamp::MAX.as_microsecond()));
    }

    #[test]
    fn every_day_is_read_back() {
        for no in -1_000_000..1_000_000 {
            let at = Micros(no * DAY);
            assert_eq!(start(utc(at).date()), at);
        }
    }
}
