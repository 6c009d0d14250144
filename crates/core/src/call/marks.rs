//! Delivery marks under way: answers that are flushed to their clients, and not yet marked as delivered in the store.
//!
//! After the last byte was flushed, a client that lost the answer may ask again at once, and so may an agent that has
//! the answer and wants another one. The replay rule tells the two apart by the mark. Identical requests are therefore
//! decided after it.

use crate::{
    call::{ConnectionId, RequestKey},
    words::Map,
};

/// Delivery marks under way in one process.
#[derive(Debug, Default)]
pub struct Marks(Map<RequestKey, Marking>);

#[derive(Debug, Default)]
struct Marking {
    under_way: usize,
    /// Identical requests that wait for these marks, in order of arrival.
    waiting: Vec<ConnectionId>,
}

impl Marks {
    /// Notes that an answer to a request of `place` is about to be marked as delivered.
    pub fn begin(&mut self, place: RequestKey) {
        self.0.entry(place).or_default().under_way += 1;
    }

    /// Returns whether a request of `place` has to wait for a mark. The last [`Marks::end`] of the place then returns
    /// the connection.
    #[must_use]
    pub fn holds(&mut self, place: RequestKey, connection: ConnectionId) -> bool {
        let Some(marking) = self.0.get_mut(&place) else { return false };
        marking.waiting.push(connection);
        true
    }

    /// Notes that one delivery mark of `place` is submitted to the store. Returns the connections that waited for the
    /// last one.
    #[must_use = "those returned are to be admitted now"]
    pub fn end(&mut self, place: RequestKey) -> Vec<ConnectionId> {
        let Some(marking) = self.0.get_mut(&place) else { return Vec::new() };
        marking.under_way -= 1;
        if marking.under_way > 0 {
            return Vec::new();
        }
        self.0.remove(&place).map_or_else(Vec::new, |marking| marking.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{AttemptNo, MatchKey, RunNo};

    #[test]
    fn identical_requests_wait_for_the_last_mark_and_others_for_none() {
        let place = |key| RequestKey { run: RunNo(1), attempt: AttemptNo(1), key: MatchKey([key; 16]) };
        let c = ConnectionId;
        let mut marks = Marks::default();
        assert!(!marks.holds(place(1), c(3)));
        marks.begin(place(1));
        marks.begin(place(1));
        assert!(marks.holds(place(1), c(3)) && marks.holds(place(1), c(4)));
        assert!(!marks.holds(place(2), c(5)));
        assert_eq!(marks.end(place(1)), []);
        assert_eq!(marks.end(place(1)), [c(3), c(4)]);
        assert!(!marks.holds(place(1), c(6)) && marks.0.is_empty());
    }
}
