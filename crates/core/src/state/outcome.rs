//! How long it is known what became of a transaction.
//!
//! An id that was committed is kept for [`KEPT_US`], so that a lost answer can be asked for and a repetition is not
//! done again. Each commit forgets the ids of at most [`AT_ONCE`] commits of its namespace: as many as that grow
//! old for one that comes, and no commit waits for more.

use crate::{engine::state::transaction::Error, words::id::Micros};

/// How long at least: 7 days.
pub const KEPT_US: i64 = KEPT_DAYS * 24 * 3600 * 1_000_000;

/// The same in days.
pub const KEPT_DAYS: i64 = 7;

/// The commits whose ids are forgotten at once, by a commit behind them.
pub const AT_ONCE: usize = 4;

/// Whether the id of a commit of `at` may be forgotten.
pub fn is_old(at: Micros, now: Micros) -> bool {
    now.0.saturating_sub(at.0) > KEPT_US
}

/// What is said of a transaction of which nothing is recorded.
///
/// Ids of ours tell when they were made: one that is older than outcomes are kept may have been committed.
pub fn unknown(id: &str, now: Micros) -> Error {
    match made_at(id) {
        Some(at) if is_old(at, now) => Error::Forgotten { id: id.into(), days: KEPT_DAYS },
        _ => Error::NotFound { id: id.into() },
    }
}

/// When an id of ours was made: `txn_` and a UUID of version 7, which begins with its milliseconds.
fn made_at(id: &str) -> Option<Micros> {
    let uuid = id.strip_prefix("txn_").filter(|uuid| uuid.len() == 36 && uuid.as_bytes()[14] == b'7')?;
    let (high, rest) = uuid.split_at_checked(8)?;
    let low = rest.strip_prefix('-')?.get(..4)?;
    let ms = i64::from_str_radix(&format!("{high}{low}"), 16).ok()?;
    ms.checked_mul(1000).map(Micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::id::uuid_v7;

    #[test]
    fn an_id_of_ours_that_is_older_than_outcomes_are_kept_is_told_apart() {
        let made = Micros(1_800_000_000_000_000);
        let ours = format!("txn_{}", uuid_v7(made, [7; 10]));
        let check = |id: &str, after_us: i64, want: &str| {
            assert_eq!(unknown(id, Micros(made.0 + after_us)).code(), want, "{id} {after_us}");
        };
        check(&ours, 0, "transaction_not_found");
        check(&ours, KEPT_US, "transaction_not_found");
        check(&ours, KEPT_US + 1000, "transaction_forgotten");
        check("mine", i64::MAX / 4, "transaction_not_found");
        check("txn_é9999999-9999-7999-8999-99999999999", i64::MAX / 4, "transaction_not_found");
        let text = unknown(&ours, Micros(made.0 + 2 * KEPT_US)).to_string();
        assert!(text.contains("not found") && text.contains("older than 7 days"), "{text}");
    }
}
