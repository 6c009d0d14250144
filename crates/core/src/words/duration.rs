//! Durations as people type them, `1h30m`, and milliseconds as the domain counts them.
//!
//! Home-made: jiff's spans also read `1 hour ago`, `1.5h` and months, and do not say which part of a text is wrong.

use crate::words::{BadText, bad::start_of};

/// Units, largest first: the order in which they are written.
const UNITS: [(&str, i64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Reads whole numbers with units, largest first, each unit at most once: `2h`, `1h30m`, `300ms`.
///
/// Returns milliseconds, never negative. A bare number is refused: seconds to one reader, milliseconds to another. Only
/// `0` is the same to both.
pub fn parse_ms(text: &str) -> Result<i64, BadText> {
    let wanted = "for example 300ms, 45s, 1h30m or 2d";
    read_ms(text).map_err(|why| BadText::new("a duration", text, wanted).because(&why))
}

fn read_ms(text: &str) -> Result<i64, String> {
    if text.is_empty() {
        return Err("it is empty".into());
    }
    if text == "0" {
        return Ok(0);
    }
    let mut rest = text;
    let mut units = UNITS.as_slice();
    let mut total: i64 = 0;
    while !rest.is_empty() {
        let number;
        (number, rest) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        if number.is_empty() {
            return Err(format!("a number is missing at {:?}", start_of(rest)));
        }
        let unit;
        (unit, rest) = rest.split_at(rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len()));
        if unit.is_empty() {
            return Err(format!("{} has no unit", start_of(number)));
        }
        let Some(place) = units.iter().position(|(name, _)| *name == unit) else {
            let unit = start_of(unit);
            let known = UNITS.iter().any(|(name, _)| *name == unit);
            return Err(match known {
                true => format!("{unit} comes after a smaller or the same unit"),
                false => format!("unknown unit {unit:?}, not one of d, h, m, s, ms"),
            });
        };
        let part = number.parse::<i64>().ok().and_then(|n| n.checked_mul(units[place].1));
        total =
            part.and_then(|ms| total.checked_add(ms)).ok_or_else(|| format!("it is over {} ms", i64::MAX))?;
        units = &units[place + 1..];
    }
    Ok(total)
}

/// Writes milliseconds exactly as people read them: `1 h`, `1 min 30 s`. Zero is `0 s`.
pub fn words(ms: i64) -> String {
    let read = |(unit, count): (&str, u64)| format!("{count} {}", if unit == "m" { "min" } else { unit });
    written(ms, " ", "0 s", read)
}

/// Writes milliseconds exactly: `parse_ms` reads back what it wrote. Zero is `0s`.
///
/// A negative span (a deadline that passed) is written with a minus sign, which is never read.
pub fn format_ms(ms: i64) -> String {
    written(ms, "", "0s", |(unit, count)| format!("{count}{unit}"))
}

/// Writes each unit that a span has some of, the largest first.
fn written(ms: i64, between: &str, zero: &str, part: impl Fn((&str, u64)) -> String) -> String {
    let mut left = ms.unsigned_abs();
    let counts = UNITS.map(|(unit, size)| {
        let count = left / size.unsigned_abs();
        left %= size.unsigned_abs();
        (unit, count)
    });
    let parts: Vec<String> = counts.into_iter().filter(|(_, count)| *count > 0).map(part).collect();
    match parts.is_empty() {
        true => zero.to_owned(),
        false => format!("{}{}", if ms < 0 { "-" } else { "" }, parts.join(between)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_and_written_exactly() {
        for (text, ms, written) in [
            ("2h", 7_200_000, "2h"),
            ("90s", 90_000, "1m30s"),
            ("1h30m", 5_400_000, "1h30m"),
            ("300ms", 300, "300ms"),
            ("45s", 45_000, "45s"),
            ("1d", 86_400_000, "1d"),
            ("1m1ms", 60_001, "1m1ms"),
            ("48h", 172_800_000, "2d"),
            ("0s", 0, "0s"),
            ("0", 0, "0s"),
            ("007s", 7000, "7s"),
        ] {
            assert_eq!(parse_ms(text), Ok(ms), "{text}");
            assert_eq!(format_ms(ms), written);
        }
        assert_eq!(format_ms(-1500), "-1s500ms");
        assert!(format_ms(i64::MIN).starts_with('-'));
    }

    #[test]
    fn what_is_no_duration_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "it is empty"),
            ("90", "90 has no unit"),
            ("1h30", "30 has no unit"),
            ("h", "a number is missing at \"h\""),
            ("-1s", "a number is missing at \"-1s\""),
            (" 1s", "a number is missing at \" 1s\""),
            ("1.5h", "unknown unit \".\""),
            ("1 h", "unknown unit \" h\""),
            ("1H", "unknown unit \"H\""),
            ("1w", "unknown unit \"w\""),
            ("1é", "unknown unit \"é\""),
            ("30m1h", "h comes after a smaller or the same unit"),
            ("1s1s", "s comes after a smaller or the same unit"),
            ("99999999999999999999s", "it is over 9223372036854775807 ms"),
            ("9223372036854775807s", "it is over 9223372036854775807 ms"),
            ("9223372036854775s1000ms", "it is over 9223372036854775807 ms"),
        ] {
            let error = parse_ms(text).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("wanted for example"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(ms in prop_oneof![0..=i64::MAX, 0..200_000_000i64]) {
            prop_assert_eq!(parse_ms(&format_ms(ms)), Ok(ms));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9dhmsé. -]{0,12}") {
            if let Ok(ms) = parse_ms(&text) {
                prop_assert_eq!(parse_ms(&format_ms(ms)), Ok(ms));
            }
        }
    }
}
