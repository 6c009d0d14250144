//! History of an agent's keys, commit by commit: pages of events grouped into whole commits.

use outlast_core::store::{
    Error, Store,
    state::{Event, EventRange},
};

/// Number of events read at once, as a compromise between few reads and little memory.
pub const PAGE: usize = 512;

/// Reader of the commits of a range, in order. To follow new commits, call [`Commits::page`] again after the last one.
#[derive(Debug)]
pub struct Commits {
    range: EventRange,
    /// Events read so far of a commit that may continue on the next page.
    begun: Vec<Event>,
    compacted: bool,
}

impl Commits {
    /// Makes a reader of the commits of `range`. `range.limit` is the number of events read at once.
    pub fn new(range: EventRange) -> Commits {
        Commits { range, begun: Vec::new(), compacted: false }
    }

    /// Returns the next commits, each with all its events that concern this agent; empty if there are no newer commits
    /// yet.
    pub fn page<S: Store + ?Sized>(&mut self, store: &S) -> Result<Vec<Vec<Event>>, Error> {
        let mut whole = Vec::new();
        loop {
            let page = store.state_events(&self.range)?;
            self.compacted |= page.compacted;
            let is_last = page.events.len() < self.range.limit;
            for event in page.events {
                self.range.after = event.item.position;
                if self.begun.last().is_some_and(|before| before.item.commit != event.item.commit) {
                    whole.push(std::mem::take(&mut self.begun));
                }
                self.begun.push(event);
            }
            // A read sees one moment, so the last commit of the last page is complete.
            if is_last && !self.begun.is_empty() {
                whole.push(std::mem::take(&mut self.begun));
            }
            if is_last || !whole.is_empty() {
                return Ok(whole);
            }
        }
    }

    /// Returns whether compaction has removed versions from the range that was read so far.
    pub fn compacted(&self) -> bool {
        self.compacted
    }
}
