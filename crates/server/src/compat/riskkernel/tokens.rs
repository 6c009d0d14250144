//! A run's tokens apart, prompts and completions: what its budget counts as one.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use outlast_core::{
    journal::{Entry, Kind, State},
    store::{self, Store},
    words::id::{Micros, RunNo, Seq},
};

/// Entries read at once.
const PAGE: usize = 1000;

/// Runs whose beginning is remembered.
const RUNS: usize = 4096;

/// As the providers counted them. Calls without a usage are in neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub prompt: u64,
    pub completion: u64,
}

/// What runs' closed calls came to, each up to its first call that is not: later looks go on there.
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
    /// All of a run's calls.
    pub fn of(&self, store: &dyn Store, run: RunNo) -> Result<Counted, store::Error> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut upto, mut closed) = known().get(&run).copied().unwrap_or_default();
        let (mut all, mut firm) = (closed, true);
        each(store, run, upto, |e| {
            all.add(e);
            // What is in doubt may still take the truth.
            firm &= e.kind != Kind::Call || !matches!(e.state, State::Open | State::Unknown);
            if firm {
                (upto, closed) = (e.seq, all);
            }
            true
        })?;
        let mut known = known();
        if known.len() >= RUNS {
            known.clear();
        }
        known.insert(run, (upto, closed));
        Ok(all)
    }

    /// Those that were closed by `at`, of the entries before `before`.
    pub fn by(store: &dyn Store, run: RunNo, before: Seq, at: Micros) -> Result<Counted, store::Error> {
        let mut counted = Counted::default();
        each(store, run, Seq(0), |e| {
            if e.closed_at.is_some_and(|closed| closed <= at) {
                counted.add(e);
            }
            e.seq < before
        })?;
        Ok(counted)
    }
}

/// Goes through the entries of a run after `after`, while `go_on`.
fn each(
    store: &dyn Store,
    run: RunNo,
    mut after: Seq,
    mut go_on: impl FnMut(&Entry) -> bool,
) -> Result<(), store::Error> {
    loop {
        let page = store.entries(run, after, PAGE)?;
        for e in &page {
            after = e.seq;
            if !go_on(e) {
                return Ok(());
            }
        }
        if page.len() < PAGE {
            return Ok(());
        }
    }
}
