//! What an agent's keys went through, commit by commit: pages of events put together again.

use outlast_core::store::{
    Error,
    state::{Event, EventRange, Reads},
};

/// Events that are read at once: enough that the reading costs little, few enough to hold.
pub const PAGE: usize = 512;

/// The commits of a range, in order. After the last one it can be asked again: that is to follow.
#[derive(Debug)]
pub struct Commits {
    range: EventRange,
    /// Of a commit that may go on in the next page.
    begun: Vec<Event>,
    compacted: bool,
}

impl Commits {
    /// `range.limit` is the size of a page.
    pub fn new(range: EventRange) -> Commits {
        Commits { range, begun: Vec::new(), compacted: false }
    }

    /// The next commits, each with all its events on this agent; none when there are no more yet.
    pub fn page<R: Reads + ?Sized>(&mut self, store: &R) -> Result<Vec<Vec<Event>>, Error> {
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
            // A read sees one moment, so that what it ends with is whole.
            if is_last && !self.begun.is_empty() {
                whole.push(std::mem::take(&mut self.begun));
            }
            if is_last || !whole.is_empty() {
                return Ok(whole);
            }
        }
    }

    /// Whether compaction has removed some of what was asked for.
    pub fn compacted(&self) -> bool {
        self.compacted
    }
}
