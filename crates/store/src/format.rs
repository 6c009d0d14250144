//! Number of the stored format, shared by all kinds of store, and the range this program can read.

use outlast_core::store::Error;

/// Format that this program writes. A change of the stored data needs a new number, and a migration step from the
/// previous format if a release has written that format.
pub const FORMAT: i64 = 6;

/// Oldest format that this program reads. Formats from before the first release have no migration.
pub const OLDEST: i64 = 3;

/// Checks that a store of format `found` can be read.
///
/// Errors: `Newer` and `Older` name both numbers.
pub fn readable(found: i64, place: &str) -> Result<(), Error> {
    let place = || place.to_owned();
    match found {
        n if n > FORMAT => Err(Error::Newer { place: place(), found, known: FORMAT }),
        n if n < OLDEST => Err(Error::Older { place: place(), found, oldest: OLDEST }),
        _ => Ok(()),
    }
}

/// Checks that an open store, whose format is `found` now, still has the format that this program writes: a process of
/// another version may have changed it meanwhile.
///
/// Errors: `Newer`, `Older`.
pub fn unchanged(found: i64, place: &str) -> Result<(), Error> {
    readable(found, place)?;
    match found {
        FORMAT => Ok(()),
        _ => Err(Error::Older { place: place.to_owned(), found, oldest: FORMAT }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_read_or_refused_by_its_number() {
        let check = |found: i64, want: Option<&str>| {
            assert_eq!(readable(found, "x.db").err().map(|e| e.code()), want, "{found}");
        };
        check(FORMAT, None);
        check(OLDEST, None);
        check(OLDEST - 1, Some("store_older"));
        check(-1, Some("store_older"));
        check(FORMAT + 1, Some("store_newer"));
    }
}
