//! Usage limits of a provider and missing room in a budget, as the proxy and the agent's output report them.

use std::time::Duration;

use outlast_core::words::id::{Micros, Seq};
use outlast_server::door::Seen;
use tokio::time::Instant;

/// Time that an agent at a usage limit has to end by itself before it is stopped. Most end on the provider's error.
pub const GRACE: Duration = Duration::from_secs(10);

/// Usage limit that the agent of an attempt has met, if any.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limited {
    limit: Option<Limit>,
    /// Limit printed by the agent, and when it was read. Used if the proxy has heard of none.
    printed: Option<(Micros, Instant)>,
    /// Whether the last call waited in vain for budget held by other calls in flight.
    no_room: bool,
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    /// Newest refused call.
    seq: Seq,
    until: Micros,
    heard_at: Instant,
}

impl Limited {
    /// Takes an event of the proxy. An answered call that was made after the refusal clears the limit: the agent can go
    /// on, for example with another model.
    pub fn note(&mut self, seen: &Seen) {
        match *seen {
            Seen::Limited { seq, until } => {
                let heard_at = self.limit.map_or_else(Instant::now, |l| l.heard_at);
                let until = self.limit.map_or(until, |l| l.until.max(until));
                self.limit = Some(Limit { seq, until, heard_at });
            }
            Seen::Settled { seq, answered: true, .. } if self.limit.is_some_and(|l| seq > l.seq) => {
                self.limit = None;
            }
            Seen::Refused { ref code, .. } => self.no_room = code == "admission_timeout",
            Seen::Opened { .. } | Seen::Replayed { .. } => self.no_room = false,
            _ => {}
        }
        if matches!(seen, Seen::Settled { answered: true, .. }) {
            self.printed = None;
        }
    }

    /// Takes a usage limit that the agent printed. `until`: the limit's end.
    pub fn read(&mut self, until: Micros) {
        let heard_at = self.printed.map_or_else(Instant::now, |(_, heard_at)| heard_at);
        self.printed = Some((until, heard_at));
    }

    /// Returns whether the agent's last call was refused because other calls in flight held the budget.
    pub fn no_room(&self) -> bool {
        self.no_room
    }

    /// Returns the time at which the usage limit ends; `None` if there is none.
    pub fn until(&self) -> Option<Micros> {
        self.limit.map(|l| l.until).or(self.printed.map(|(until, _)| until))
    }

    /// Returns the moment at which an agent still waiting at the limit is stopped, `grace` after the limit was met;
    /// `None` without a limit.
    pub fn patience(&self, grace: Duration) -> Option<Instant> {
        let heard_at = self.limit.map(|l| l.heard_at).or(self.printed.map(|(_, heard_at)| heard_at));
        heard_at.map(|heard_at| heard_at + grace)
    }
}

#[cfg(test)]
mod tests {
    use outlast_core::run::status::Status;

    use super::*;

    #[test]
    fn there_is_no_room_until_another_call_goes_out_or_is_refused_for_good() {
        let refused = |code: &str| Seen::Refused { code: code.into(), message: String::new(), hint: None };
        let check = |seen: &[Seen], wanted: bool| {
            let mut heard = Limited::default();
            seen.iter().for_each(|seen| heard.note(seen));
            assert_eq!(heard.no_room(), wanted, "{seen:?}");
        };
        check(&[], false);
        check(&[refused("admission_timeout")], true);
        check(&[refused("admission_timeout"), Seen::Opened { seq: Seq(1) }], false);
        check(&[Seen::Opened { seq: Seq(1) }, refused("admission_timeout")], true);
        check(&[refused("admission_timeout"), refused("dollar_budget_exceeded")], false);
    }

    #[test]
    fn a_limit_stands_until_a_later_call_is_answered() {
        let limited = |seq, until| Seen::Limited { seq: Seq(seq), until: Micros(until) };
        let settled = |seq, answered| Seen::Settled {
            seq: Seq(seq),
            upstream: String::new(),
            status: Status::Running,
            answered,
            failed: None,
        };
        let check = |seen: &[Seen], until: Option<i64>| {
            let mut heard = Limited::default();
            seen.iter().for_each(|seen| heard.note(seen));
            assert_eq!(heard.until().map(|at| at.0), until, "{seen:?}");
            assert_eq!(heard.patience(GRACE).is_some(), until.is_some());
        };
        check(&[settled(1, true)], None);
        check(&[settled(2, false), limited(2, 90)], Some(90));
        check(&[limited(2, 90), settled(3, false)], Some(90));
        check(&[limited(2, 90), settled(3, true)], None);
        // The call was made before the refusal and answered after it.
        check(&[limited(2, 90), settled(1, true)], Some(90));
        check(&[limited(2, 90), limited(4, 70), settled(3, true)], Some(90));
        check(&[limited(2, 90), settled(3, true), limited(4, 70)], Some(70));
    }

    #[test]
    fn what_the_agent_prints_of_a_limit_counts_after_what_its_provider_says() {
        let limited = Seen::Limited { seq: Seq(2), until: Micros(90) };
        let settled = Seen::Settled {
            seq: Seq(3),
            upstream: String::new(),
            status: Status::Running,
            answered: true,
            failed: None,
        };
        let mut heard = Limited::default();
        heard.read(Micros(50));
        heard.read(Micros(60));
        assert_eq!((heard.until(), heard.patience(GRACE).is_some()), (Some(Micros(60)), true));
        heard.note(&limited);
        assert_eq!(heard.until(), Some(Micros(90)));
        heard.note(&settled);
        assert_eq!((heard.until(), heard.patience(GRACE).is_some()), (None, false));
    }
}
