//! Sizes as people type them, `64MiB`, and bytes as the domain counts them.

use crate::words::{BadText, bad::start_of};

/// Units, largest first. The decimal ones are read but never written.
const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1000),
];

/// Reads a whole number and a unit, in either case: `64MiB` is 67,108,864, `64MB` is 64,000,000.
///
/// Returns bytes. `64M` is refused because it may mean either, and a limit is no place to guess.
pub fn parse_bytes(text: &str) -> Result<u64, BadText> {
    let wanted = "for example 64MiB, 500KB or 4096B";
    read_bytes(text).map_err(|why| BadText::new("a size", text, wanted).because(&why))
}

fn read_bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    if number.is_empty() {
        return Err("it does not start with a whole number".into());
    }
    if unit.is_empty() {
        return Err("it has no unit".into());
    }
    let (_, size) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(|| {
        format!("unknown unit {:?}, not one of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB", start_of(unit))
    })?;
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(*size));
    bytes.ok_or_else(|| format!("it is over {} bytes", u64::MAX))
}

/// Writes bytes exactly, in the largest binary unit that divides them: `64MiB`, `1500B`.
pub fn format_bytes(bytes: u64) -> String {
    let fits = |size: u64| bytes >= size && bytes.is_multiple_of(size);
    match UNITS[..4].iter().find(|(_, size)| fits(*size)) {
        Some((unit, size)) => format!("{}{unit}", bytes / size),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_read_and_written_exactly() {
        for (text, bytes, written) in [
            ("64MiB", 67_108_864, "64MiB"),
            ("64mib", 67_108_864, "64MiB"),
            ("1024KiB", 1_048_576, "1MiB"),
            ("64MB", 64_000_000, "62500KiB"),
            ("1500B", 1500, "1500B"),
            ("0B", 0, "0B"),
            ("2TiB", 2_199_023_255_552, "2TiB"),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
            assert_eq!(format_bytes(bytes), written);
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "does not start with a whole number"),
            ("-1B", "does not start with a whole number"),
            ("MiB", "does not start with a whole number"),
            ("4096", "it has no unit"),
            ("64M", "unknown unit \"M\""),
            ("1.5GiB", "unknown unit \".5GiB\""),
            ("1 MiB", "unknown unit \" MiB\""),
            ("20000000TiB", "it is over 18446744073709551615 bytes"),
            ("99999999999999999999B", "it is over 18446744073709551615 bytes"),
        ] {
            let error = parse_bytes(text).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("wanted for example"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(bytes: u64, shift in 0..64u32) {
            for bytes in [bytes, bytes >> shift << shift, 1 << shift] {
                prop_assert_eq!(parse_bytes(&format_bytes(bytes)), Ok(bytes));
            }
        }
    }
}
