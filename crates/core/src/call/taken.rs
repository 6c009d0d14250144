//! Taken candidates: the answers that live connections are receiving, and the line of requests to be admitted.
//!
//! Replay gives a request the lowest candidate that is not taken. The store knows which answers were delivered whole, and
//! which are being received at other processes; of its own connections a process knows it at once, without a commit. Two
//! rules make it exact. Identical requests of an attempt are admitted one after the other, so that the second sees what the
//! first took, and five identical parallel requests are five calls. A connection gives its candidate back only after it
//! submitted its delivery mark, which the store decides before any later admission.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    call::ConnectionId,
    engine::Received,
    words::{AttemptNo, Map, MatchKey, RunNo, Seq},
};

/// Key of identical requests: run, attempt and match key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey {
    pub run: RunNo,
    pub attempt: AttemptNo,
    pub key: MatchKey,
}

/// Registry of the answers that live connections of one process are receiving (taken candidates).
#[derive(Debug, Default)]
pub struct Taken {
    places: BTreeMap<RequestKey, Meeting>,
}

#[derive(Debug, Default)]
struct Meeting {
    receiving: Vec<Receiving>,
    /// Requests that left no entry (answered with an error of Outlast's own, or gone before they were admitted), and
    /// were not retried since.
    errors: usize,
    /// Requests waiting for admission; the first has the turn.
    line: VecDeque<ConnectionId>,
}

#[derive(Clone, Copy, Debug)]
struct Receiving {
    connection: ConnectionId,
    seq: Seq,
}

impl Meeting {
    fn is_empty(&self) -> bool {
        self.receiving.is_empty() && self.errors == 0 && self.line.is_empty()
    }
}

impl Taken {
    /// Adds `connection` to the line of identical requests that wait for admission. Returns whether it is first, and
    /// has its turn at once.
    pub fn line_up(&mut self, place: RequestKey, connection: ConnectionId) -> bool {
        let line = &mut self.places.entry(place).or_default().line;
        line.push_back(connection);
        line.len() == 1
    }

    /// Removes `connection` from the line, wherever it stands. Returns the connection whose turn it is now; `None` if
    /// that has not changed.
    pub fn leave_line(&mut self, place: RequestKey, connection: ConnectionId) -> Option<ConnectionId> {
        let meeting = self.places.get_mut(&place)?;
        let at = meeting.line.iter().position(|c| *c == connection)?;
        meeting.line.remove(at);
        let next = meeting.line.front().copied().filter(|_| at == 0);
        self.tidy(place);
        next
    }

    /// Notes that `connection` receives the answer of entry `seq`.
    pub fn take(&mut self, place: RequestKey, connection: ConnectionId, seq: Seq) {
        self.places.entry(place).or_default().receiving.push(Receiving { connection, seq });
    }

    /// Notes that `connection` no longer receives its answer.
    pub fn give_back(&mut self, place: RequestKey, connection: ConnectionId) {
        if let Some(meeting) = self.places.get_mut(&place) {
            meeting.receiving.retain(|r| r.connection != connection);
        }
        self.tidy(place);
    }

    /// Returns the entries whose answers live connections of this place are receiving, for `Admit::taken`.
    pub fn seqs(&self, place: RequestKey) -> Vec<Seq> {
        self.places.get(&place).map_or_else(Vec::new, |m| m.receiving.iter().map(|r| r.seq).collect())
    }

    /// Returns the answers that live connections are receiving.
    pub fn received(&self) -> Vec<Received> {
        let all =
            self.places.iter().flat_map(|(place, meeting)| meeting.receiving.iter().map(move |r| (place, r)));
        all.map(|(&RequestKey { run, attempt, .. }, r)| Received {
            run,
            attempt,
            seq: r.seq,
            connection: r.connection.0,
        })
        .collect()
    }

    /// Notes a request that was answered with an error of Outlast's own and left no entry.
    pub fn mark_error(&mut self, place: RequestKey) {
        self.places.entry(place).or_default().errors += 1;
    }

    /// Returns whether an error that left no entry is noted, for `Admit::answered_with_error`.
    pub fn has_error(&self, place: RequestKey) -> bool {
        self.places.get(&place).is_some_and(|m| m.errors > 0)
    }

    /// Notes that a marked retry was admitted: it stands for one noted error.
    pub fn retried(&mut self, place: RequestKey) {
        if let Some(meeting) = self.places.get_mut(&place) {
            meeting.errors = meeting.errors.saturating_sub(1);
        }
        self.tidy(place);
    }

    /// Forgets the errors noted for an attempt that has ended: no client retries its requests.
    pub fn forget(&mut self, run: RunNo, attempt: AttemptNo) {
        self.places.retain(|place, meeting| {
            if (place.run, place.attempt) == (run, attempt) {
                meeting.errors = 0;
            }
            !meeting.is_empty()
        });
    }

    /// Removes an empty place, so that memory is bounded by live connections and unretried errors.
    fn tidy(&mut self, place: RequestKey) {
        if self.places.get(&place).is_some_and(Meeting::is_empty) {
            self.places.remove(&place);
        }
    }
}

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

    fn place(attempt: i64) -> RequestKey {
        RequestKey { run: RunNo(1), attempt: AttemptNo(attempt), key: MatchKey([0; 16]) }
    }

    fn c(n: u64) -> ConnectionId {
        ConnectionId(n)
    }

    #[test]
    fn identical_requests_are_admitted_one_after_the_other_in_their_order() {
        let mut t = Taken::default();
        let turns: Vec<bool> = (1..=4).map(|n| t.line_up(place(1), c(n))).collect();
        assert_eq!(turns, [true, false, false, false]);
        assert!(t.line_up(place(2), c(9)), "another attempt has a line of its own");
        assert_eq!(t.leave_line(place(1), c(2)), None, "the middle leaving changes no turn");
        assert_eq!(t.leave_line(place(1), c(1)), Some(c(3)));
        assert_eq!(t.leave_line(place(1), c(1)), None);
        assert_eq!(t.leave_line(place(1), c(3)), Some(c(4)));
        assert_eq!(t.leave_line(place(1), c(4)), None);
    }

    #[test]
    fn a_connection_that_goes_gives_back_only_its_own() {
        let mut t = Taken::default();
        t.take(place(1), c(1), Seq(1));
        t.take(place(1), c(2), Seq(2));
        assert_eq!(t.seqs(place(1)), [Seq(1), Seq(2)]);
        assert_eq!(t.seqs(place(2)), []);
        t.give_back(place(1), c(1));
        assert_eq!(t.seqs(place(1)), [Seq(2)]);
    }

    #[test]
    fn an_error_stands_for_one_retry_and_ends_with_its_attempt() {
        let mut t = Taken::default();
        assert!(!t.has_error(place(1)));
        t.mark_error(place(1));
        t.mark_error(place(1));
        t.retried(place(1));
        assert!(t.has_error(place(1)));
        t.forget(RunNo(1), AttemptNo(2));
        assert!(t.has_error(place(1)));
        t.forget(RunNo(1), AttemptNo(1));
        assert!(!t.has_error(place(1)));
    }

    #[test]
    fn nothing_is_kept_of_what_is_over() {
        let mut t = Taken::default();
        t.line_up(place(1), c(1));
        t.take(place(1), c(1), Seq(1));
        t.mark_error(place(1));
        t.leave_line(place(1), c(1));
        t.give_back(place(1), c(1));
        t.retried(place(1));
        assert!(t.places.is_empty());
    }
}

#[cfg(test)]
mod marks_tests {
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
