//! Events of a span of time, over all runs or of one.

use super::rows;
use crate::{
    events::{Event, EventQuery, Mark},
    store::{self, Store},
    words::{Micros, RunNo},
};

/// Number of events that are read at a time.
const CHUNK: usize = 500;

/// Returns the events after a mark, of one run or of all, a chunk of them in memory.
pub fn each(
    store: &dyn Store,
    run: Option<RunNo>,
    mut after: Mark,
) -> impl Iterator<Item = Result<Event, store::Error>> {
    rows(move || {
        let chunk = store.events(&EventQuery { run, after, limit: CHUNK })?;
        after = chunk.last().map_or(after, |event| event.mark);
        Ok(chunk)
    })
}

/// Returns the mark of the last event before `since`. Reads a few events, however many the store holds.
pub fn before(store: &dyn Store, since: Micros) -> Result<Mark, store::Error> {
    let newest = store.newest_event()?;
    // Events up to `low` are from before `since`, and those above `high` are not.
    let (mut low, mut high) = (0, newest.no);
    while low < high {
        let middle = Mark { no: low + (high - low) / 2, ..newest };
        let next = store.events(&EventQuery { run: None, after: middle, limit: 1 })?;
        match next.first().filter(|event| event.at < since) {
            Some(event) => low = event.mark.no,
            None => high = middle.no,
        }
    }
    Ok(Mark { no: low, ..newest })
}
