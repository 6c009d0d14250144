//! Tokens of a run, split into prompt and completion. Its budget counts only the sum.

use std::collections::HashMap;

use outlast_core::{
    journal::{Entry, Kind, State},
    reads::entries,
    store::{self, Store},
    words::{Micros, RunNo, Seq},
};
use parking_lot::Mutex;

/// Number of runs in the cache, at which it is emptied.
const RUNS: usize = 4096;

/// Prompt and completion tokens as the providers reported them. Calls without a usage are in neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub prompt: u64,
    pub completion: u64,
}

/// Cache by run: the tokens up to the first call that is still open or in doubt, from which the next read continues.
#[derive(Default)]
pub struct Tokens(Mutex<HashMap<RunNo, (Seq, Counted)>>);

impl Counted {
    fn add(&mut self, e: &Entry) {
        if let Some(usage) = e.call.as_ref().and_then(|call| call.usage) {
            self.prompt = self.prompt.saturating_add(usage.input_total());
            self.completion = self.completion.saturating_add(usage.output);
        }
    }
}

impl Tokens {
    /// Returns the tokens of all of a run's calls. Reads only the entries that are not in the cache.
    pub fn of(&self, store: &dyn Store, run: RunNo) -> Result<Counted, store::Error> {
        let known = || self.0.lock();
        let (mut upto, mut closed) = known().get(&run).copied().unwrap_or_default();
        let (mut all, mut firm) = (closed, true);
        for e in entries::each_after(store, run, upto) {
            let e = e?;
            all.add(&e);
            // A call in doubt may still get its true usage.
            firm &= e.kind != Kind::Call || !matches!(e.state, State::Open | State::Unknown);
            if firm {
                (upto, closed) = (e.seq, all);
            }
        }
        let mut known = known();
        if known.len() >= RUNS {
            known.clear();
        }
        known.insert(run, (upto, closed));
        Ok(all)
    }

    /// Returns the tokens of a run's calls that were closed by the time `at`, among the entries up to `before`.
    pub fn by(store: &dyn Store, run: RunNo, before: Seq, at: Micros) -> Result<Counted, store::Error> {
        let mut counted = Counted::default();
        for e in entries::each(store, run) {
            let e = e?;
            if e.closed_at.is_some_and(|closed| closed <= at) {
                counted.add(&e);
            }
            if e.seq >= before {
                break;
            }
        }
        Ok(counted)
    }
}
