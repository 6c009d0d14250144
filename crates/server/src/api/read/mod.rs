//! The read API below `/v1`: runs, attempts, entries, iterations, jobs and events, as the page, `watch` and a fleet's
//! command line read them. Nothing here writes.
//!
//! The shapes are those of `outlast_view`.

pub(super) mod entries;
pub(super) mod events;
pub mod exchange;
pub mod gist;
pub(super) mod runs;
pub(super) mod stream;

/// Calls that each restart of a run bought again.
pub mod resume_tax {
    pub use crate::proxy::resume_tax::{Restarts, Resumption, Tax, find};
}

use super::request::Query;
use crate::state::Error;

/// Parses a list of words that are separated by commas. Errors: `bad_request`, which names the words that are known.
fn words<T: Copy>(
    query: &Query,
    name: &str,
    known: &[T],
    word: impl Fn(T) -> &'static str,
) -> Result<Vec<T>, Error> {
    let Some(text) = query.text(name) else { return Ok(Vec::new()) };
    let parse = |one: &str| {
        known.iter().copied().find(|k| word(*k) == one).ok_or_else(|| {
            let known: Vec<&str> = known.iter().map(|k| word(*k)).collect();
            Error::BadRequest(format!("{name} is {one:?}, and some of {} are wanted", known.join(", ")))
        })
    };
    text.split(',').map(parse).collect()
}
