//! Judgement of a call that may wait busily.

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
