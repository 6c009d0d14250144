//! The registry: who receives which answer, who waits, and what is on its way.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use outlast_core::{
    call::{ConnectionId, Taken, Waiters, taken::Place},
    words::id::{RunNo, Seq},
};
use tokio::sync::mpsc;

use super::{drive::Signal, live::Live};

/// Under one lock, as the call machine wants it.
#[derive(Default)]
pub struct Registry {
    pub taken: Taken,
    pub waiters: Waiters,
    pub inboxes: HashMap<ConnectionId, mpsc::UnboundedSender<Signal>>,
    pub exchanges: HashMap<(RunNo, Seq), Arc<Live>>,
    /// Whose clients are gone, and whose drivers do not know it yet: they take nothing any more.
    left: HashSet<ConnectionId>,
    /// Where answers are delivered, and their drivers have not marked them yet.
    marking: HashMap<Place, Marking>,
}

#[derive(Default)]
struct Marking {
    drivers: Vec<ConnectionId>,
    /// Identical requests, which are decided behind the marks.
    waiting: Vec<ConnectionId>,
}

impl Registry {
    /// Whether one client is all there is: its thread may do the store's work itself, for nobody else's
    /// request has to wait for it, and none could share its commit.
    pub fn is_alone(&self) -> bool {
        self.inboxes.len() <= 1 && self.exchanges.len() <= 1
    }

    pub fn take(&mut self, place: Place, id: ConnectionId, seq: Seq, replays: bool) {
        if !self.left.contains(&id) {
            self.taken.take(place, id, seq, replays);
        }
    }

    /// The client of `id` is gone: what it was receiving is given back at once, and not only when its
    /// driver gets to it. A client that asks again at once finds it.
    pub fn leave(&mut self, place: Place, id: ConnectionId) {
        if let Some(inbox) = self.inboxes.get(&id) {
            // One that is over has no use for it.
            let _ = inbox.send(Signal::Gone);
            self.left.insert(id);
            self.give_back(place, id);
        }
    }

    pub fn give_back(&mut self, place: Place, id: ConnectionId) {
        self.taken.give_back(place, id);
        self.tell(self.waiters.wake_identical(place), Signal::MayRetry);
    }

    /// Everything was flushed to the client of `id`.
    pub fn delivered(&mut self, place: Place, id: ConnectionId) {
        if let Some(inbox) = self.inboxes.get(&id) {
            let _ = inbox.send(Signal::Delivered);
            self.marking.entry(place).or_default().drivers.push(id);
        }
    }

    /// Whether a request of `place` has to wait for marks: it gets `Marked` then.
    pub fn waits_for_marks(&mut self, place: Place, id: ConnectionId) -> bool {
        match self.marking.get_mut(&place) {
            Some(marking) => {
                marking.waiting.push(id);
                true
            }
            None => false,
        }
    }

    /// The driver of `id` is over.
    pub fn forget(&mut self, place: Place, id: ConnectionId) {
        self.inboxes.remove(&id);
        self.left.remove(&id);
        if let Some(marking) = self.marking.get_mut(&place) {
            marking.drivers.retain(|driver| *driver != id);
            marking.waiting.retain(|waiter| *waiter != id);
            if marking.drivers.is_empty()
                && let Some(marking) = self.marking.remove(&place)
            {
                self.tell(marking.waiting, Signal::Marked);
            }
        }
    }

    pub fn tell(&self, who: impl IntoIterator<Item = ConnectionId>, signal: Signal) {
        for id in who {
            if let Some(inbox) = self.inboxes.get(&id) {
                // One that is over has no use for it.
                let _ = inbox.send(signal);
            }
        }
    }
}
