//! Lifetime of transaction ids, by which the outcome of a transaction can be asked for.
//!
//! The id of a committed transaction is kept for [`KEPT_US`], so that a lost answer can be asked for and a
//! repetition is not done again. Each commit forgets the ids of at most [`AT_ONCE`] commits of its namespace.
//! More would keep the commit waiting.

use crate::words::Micros;

/// Least time a transaction id is kept, in microseconds: 7 days.
pub const KEPT_US: i64 = KEPT_DAYS * 24 * 3600 * 1_000_000;

/// Least time a transaction id is kept, in days.
pub const KEPT_DAYS: i64 = 7;

/// Largest number of commits whose transaction ids one later commit forgets.
pub const AT_ONCE: usize = 4;

/// Returns whether the id of a transaction committed at `at` may be forgotten.
pub fn is_old(at: Micros, now: Micros) -> bool {
    now.0.saturating_sub(at.0) > KEPT_US
}
