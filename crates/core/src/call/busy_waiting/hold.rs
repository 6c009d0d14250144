//! Holds of waiting calls: which call is held, for how long, and what ends its hold. The proxy and the simulator drive the
//! same object.

use std::collections::BTreeSet;

use super::{CONVERSATIONS, Conversations, Streak, TOLD_FROM};
use crate::words::{Digest, Micros};

/// Things that a held call may wait for, as they are at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Process groups of the agent's; `None` if nobody tells.
    pub groups: Option<BTreeSet<u32>>,
    /// Number of times that other conversations of the run have come to an end.
    pub ends: u64,
}

impl Look {
    /// Returns whether a group of this look is gone in the later one, or a conversation has ended since.
    pub fn has_moved(&self, later: &Look) -> bool {
        let groups = self.groups.as_ref().zip(later.groups.as_ref());
        later.ends > self.ends || groups.is_some_and(|(was, is)| !was.is_subset(is))
    }
}

/// Hold of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Longest time for which the call is held, in milliseconds.
    pub ms: u64,
    began: Look,
}

impl Hold {
    /// Returns whether the hold is over after `held_ms` milliseconds, at which things are as `now` shows them.
    pub fn is_over(&self, held_ms: u64, now: &Look) -> bool {
        held_ms >= self.ms || self.began.has_moved(now)
    }
}

impl Streak {
    /// Returns whether a look is wanted at what the next call may wait for. The first one is taken one call before a call
    /// is held: what moves between a tool's end and its request is seen too.
    pub fn wants_look(&self) -> bool {
        self.waits + 1 >= TOLD_FROM
    }
}

impl Conversations {
    /// Decides whether a call is held, for which [`Streak::wants_look`]. `request`: its digest; a request is held once,
    /// because its client may ask again. `patience_ms`: the time for which its client says that it waits.
    pub fn hold(
        &mut self,
        streak: &Streak,
        request: Digest,
        patience_ms: Option<u64>,
        look: Look,
        now: Micros,
    ) -> Option<Hold> {
        let before = self.look.replace(look.clone());
        let has_moved = before.is_some_and(|before| before.has_moved(&look));
        let ms = streak.hold_ms(patience_ms, look.groups.is_some(), now);
        (ms > 0 && !has_moved && self.may_hold(request)).then_some(Hold { ms, began: look })
    }

    /// Returns whether the request may be held: it was not before.
    fn may_hold(&mut self, request: Digest) -> bool {
        if self.held.contains(&request) {
            return false;
        }
        if self.held.len() == CONVERSATIONS {
            self.held.pop_front();
        }
        self.held.push_back(request);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(groups: &[u32], ends: u64) -> Look {
        Look { groups: Some(groups.iter().copied().collect()), ends }
    }

    #[test]
    fn a_group_that_is_gone_and_a_conversation_that_ended_have_moved() {
        let blind = Look { groups: None, ends: 1 };
        for (before, later, wanted) in [
            (look(&[1, 2], 1), look(&[1, 2], 1), false),
            // A tool that was started meanwhile.
            (look(&[1, 2], 1), look(&[1, 2, 3], 1), false),
            (look(&[1, 2], 1), look(&[1, 3], 1), true),
            (look(&[1, 2], 1), look(&[1, 2], 2), true),
            (look(&[1, 2], 1), blind.clone(), false),
            (blind.clone(), look(&[1], 2), true),
        ] {
            assert_eq!(before.has_moved(&later), wanted, "{before:?} {later:?}");
        }
    }

    #[test]
    fn a_request_is_held_once_and_until_something_has_moved_or_its_time_is_over() {
        let streak = Streak { waits: 9, since: Some(Micros(0)), for_own: true, ..Streak::default() };
        let (one, two) = (Digest([7; 32]), Digest([8; 32]));
        let mut talk = Conversations::default();
        let hold = talk.hold(&streak, one, None, look(&[1, 2], 0), Micros(0)).unwrap();
        assert!(!hold.is_over(hold.ms - 1, &look(&[1, 2], 0)));
        assert!(hold.is_over(hold.ms, &look(&[1, 2], 0)));
        assert!(hold.is_over(0, &look(&[1], 0)) && hold.is_over(0, &look(&[1, 2], 1)));
        assert_eq!(talk.hold(&streak, one, None, look(&[1, 2], 0), Micros(0)), None, "held before");
        assert_eq!(
            talk.hold(&streak, two, None, look(&[1], 0), Micros(0)),
            None,
            "moved since the last look"
        );
        assert!(talk.hold(&streak, two, None, look(&[1], 0), Micros(0)).is_some());
        let short = Streak { waits: 4, ..streak };
        assert_eq!(talk.hold(&short, Digest([9; 32]), None, look(&[1], 0), Micros(0)), None);
        assert!(short.wants_look() && !Streak { waits: 3, ..short }.wants_look());
    }
}
