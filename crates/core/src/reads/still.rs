//! The time at which a run came to stand still: the end of its last life.

use crate::{
    run::{Run, Status},
    store::{self, Store},
    words::Micros,
};

/// Returns the end of the run's last attempt, if the run is over or stands still; `None` while it goes on, or will by
/// itself.
///
/// A run that is cancelled long after its last attempt stood still since that. A completed run's end is its own.
pub fn since(store: &dyn Store, run: &Run) -> Result<Option<Micros>, store::Error> {
    match run.status {
        Status::Running | Status::Waiting | Status::Sleeping => Ok(None),
        Status::Completed => Ok(run.ended_at),
        Status::Interrupted | Status::Halted | Status::Failed | Status::Cancelled => {
            let attempts = store.attempts(run.no)?;
            let ends: Option<Vec<Micros>> = attempts.iter().map(|a| a.ended_at).collect();
            // A halted run's agent lives on until it is stopped.
            Ok(ends.map_or(run.ended_at, |ends| ends.into_iter().max().or(run.ended_at)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        engine::{
            Tell, Word,
            tests::bench::{Bench, usd},
        },
        memory::MemoryStore,
        run::Policy,
        store::{Ask as _, Durability},
        words::ManualClock,
    };

    #[test]
    fn a_run_stands_still_since_its_last_life_ended_whatever_a_person_did_later() {
        let clock = Arc::new(ManualClock::new(Micros(1)));
        let b = Bench { store: MemoryStore::new(clock.clone()) };
        let run = b.start("r", usd(5), None, Policy::default());
        let told = || since(&b.store, &b.store.run(run).unwrap().unwrap().run).unwrap();
        let instance = b.register();
        b.claim(run, instance).unwrap().unwrap();
        assert_eq!(told(), None);
        b.die(instance);
        let end = b.store.attempts(run).unwrap()[0].ended_at;
        assert!(end.is_some() && told() == end);
        clock.advance_ms(60_000);
        let cancel = Tell { run, word: Word::Cancel { reason: None } };
        b.store.ask(cancel, Durability::Synced).wait().unwrap();
        assert_eq!(told(), end);
    }

    #[test]
    fn a_run_that_never_lived_ends_when_it_is_cancelled() {
        let b = Bench::new();
        let run = b.start("r", usd(5), None, Policy::default());
        let cancel = Tell { run, word: Word::Cancel { reason: None } };
        b.store.ask(cancel, Durability::Synced).wait().unwrap();
        let row = b.store.run(run).unwrap().unwrap().run;
        assert_eq!(since(&b.store, &row).unwrap(), row.ended_at);
    }
}
