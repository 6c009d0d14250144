//! A store that is waited for while it is away, so that an outage ends no supervisor.
//!
//! Every read and every operation is asked again until the store answers: with rows, or with an error that time does
//! not mend. What an operation did whose outcome was lost is for the engine to say: the verbs of a supervisor can be
//! asked again. Heartbeats do not go through here: each has to know at once that it failed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use outlast_core::{
    engine::Op,
    store::{Answer, Durability, Error, Question, Store, Ticket},
};
use tokio::runtime::Handle;

use crate::program::say::say;

/// Interval at which an operation is repeated while the store is away.
const LOOK: Duration = Duration::from_millis(250);

/// Store that waits while the database is away, and repeats each request until it is answered. Clones share it.
#[derive(Clone)]
pub struct Patient(Arc<Waiting>);

struct Waiting {
    store: Arc<dyn Store>,
    /// Function that returns whether somebody asked this process to end, which also ends the wait.
    is_ending: Box<dyn Fn() -> bool + Send + Sync>,
    /// Whether a message has said that the store is away.
    said: AtomicBool,
}

impl Patient {
    pub fn new(store: Arc<dyn Store>, is_ending: impl Fn() -> bool + Send + Sync + 'static) -> Patient {
        Patient(Arc::new(Waiting { store, is_ending: Box::new(is_ending), said: AtomicBool::new(false) }))
    }
}

impl Waiting {
    /// Repeats a read until the store is back. Blocks.
    fn ask<T>(&self, ask: impl Fn(&dyn Store) -> Result<T, Error>) -> Result<T, Error> {
        loop {
            let told = ask(self.store.as_ref());
            if !self.is_to_be_asked_again(&told) {
                return told;
            }
            thread::sleep(LOOK);
        }
    }

    /// Returns whether the store is away and still to be waited for. Prints once that it is away, and once
    /// that it is back.
    fn is_to_be_asked_again<T>(&self, told: &Result<T, Error>) -> bool {
        match told {
            Err(e) if e.is_away() => {
                if !self.said.swap(true, Ordering::SeqCst) {
                    say(&format!("waiting for the store: {e}"));
                }
                !(self.is_ending)()
            }
            _ => {
                if self.said.swap(false, Ordering::SeqCst) {
                    say("the store is back");
                }
                false
            }
        }
    }
}

impl Store for Patient {
    fn submit(&self, op: Op, durability: Durability) -> Ticket {
        let Ok(runtime) = Handle::try_current() else { return self.submit_here(op, durability) };
        let first = self.0.store.submit(op.clone(), durability);
        let (promise, ticket) = Ticket::new();
        let waiting = self.0.clone();
        runtime.spawn(async move {
            let mut told = first.await;
            while waiting.is_to_be_asked_again(&told) {
                tokio::time::sleep(LOOK).await;
                told = waiting.store.submit(op.clone(), durability).await;
            }
            // Nobody waits for the ticket any more.
            let _ = promise.send(told);
        });
        ticket
    }

    fn submit_here(&self, op: Op, durability: Durability) -> Ticket {
        Ticket::ready(self.0.ask(|store| store.submit_here(op.clone(), durability).wait()))
    }

    fn answer(&self, question: &Question) -> Result<Answer, Error> {
        self.0.ask(|store| store.answer(question))
    }
    fn damage(&self, reindex: bool) -> Result<Vec<String>, Error> {
        self.0.ask(|store| store.damage(reindex))
    }
    fn check(&self) -> Result<(), Error> {
        self.0.ask(|store| store.check())
    }
    fn place(&self) -> String {
        self.0.store.place()
    }
    fn within(&self) -> Option<&dyn Store> {
        Some(self.0.store.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use outlast_core::{
        memory::MemoryStore,
        reads::forked::Forked,
        words::{ManualClock, Micros},
    };

    use super::*;

    fn patient(is_ending: bool) -> Patient {
        let store = MemoryStore::new(Arc::new(ManualClock::new(Micros(0))));
        Patient::new(Arc::new(store), move || is_ending)
    }

    /// Store on another machine.
    struct Far(MemoryStore);

    impl Store for Far {
        fn submit(&self, op: Op, durability: Durability) -> Ticket {
            self.0.submit(op, durability)
        }
        fn answer(&self, question: &Question) -> Result<Answer, Error> {
            self.0.answer(question)
        }
        fn place(&self) -> String {
            "far".into()
        }
        fn is_shared(&self) -> bool {
            true
        }
        fn is_remote(&self) -> bool {
            true
        }
    }

    /// Asks a store that fails `times` times with `error`. Returns what was told, and how often it was asked.
    fn ask(patient: &Patient, times: usize, error: Error) -> (Result<(), Error>, usize) {
        let asked = Cell::new(0);
        let told = patient.0.ask(|_| {
            asked.set(asked.get() + 1);
            if asked.get() <= times { Err(error.clone()) } else { Ok(()) }
        });
        (told, asked.get())
    }

    /// Bug: a store in front of one on another machine said that it is on this one.
    /// Cause: each such store listed what it passes on, and none had what was added later.
    #[test]
    fn a_store_in_front_of_another_passes_on_where_that_one_is() {
        let far = || Arc::new(Far(MemoryStore::new(Arc::new(ManualClock::new(Micros(0))))));
        let patient = Patient::new(far(), || false);
        let stores: [&dyn Store; 2] = [&Forked::new(far()), &Forked::new(Arc::new(patient))];
        for store in stores {
            assert_eq!((store.place().as_str(), store.is_shared(), store.is_remote()), ("far", true, true));
        }
        assert!(!self::patient(false).is_remote());
    }

    /// Bug: a supervisor ended with an error when one read of its store failed.
    /// Consequence: a database that restarted ended every run whose agent slept, waited for room, or had just exited.
    /// Cause: each of the supervisor's reads passed its error on.
    #[test]
    fn a_store_that_is_away_is_waited_for_and_a_damaged_one_is_not() {
        let away = || Error::Unavailable { why: "it restarts".into() };
        assert_eq!(ask(&patient(false), 2, away()), (Ok(()), 3));
        let lost = Error::CommitUnknown { why: "cut".into() };
        assert_eq!(ask(&patient(false), 1, lost), (Ok(()), 2));
        for error in
            [Error::Corrupt { what: "a row".into() }, Error::Io { why: "the disk".into() }, Error::Closed]
        {
            assert_eq!(ask(&patient(false), 1, error.clone()), (Err(error), 1));
        }
        assert_eq!(ask(&patient(true), 9, away()), (Err(away()), 1), "a signal ends the wait");
    }
}
