//! Recorded answers of ended attempts that a later one has not asked for.

use std::fmt;

use outlast_core::{
    journal::{Entry, State, iteration_scope},
    run::Attempt,
};

use crate::render::amount::{some, usd};

/// Recorded answers that an attempt has not taken: their number and their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Untaken {
    pub answers: i64,
    pub cost_nano_usd: i64,
}

impl Untaken {
    /// Adds an entry of the run, if it is an answer of an earlier attempt that `attempt` has not taken. Valid for the
    /// run's newest attempt only: an answer remembers just the last attempt it was delivered to.
    pub fn add(&mut self, attempt: &Attempt, e: &Entry) {
        let is_left = e.state == State::Done
            && e.replayable
            && e.attempt < attempt.no
            && e.delivered_to != Some(attempt.no)
            && e.scope == iteration_scope(attempt.iteration);
        if is_left {
            self.answers += 1;
            self.cost_nano_usd += e.spent.cost();
        }
    }
}

impl fmt::Display for Untaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} that had cost {} usd", some(self.answers, "recorded answer"), usd(self.cost_nano_usd))
    }
}
