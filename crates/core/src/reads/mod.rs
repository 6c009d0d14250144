//! Reads that combine rows of a store, without changing it.

use std::iter;

pub mod approvals;
pub(crate) mod body;
pub mod budgets;
pub mod checkpoints;
pub mod entries;
pub mod forked;
pub mod forks;
pub mod happened;
pub mod idle;
pub mod items;
pub mod iterations;
pub mod keys;
pub mod masks;
pub mod places;
pub mod plans;
pub mod policies;
pub mod resume;
pub mod room;
pub mod rows;
pub mod runs;
pub mod shares;
pub mod snapshots;
pub mod spend;
pub mod still;
pub mod tightest;
pub mod waits;

/// Returns the rows of a read that `next_page` gives in pages, of which one is in memory at a time; an empty page is the
/// end. The iterator ends behind the first error.
pub fn rows<T, E>(mut next_page: impl FnMut() -> Result<Vec<T>, E>) -> impl Iterator<Item = Result<T, E>> {
    let mut page = Some(Vec::new().into_iter());
    iter::from_fn(move || {
        loop {
            if let Some(row) = page.as_mut()?.next() {
                return Some(Ok(row));
            }
            page = match next_page() {
                Ok(rows) if !rows.is_empty() => Some(rows.into_iter()),
                Ok(_) => None,
                Err(error) => {
                    page = None;
                    return Some(Err(error));
                }
            };
        }
    })
}
