//! Work of a program in a run: it takes the run, does deeds in it, and leaves it. A session over REST and the engine in
//! Python's process are two bindings of what is here.

mod deed;
pub mod take;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outlast_core::{
    engine::{Actor, EndAttempt, Outcome, openings, run::end_attempt::Then},
    journal::Opening,
    run::Exit,
    store,
    words::{RunId, RunNo, Seq, Slot},
};

pub(crate) use deed::there;
pub use deed::{Deed, Error, Task};

/// Openings of the entries that a program has open, for all its threads.
#[derive(Debug, Default)]
pub struct Openings(Mutex<openings::Openings>);

impl Openings {
    pub fn lock(&self) -> MutexGuard<'_, openings::Openings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Program at work in a run: who acts, and what it has open.
#[derive(Debug)]
pub struct Hand {
    pub run: RunNo,
    pub id: RunId,
    pub iteration: i64,
    /// Attempt that the program acts in; `None` if it replays a completed run.
    pub attempt: Option<(Actor, Slot)>,
    pub openings: Arc<Openings>,
}

impl Hand {
    /// Returns the opening of an entry that the program has open. Without one, a closing gets `already_taken`.
    pub fn opening(&self, seq: Seq) -> Opening {
        self.openings.lock().of(self.run, seq)
    }

    /// Keeps what an operation opened, and forgets what it closed.
    pub fn note(&self, outcome: &Result<Outcome, store::Error>) {
        match outcome {
            Ok(outcome) => self.openings.lock().note(self.run, outcome),
            Err(store::Error::Engine(e)) => self.openings.lock().note_failure(self.run, e),
            Err(_) => {}
        }
    }
}

/// Manner in which a program leaves its attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The program is done: the run is completed.
    Complete,
    /// The program leaves the run, which can be taken up again.
    Interrupt,
    /// The program leaves the run because a person stopped it.
    Stopped,
}

impl How {
    /// Returns the end of the attempt in which `actor` acts. `active_ms`: its active time that was not posted yet. `why`: the
    /// program's reason for leaving the run unfinished.
    pub fn end(self, actor: Actor, active_ms: i64, why: Option<String>) -> EndAttempt {
        let is_done = self == How::Complete;
        let then = match self {
            How::Complete => Then::Complete,
            How::Interrupt | How::Stopped => Then::Interrupt { by_person: self == How::Stopped },
        };
        // A program that reports its end is no death, whatever the reason.
        let exit = Exit { code: is_done.then_some(0), stopped: !is_done, why, ..Exit::default() };
        let Actor { run, attempt, instance } = actor;
        EndAttempt { run, attempt, instance, exit, active_ms, then }
    }
}
