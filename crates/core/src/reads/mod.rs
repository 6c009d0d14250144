//! Reads that combine rows of a store, without changing it.

use std::iter;

pub mod approvals;
pub mod budgets;
pub mod called;
pub mod entries;
pub mod forked;
pub mod forks;
pub mod happened;
pub mod lives;
pub mod places;
pub mod plans;
pub mod policies;
pub mod rows;
pub mod runs;
pub mod spend;
pub mod tightest;
pub mod unheld;
pub mod waits;
pub mod whole;

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

/// Returns the rows of all pages, each of at most `most` rows. `next_page` is given the last row before; a page with
/// fewer rows is the last.
fn all<T, E>(most: usize, mut next_page: impl FnMut(Option<&T>) -> Result<Vec<T>, E>) -> Result<Vec<T>, E> {
    let mut all = Vec::new();
    loop {
        let page = next_page(all.last())?;
        let is_last = page.len() < most;
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}

/// Bounds of a page of filtered rows: the rows that are read at a time, and the most that one page looks at. A filter
/// that matches few rows gives a short page with a cursor.
#[derive(Clone, Copy)]
struct Bounds {
    chunk: usize,
    looked_at: usize,
}

impl Bounds {
    /// Returns at most `limit` rows that match, read behind `cursor`, and the cursor of the next page; `None` where no
    /// row is left. The work of a page is bounded, whatever the filter.
    fn page<T, C: Copy, E>(
        self,
        mut cursor: C,
        limit: usize,
        cursor_of: impl Fn(&T) -> C,
        matches: impl Fn(&T) -> bool,
        next_rows: impl Fn(C, usize) -> Result<Vec<T>, E>,
    ) -> Result<(Vec<T>, Option<C>), E> {
        let (mut page, mut looked_at) = (Vec::new(), 0);
        loop {
            let chunk = self.chunk.min((limit - page.len()).max(100));
            let rows = next_rows(cursor, chunk)?;
            let is_last = rows.len() < chunk;
            let mut rest = rows.into_iter();
            for row in rest.by_ref() {
                cursor = cursor_of(&row);
                if matches(&row) {
                    page.push(row);
                }
                if page.len() == limit {
                    break;
                }
            }
            looked_at += chunk;
            if is_last && rest.next().is_none() {
                return Ok((page, None));
            }
            if page.len() == limit || looked_at >= self.looked_at {
                return Ok((page, Some(cursor)));
            }
        }
    }
}
