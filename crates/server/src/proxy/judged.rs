//! Judgement of a call that may wait busily, and what a held call waits for.

use std::{collections::BTreeSet, io, sync::Arc};

use outlast_core::{call::busy_waiting::Streak, words::digest::Digest};

/// Function that lists the process groups of a run's agents, by their numbers. It may block for some milliseconds.
pub type Groups = Arc<dyn Fn() -> io::Result<BTreeSet<u32>> + Send + Sync>;

/// Judgement of a call.
#[derive(Clone, Debug)]
pub struct Judged {
    /// Digest that identifies the conversation of the call.
    pub conversation: Digest,
    /// Number of items that its request carries.
    pub items: usize,
    pub streak: Streak,
}

impl Judged {
    /// Returns the number of calls in a row that bring nothing new, this one included.
    pub fn waits(&self) -> u32 {
        self.streak.waits
    }
}

/// Things that a held call may wait for, as they are at one moment.
#[derive(Clone, Debug)]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_is_gone_and_a_conversation_that_ended_have_moved() {
        let look = |groups: &[u32], ends| Look { groups: Some(groups.iter().copied().collect()), ends };
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
}
