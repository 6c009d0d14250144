//! Waiters for room in a run's budget: first come, first served, holding neither reservation nor transaction.
//!
//! Only a run's first waiter decides again; when it leaves, the next one does. A settlement thus costs one
//! decision per run, not one per waiter, and small calls do not overtake a large one for ever.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    call::{ConnectionId, RequestKey},
    words::RunNo,
};

/// Calls of one process that wait for room in a budget.
#[derive(Debug, Default)]
pub struct Waiters {
    runs: BTreeMap<RunNo, VecDeque<(ConnectionId, RequestKey)>>,
    /// Connections whose admission is being decided. Budget may become free after a connection was refused and before
    /// the refusal is known here; connections in this map are woken too.
    deciding: BTreeMap<ConnectionId, RequestKey>,
}

impl Waiters {
    /// Notes that the connection's admission is submitted.
    pub fn decides(&mut self, place: RequestKey, connection: ConnectionId) {
        self.deciding.insert(connection, place);
    }

    /// Notes that the outcome of the connection's admission arrived. The caller does so before it feeds the outcome to
    /// the connection.
    pub fn decided(&mut self, connection: ConnectionId) {
        self.deciding.remove(&connection);
    }

    /// Returns whether an earlier call of the run waits here, for `Admit::behind`.
    pub fn is_behind(&self, run: RunNo, connection: ConnectionId) -> bool {
        self.first(run).is_some_and(|first| first != connection)
    }

    pub fn enqueue(&mut self, place: RequestKey, connection: ConnectionId) {
        self.runs.entry(place.run).or_default().push_back((connection, place));
    }

    /// Removes the connection from its run's queue. Returns the connections to be decided again now: the new first one,
    /// and those of the run whose admission was submitted as behind this one.
    #[must_use = "those returned have to be told `MayRetry`"]
    pub fn dequeue(&mut self, run: RunNo, connection: ConnectionId) -> Vec<ConnectionId> {
        let Some(line) = self.runs.get_mut(&run) else { return Vec::new() };
        let Some(at) = line.iter().position(|(c, _)| *c == connection) else { return Vec::new() };
        line.remove(at);
        if line.is_empty() {
            self.runs.remove(&run);
        }
        if at > 0 {
            return Vec::new();
        }
        let deciding = self.deciding.iter().filter(|(_, place)| place.run == run).map(|(c, _)| *c);
        sorted(self.first(run).into_iter().chain(deciding))
    }

    /// Returns the connections to be decided again after a call was settled or voided, a limit raised or a run
    /// cancelled: the connections being decided, and every run's first waiter, because runs share their ancestors'
    /// envelopes.
    #[must_use = "those returned have to be told `MayRetry`"]
    pub fn wake(&self) -> Vec<ConnectionId> {
        sorted(self.firsts().chain(self.deciding.keys().copied()))
    }

    /// Returns the connections that a recorded answer of this place may serve after another connection gave it back. A
    /// replay passes the queue, so these are all that wait for the same answer, wherever they stand.
    #[must_use = "those returned have to be told `MayRetry`"]
    pub fn wake_identical(&self, place: RequestKey) -> Vec<ConnectionId> {
        let queued = self.runs.get(&place.run).into_iter().flatten();
        let deciding = self.deciding.iter().map(|(c, p)| (*c, *p));
        sorted(queued.copied().chain(deciding).filter(|(_, p)| *p == place).map(|(c, _)| c))
    }

    /// Returns every run's first waiter. The caller lets each be decided again from time to time, with jitter: room can
    /// come back in another process, which reports nothing here.
    pub fn firsts(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        self.runs.values().filter_map(|line| line.front()).map(|(c, _)| *c)
    }

    fn first(&self, run: RunNo) -> Option<ConnectionId> {
        self.runs.get(&run)?.front().map(|(c, _)| *c)
    }
}

fn sorted(connections: impl Iterator<Item = ConnectionId>) -> Vec<ConnectionId> {
    let mut all: Vec<ConnectionId> = connections.collect();
    all.sort();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{AttemptNo, MatchKey};

    const RUN: RunNo = RunNo(1);

    fn place(run: i64, key: u8) -> RequestKey {
        RequestKey { run: RunNo(run), attempt: AttemptNo(1), key: MatchKey([key; 16]) }
    }

    fn c(n: u64) -> ConnectionId {
        ConnectionId(n)
    }

    fn queue(n: u64) -> Waiters {
        let mut w = Waiters::default();
        (1..=n).for_each(|n| w.enqueue(place(1, n as u8), c(n)));
        w
    }

    #[test]
    fn all_but_the_first_are_behind() {
        let w = queue(2);
        for (connection, behind) in [(1, false), (2, true), (3, true)] {
            assert_eq!(w.is_behind(RUN, c(connection)), behind, "{connection}");
        }
        assert!(!w.is_behind(RunNo(2), c(3)), "another run has a queue of its own");
    }

    #[test]
    fn the_next_one_decides_when_the_first_leaves_however_it_leaves() {
        let mut w = queue(3);
        assert_eq!(w.dequeue(RUN, c(2)), []);
        assert_eq!(w.dequeue(RUN, c(1)), [c(3)]);
        assert_eq!(w.dequeue(RUN, c(3)), []);
        assert!(w.runs.is_empty());
    }

    #[test]
    fn room_that_comes_back_wakes_the_first_of_every_run_and_whoever_is_deciding() {
        let mut w = queue(2);
        w.enqueue(place(2, 0), c(5));
        w.decides(place(1, 0), c(9));
        w.decides(place(1, 0), c(1));
        assert_eq!(w.wake(), [c(1), c(5), c(9)]);
        w.decided(c(9));
        assert_eq!(w.wake(), [c(1), c(5)]);
    }

    #[test]
    fn a_candidate_that_is_given_back_wakes_all_who_wait_for_the_same() {
        let mut w = queue(3);
        w.enqueue(place(1, 2), c(7));
        w.decides(place(1, 2), c(8));
        w.decides(place(1, 1), c(9));
        assert_eq!(w.wake_identical(place(1, 2)), [c(2), c(7), c(8)]);
        assert_eq!(w.wake_identical(place(2, 2)), []);
    }

    // Bug: a request that had been decided as behind was enqueued after the queue had emptied, and
    // nobody woke it. Consequence: it waited until it timed out. Cause: only queued ones were told.
    #[test]
    fn one_that_is_deciding_as_behind_learns_that_the_queue_moved() {
        let mut w = queue(1);
        w.decides(place(1, 0), c(2));
        assert_eq!(w.dequeue(RUN, c(1)), [c(2)]);
    }
}
