//! Approvals that a run waits for, and the time it has waited.

use serde::{Deserialize, Serialize};

use crate::words::{Micros, Seq};

/// Pending approvals of a run, and the time the run has waited for any of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Awaited {
    pending: Vec<Pending>,
    /// Start of the current wait; `None` while `pending` is empty. A wait lasts as long as any approval is pending.
    /// Earlier waits are added up in `waited_us`, in microseconds.
    since: Option<Micros>,
    waited_us: i64,
}

impl Awaited {
    /// Returns the number of approvals that may still be decided.
    pub fn pending(&self, now: Micros) -> usize {
        self.pending.iter().filter(|p| now < p.expires_at).count()
    }

    /// Returns whether no approval is listed. A listed approval may have expired unnoticed.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the time during which at least one approval was pending, in milliseconds.
    pub fn waited_ms(&self, now: Micros) -> i64 {
        (self.waited_us + self.waiting_us(now)) / 1000
    }

    /// Moves the start of the wait by `us` microseconds, so that a clock that was set by as much changes no waiting time.
    pub fn move_start(&mut self, us: i64) {
        self.since = self.since.map(|at| Micros(at.0.saturating_add(us)));
    }

    /// Returns the microseconds waited since `since`, up to `now` or until the last approval expires.
    fn waiting_us(&self, now: Micros) -> i64 {
        let end = self.pending.iter().map(|p| p.expires_at.min(now)).max();
        self.since.zip(end).map_or(0, |(since, end)| (end.0 - since.0).max(0))
    }

    /// Lists an approval that was opened at `now`.
    pub fn opened(&mut self, seq: Seq, expires_at: Micros, now: Micros) {
        self.let_go(now);
        self.pending.push(Pending { seq, expires_at });
        self.since.get_or_insert(now);
    }

    /// Sets the deadline of a listed approval.
    pub fn expires(&mut self, seq: Seq, at: Micros) {
        self.pending.iter_mut().filter(|p| p.seq == seq).for_each(|p| p.expires_at = at);
    }

    /// Removes an approval that was decided, or was seen to have expired.
    pub fn closed(&mut self, seq: Seq, now: Micros) {
        self.let_go(now);
        self.pending.retain(|p| p.seq != seq);
        if self.pending.is_empty() {
            self.since = None;
        }
    }

    /// Adds the current wait to the total, and drops approvals that have expired.
    pub fn let_go(&mut self, now: Micros) {
        self.waited_us += self.waiting_us(now);
        self.pending.retain(|p| now < p.expires_at);
        self.since = (!self.pending.is_empty()).then_some(now);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pending {
    seq: Seq,
    expires_at: Micros,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_counted_once_while_several_are_pending_and_not_beyond_their_end() {
        let at = |ms: i64| Micros(ms * 1000);
        let mut a = Awaited::default();
        a.opened(Seq(1), at(100), at(10));
        a.opened(Seq(2), at(40), at(20));
        assert_eq!((a.pending(at(30)), a.waited_ms(at(30))), (2, 20));
        assert_eq!((a.pending(at(50)), a.waited_ms(at(50))), (1, 40), "one has expired");
        a.closed(Seq(1), at(60));
        assert_eq!((a.pending(at(60)), a.waited_ms(at(90))), (0, 50));
        a.opened(Seq(3), at(200), at(150));
        assert_eq!(a.waited_ms(at(500)), 100, "nobody closed it, and it expired");
        a.opened(Seq(4), at(900), at(600));
        a.closed(Seq(4), at(610));
        assert_eq!(a.waited_ms(at(1000)), 110);
    }
}
