//! What a run's earlier attempts recorded of its steps: read once, in pages, when the run is opened.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
};

use outlast_core::{
    id::{RunNo, Seq},
    journal::{Kind, State},
    store::{Error, Store},
};
use pyo3::prelude::*;

/// Entries read at once.
const PAGE: usize = 4096;

/// The steps of one iteration of a run, by key.
#[pyclass(frozen, module = "outlast._native")]
pub struct Recorded {
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// The newest entry of each key.
    by_key: HashMap<String, (Seq, State)>,
    /// Finished steps that this life has not asked for yet, by name, oldest first.
    unused: HashMap<String, BTreeMap<Seq, String>>,
}

impl Recorded {
    pub fn empty() -> Recorded {
        Recorded { memory: Mutex::default() }
    }

    /// Reads the steps of `scope`. The one place that reads them: about 3 µs a step.
    pub fn read(store: &dyn Store, run: RunNo, scope: &str) -> Result<Recorded, Error> {
        let mut memory = Memory::default();
        let mut after = Seq(0);
        loop {
            let page = store.entries(run, after, PAGE)?;
            let Some(last) = page.last() else { break };
            after = last.seq;
            let whole = page.len() == PAGE;
            for entry in page {
                if entry.kind == Kind::Step && *entry.scope == *scope {
                    memory.insert(entry.key.unwrap_or_default(), entry.seq, entry.state);
                }
            }
            if !whole {
                break;
            }
        }
        Ok(Recorded { memory: Mutex::new(memory) })
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn insert(&mut self, key: String, seq: Seq, state: State) {
        if state == State::Done
            && let Some(name) = name_of(&key)
        {
            self.unused.entry(name.to_owned()).or_default().insert(seq, key.clone());
        }
        self.by_key.insert(key, (seq, state));
    }
}

/// The name in a key made of name, digest of the arguments and occurrence: `fetch(0123456789abcdef)#2`.
fn name_of(key: &str) -> Option<&str> {
    let (name, rest) = key.rsplit_once('(')?;
    rest.contains(')').then_some(name)
}

#[pymethods]
impl Recorded {
    /// The newest entry of `key`, as (seq, state), or None; a finished one counts as used from now on.
    fn find(&self, key: &str) -> Option<(i64, &'static str)> {
        let mut memory = self.memory();
        let (seq, state) = *memory.by_key.get(key)?;
        if state == State::Done
            && let Some(unused) = name_of(key).and_then(|name| memory.unused.get_mut(name))
        {
            unused.remove(&seq);
        }
        Some((seq.0, state.name()))
    }

    /// The oldest finished step of this name that was not asked for, as (seq, key), and how many there are.
    fn unused(&self, name: &str) -> Option<(i64, String, usize)> {
        let memory = self.memory();
        let unused = memory.unused.get(name)?;
        let (seq, key) = unused.first_key_value()?;
        Some((seq.0, key.clone(), unused.len()))
    }

    /// How many keys there are.
    fn __len__(&self) -> usize {
        self.memory().by_key.len()
    }

    /// Notes what this life has recorded itself.
    fn note(&self, key: String, seq: i64, done: bool) {
        let state = if done { State::Done } else { State::Failed };
        self.memory().by_key.insert(key, (Seq(seq), state));
    }
}
