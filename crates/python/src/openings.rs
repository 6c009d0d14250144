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

/// Entries that this process has open, each kept from its opening to its closing.
#[derive(Default)]
pub struct Openings(Mutex<HashMap<(RunNo, Seq), Opening>>);

impl Openings {
    /// Keeps the opening that an outcome tells of, and forgets the entry of `run` that it closed.
    pub fn note(&self, run: RunNo, outcome: &Outcome) {
        match outcome {
            Outcome::Begun(Step::Run { opening, .. }) => self.keep(*opening),
            Outcome::ItemClaimed(ItemClaim::Run(item)) => self.keep(item.opening),
            Outcome::Recorded(seq) => self.forget(run, *seq),
            Outcome::ItemEnded(item) => self.forget(run, item.seq),
            _ => {}
        }
    }

    /// Returns the opening of an entry. If none is kept, the closing that presents the answer gets `AlreadyTaken`.
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
