//! Word by which a run is called: in messages, in tables and in the commands that they suggest.

use super::runs;
use crate::store::{self, RunFilter, RunView, Store};

/// Number of characters of a generated id, after `run_`, that distinguish it from any other: its time in
/// milliseconds and some of its random bits.
const SHORT: usize = 18;

/// Number of characters of a generated id, after `run_`.
const UUID: usize = 36;

/// Returns the run's name if it has one that is a word of a command line, else its short id. Every command takes both.
pub fn called(view: &RunView) -> String {
    let is_word = |name: &&String| {
        let plain = |c: char| c.is_alphanumeric() || "._:@/+-".contains(c);
        !name.is_empty() && !name.starts_with('-') && name.chars().all(plain)
    };
    view.spec.name.as_ref().filter(is_word).cloned().unwrap_or_else(|| short(view))
}

/// Returns the word by which every command finds this run and no other: its name, unless another run has it too, else its
/// short id.
pub fn called_now(store: &dyn Store, view: &RunView) -> Result<String, store::Error> {
    let word = called(view);
    let is_named = |other: &RunView| other.spec.name.as_ref() == Some(&word);
    if !is_named(view) {
        return Ok(word);
    }
    for other in runs::each(store, RunFilter::of_word(&word)) {
        let other = other?;
        if is_named(&other) && other.run.no != view.run.no {
            return Ok(short(view));
        }
    }
    Ok(word)
}

/// Returns the run's id, shortened if it was generated.
pub fn short(view: &RunView) -> String {
    short_id(view.run.id.as_str()).to_owned()
}

/// Returns an id, shortened if it was generated.
pub fn short_id(id: &str) -> &str {
    let is_uuid = |id: &&str| id.len() == UUID && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    let generated = id.strip_prefix("run_").filter(is_uuid);
    generated.and_then(|id| id.get(..SHORT)).unwrap_or(id)
}
