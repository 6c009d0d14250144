//! The number of the stored format, one for every kind of store, and which of them can be read.

use outlast_core::store::Error;

/// The format this program writes. A change of what is stored makes a new one, with a step from the one
/// before it once a release has written that.
pub const FORMAT: i64 = 3;

/// The oldest format this program reads. What was written before the first release has no steps.
pub const OLDEST: i64 = 3;

/// Whether a store of format `found` can be read.
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
