//! Openings of this process: Python names an entry by its number, and a closing presents its opening.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use outlast_core::{
    engine::{op::Outcome, step::begin_step::Step},
    journal::{Opening, job::ItemClaim},
    words::id::{RunNo, Seq},
};

/// Openings of the entries that this process has open, each kept until its entry is closed.
#[derive(Default)]
pub struct Openings(Mutex<HashMap<(RunNo, Seq), Opening>>);

impl Openings {
    /// Keeps the opening in an operation's outcome, and forgets the entry of `run` that the operation closed.
    pub fn note(&self, run: RunNo, outcome: &Outcome) {
        match outcome {
            Outcome::Begun(Step::Run { opening, .. }) => self.keep(*opening),
            Outcome::ItemClaimed(ItemClaim::Run(item)) => self.keep(item.opening),
            Outcome::Recorded(seq) => self.forget(run, *seq),
            Outcome::ItemEnded(item) => self.forget(run, item.seq),
            _ => {}
        }
    }

    /// Returns the opening of an entry. If none is kept, returns one with which a closing gets `AlreadyTaken`.
    pub fn of(&self, run: RunNo, seq: Seq) -> Opening {
        self.lock().get(&(run, seq)).copied().unwrap_or(Opening { run, seq, ..Opening::default() })
    }

    pub fn keep(&self, opening: Opening) {
        self.lock().insert((opening.run, opening.seq), opening);
    }

    pub fn forget(&self, run: RunNo, seq: Seq) {
        self.lock().remove(&(run, seq));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(RunNo, Seq), Opening>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
