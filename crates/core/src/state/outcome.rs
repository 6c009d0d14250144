//! How long it is known what became of a transaction.
//!
//! An id that was committed is kept for [`KEPT_US`], so that a lost answer can be asked for and a repetition is not
//! done again. Each commit forgets the ids of at most [`AT_ONCE`] commits of its namespace: as many as that grow
//! old for one that comes, and no commit waits for more.

use crate::words::id::Micros;

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
