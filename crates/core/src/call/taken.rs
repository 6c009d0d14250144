//! Which candidates live connections are receiving, and whose turn it is to be admitted.
//!
//! Replay gives a request the lowest candidate that is not taken. "Delivered whole" is in the
//! store; "being received" is only here, in the process that has the connections. Two things
//! make it exact: identical requests of an attempt are admitted one after the other (so that the
//! second sees what the first took, and five identical parallel requests are five calls), and a
//! connection gives its candidate back only after it submitted its delivery mark, which the store
//! decides before any later admission.

use std::collections::{HashMap, VecDeque};

use crate::{
    call::ConnectionId,
    words::{
        digest::MatchKey,
        id::{AttemptNo, RunNo, Seq},
    },
};

/// Where identical requests meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub run: RunNo,
    pub attempt: AttemptNo,
    pub key: MatchKey,
}

/// The registry of one process.
#[derive(Debug, Default)]
pub struct Taken {
    places: HashMap<Place, Desk>,
}

#[derive(Debug, Default)]
struct Desk {
    receiving: Vec<Receiving>,
    /// Requests that came to nothing and left no entry (answered with an error of ours, or gone
    /// before they were admitted), and not retried since.
    errors: usize,
    /// The first has the turn.
    line: VecDeque<ConnectionId>,
}

#[derive(Clone, Copy, Debug)]
struct Receiving {
    connection: ConnectionId,
    seq: Seq,
    /// It was recorded before: nothing is paid for it again.
    replays: bool,
}

impl Desk {
    fn is_empty(&self) -> bool {
        self.receiving.is_empty() && self.errors == 0 && self.line.is_empty()
    }
}

impl Taken {
    /// Lines up for admission. True when it is `connection`'s turn at once.
    pub fn line_up(&mut self, place: Place, connection: ConnectionId) -> bool {
        let line = &mut self.places.entry(place).or_default().line;
        line.push_back(connection);
        line.len() == 1
    }

    /// Leaves the line, from its head or from the middle. Returns whose turn it is now, if that
    /// changed.
    pub fn leave_line(&mut self, place: Place, connection: ConnectionId) -> Option<ConnectionId> {
        let desk = self.places.get_mut(&place)?;
        let at = desk.line.iter().position(|c| *c == connection)?;
        desk.line.remove(at);
        let next = desk.line.front().copied().filter(|_| at == 0);
        self.tidy(place);
        next
    }

    /// `connection` receives the answer of `seq`.
    pub fn take(&mut self, place: Place, connection: ConnectionId, seq: Seq, replays: bool) {
        self.places.entry(place).or_default().receiving.push(Receiving { connection, seq, replays });
    }

    /// It does not any more.
    pub fn give_back(&mut self, place: Place, connection: ConnectionId) {
        if let Some(desk) = self.places.get_mut(&place) {
            desk.receiving.retain(|r| r.connection != connection);
        }
        self.tidy(place);
    }

    /// What is taken, for `Admit::taken`.
    pub fn seqs(&self, place: Place) -> Vec<Seq> {
        self.places.get(&place).map_or_else(Vec::new, |d| d.receiving.iter().map(|r| r.seq).collect())
    }

    /// Recorded answers that the attempt is receiving, wherever, for `Admit::in_hand`.
    pub fn in_hand(&self, run: RunNo, attempt: AttemptNo) -> Vec<Seq> {
        let of_attempt = self.places.iter().filter(|(place, _)| (place.run, place.attempt) == (run, attempt));
        of_attempt.flat_map(|(_, d)| &d.receiving).filter(|r| r.replays).map(|r| r.seq).collect()
    }

    /// A request came to nothing, and left no entry.
    pub fn mark_error(&mut self, place: Place) {
        self.places.entry(place).or_default().errors += 1;
    }

    /// For `Admit::answered_with_error`.
    pub fn has_error(&self, place: Place) -> bool {
        self.places.get(&place).is_some_and(|d| d.errors > 0)
    }

    /// A marked retry was admitted: it stands for one such request.
    pub fn retried(&mut self, place: Place) {
        if let Some(desk) = self.places.get_mut(&place) {
            desk.errors = desk.errors.saturating_sub(1);
        }
        self.tidy(place);
    }

    /// The attempt is over: nobody retries its errors.
    pub fn forget(&mut self, run: RunNo, attempt: AttemptNo) {
        self.places.retain(|place, desk| {
            if (place.run, place.attempt) == (run, attempt) {
                desk.errors = 0;
            }
            !desk.is_empty()
        });
    }

    /// Memory is bounded by live connections and unretried errors.
    fn tidy(&mut self, place: Place) {
        if self.places.get(&place).is_some_and(Desk::is_empty) {
            self.places.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(attempt: i64) -> Place {
        Place { run: RunNo(1), attempt: AttemptNo(attempt), key: MatchKey([0; 16]) }
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
        t.take(place(1), c(1), Seq(1), true);
        t.take(place(1), c(2), Seq(2), false);
        assert_eq!(t.seqs(place(1)), [Seq(1), Seq(2)]);
        assert_eq!(t.seqs(place(2)), []);
        assert_eq!(t.in_hand(RunNo(1), AttemptNo(1)), [Seq(1)]);
        assert_eq!(t.in_hand(RunNo(1), AttemptNo(2)), []);
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
        t.take(place(1), c(1), Seq(1), true);
        t.mark_error(place(1));
        t.leave_line(place(1), c(1));
        t.give_back(place(1), c(1));
        t.retried(place(1));
        assert!(t.places.is_empty());
    }
}
