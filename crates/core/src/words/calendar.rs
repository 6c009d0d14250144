//! The calendar of UTC: days since 1970-01-01 as dates, and moments as programs read them.

use crate::words::id::Micros;

/// A day, in microseconds.
pub const DAY: i64 = 86_400_000_000;

/// Year, month and day of days since 1970-01-01: eras of 400 years, each beginning with a March.
pub fn date(days: i64) -> (i64, i64, i64) {
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

/// The other way. A day that its month has not is one of the next.
pub fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let from_march = (month + 9) % 12;
    let day_of_year = (153 * from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// `2026-11-20`, for days since 1970-01-01.
pub fn day(days: i64) -> String {
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Day, hour, minute, second and microsecond.
pub fn parts(at: Micros) -> (String, i64, i64, i64, i64) {
    let rest = at.0.rem_euclid(DAY);
    let seconds = rest / 1_000_000;
    (day(at.0.div_euclid(DAY)), seconds / 3600, seconds / 60 % 60, seconds % 60, rest % 1_000_000)
}

/// `2026-11-20T08:00:00.000000Z`, for programs: always as long, so that texts sort as moments do.
pub fn rfc3339(at: Micros) -> String {
    let (date, h, m, s, micros) = parts(at);
    format!("{date}T{h:02}:{m:02}:{s:02}.{micros:06}Z")
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
    fn every_day_is_read_back() {
        for no in -1_000_000..1_000_000 {
            let (y, m, d) = date(no);
            assert_eq!(days(y, m, d), no);
        }
    }
}
