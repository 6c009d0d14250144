//! Resume tax of a run, as `show`, `spend`, a digest and a run's end tell it.

use std::ops::Range;

use outlast_core::{
    reads::entries,
    run::Attempt,
    store::{RunView, Store},
    words::Micros,
};

use crate::{
    program::error::Result,
    render::amount::{some, usd},
    settings::prices,
};

pub use outlast_server::api::read::resume_tax::{Restarts, Resumption, Tax};

/// Finds the conversations that later attempts of a run went on with.
///
/// Errors: those of the store. Returns none for a run that does not record requests.
pub fn resumptions(store: &dyn Store, view: &RunView, attempts: &[Attempt]) -> Result<Vec<Resumption>> {
    if attempts.len() < 2 {
        return Ok(Vec::new());
    }
    let mut restarts = Restarts::of(attempts.iter().map(|attempt| attempt.no));
    for entry in entries::each(store, view.run.no) {
        restarts.add(&entry?);
    }
    of_restarts(store, view, &restarts)
}

/// Returns the conversations that later attempts of a run went on with, from the calls around its restarts.
///
/// Errors: those of the store.
pub fn of_restarts(store: &dyn Store, view: &RunView, restarts: &Restarts) -> Result<Vec<Resumption>> {
    if restarts.is_empty() {
        return Ok(Vec::new());
    }
    Ok(restarts.resumptions(store, view.run.no, &prices::of_view(view)?)?)
}

/// Returns what the attempts of a run that began `within` a time bought again. Errors: those of the store.
pub fn tax_within(store: &dyn Store, view: &RunView, within: &Range<Micros>) -> Result<Tax> {
    let attempts = store.attempts(view.run.no)?;
    // What began in another time needs none of the run's entries.
    if !attempts.iter().any(|attempt| within.contains(&attempt.started_at)) {
        return Ok(Tax::default());
    }
    let mut all = resumptions(store, view, &attempts)?;
    let began = |no| attempts.iter().find(|attempt| attempt.no == no).map(|attempt| attempt.started_at);
    all.retain(|one| began(one.attempt).is_some_and(|at| within.contains(&at)));
    Ok(Tax::of(&all))
}

/// Returns the line about the resume tax for `outlast show`; `None` if no token was paid for again.
pub fn line(tax: &Tax) -> Option<String> {
    let (tokens, restarts) = (some(tax.tokens, "token"), some(tax.restarts, "restart"));
    let cost = usd(tax.cost_nano_usd);
    (tax.tokens > 0).then(|| format!("re-bought {cost} usd, {tokens} that the cache had, over {restarts}"))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use outlast_core::{
        engine::{Claim, Claimed, EndAttempt, Op, Register, Start, run::end_attempt::Then},
        memory::MemoryStore,
        run::{Exit, Identity},
        store::{Answer, Ask as _, Durability, Error, Question, Ticket},
        words::{ManualClock, RunId, Slot},
    };

    use super::*;

    /// Store that counts the pages of entries that are read.
    struct Counting(MemoryStore, AtomicUsize);

    impl Store for Counting {
        fn submit(&self, op: Op, durability: Durability) -> Ticket {
            self.0.submit(op, durability)
        }

        fn answer(&self, question: &Question) -> Result<Answer, Error> {
            self.1.fetch_add(usize::from(matches!(question, Question::Entries { .. })), Relaxed);
            self.0.answer(question)
        }

        fn place(&self) -> String {
            self.0.place()
        }
    }

    /// Bug: a digest of one day read all entries of each run that was ever restarted.
    #[test]
    fn a_time_in_which_no_attempt_began_needs_no_entries() {
        let began = Micros(1_700_000_000_000_000);
        let store = MemoryStore::new(Arc::new(ManualClock::new(began)));
        let store = Counting(store, AtomicUsize::default());
        let identity = Identity::default();
        let instance = store.run_verb(Register { identity }, Durability::Synced).unwrap();
        let start = Start::new(RunId::new("r").unwrap());
        let run = store.run_verb(start, Durability::Synced).unwrap().run;
        for then in [Then::Restart, Then::Complete] {
            let claim =
                Claim { run, slot: Slot::DRIVER, instance, label: None, fresh: false, restart: false };
            let Claimed::Attempt { attempt, .. } = store.run_verb(claim, Durability::Synced).unwrap() else {
                panic!("it was refused")
            };
            let exit = Exit { code: Some(0), ..Exit::default() };
            let end = EndAttempt { run, attempt, instance, exit, active_ms: 0, then };
            store.run_verb(end, Durability::Synced).unwrap();
        }
        let view = store.run(run).unwrap().unwrap();
        let pages = |within: Range<Micros>| {
            let before = store.1.load(Relaxed);
            assert_eq!(tax_within(&store, &view, &within).unwrap(), Tax::default());
            store.1.load(Relaxed) - before
        };
        assert_eq!(pages(Micros(0)..began), 0);
        assert!(pages(began..Micros(i64::MAX)) > 0);
    }
}
