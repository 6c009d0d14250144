//! What a run's earlier attempts recorded of its steps, and which of it this life has used.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outlast_core::{
    digest::Digest,
    id::{RunNo, Seq},
    journal::State,
    payload::Payload,
    store::{Error, Store},
};
use pyo3::{prelude::*, types::PyBytes};

use crate::engine::{Shared, decoded, value};

/// Entries read at once.
const PAGE: usize = 4096;

/// The steps of one iteration of a run, by key: read once, in pages, when the run is opened.
///
/// A key is `name(digest of the arguments)`, with `#n` for the n-th of its equals after the first; or the caller's own.
#[pyclass(frozen, module = "outlast._native")]
pub struct Recorded {
    shared: Arc<Shared>,
    run: RunNo,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// The newest entry of each key.
    by_key: HashMap<String, (Seq, State)>,
    /// Finished steps that this life has not asked for yet, by name, oldest first.
    unused: HashMap<String, BTreeMap<Seq, String>>,
    /// What was recorded, where it is short, until it is asked for.
    values: HashMap<Seq, Payload>,
    /// How many of each base this life has begun, and those that came to nothing.
    begun: HashMap<String, Begun>,
}

#[derive(Default)]
struct Begun {
    next: u64,
    freed: BTreeSet<u64>,
}

impl Recorded {
    pub fn new(shared: Arc<Shared>, run: RunNo) -> Recorded {
        Recorded { shared, run, memory: Mutex::default() }
    }

    /// Reads the steps of `scope`. The one place that reads them.
    pub fn read(&self, store: &dyn Store, scope: &str) -> Result<(), Error> {
        let mut memory = self.memory();
        let mut after = Seq(0);
        loop {
            let page = store.steps(self.run, after, PAGE)?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = last.seq;
            let whole = page.len() == PAGE;
            for (step, recorded) in page {
                if *step.scope == *scope {
                    if let Some(recorded) = recorded.filter(|_| step.state == State::Done) {
                        memory.values.insert(step.seq, recorded);
                    }
                    memory.insert(step.key, step.seq, step.state);
                }
            }
            if !whole {
                return Ok(());
            }
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn insert(&mut self, key: String, seq: Seq, state: State) {
        if state == State::Done
            && let Some(name) = name_of(&key)
        {
            match self.unused.get_mut(name) {
                Some(unused) => drop(unused.insert(seq, key.clone())),
                None => drop(self.unused.insert(name.to_owned(), BTreeMap::from([(seq, key.clone())]))),
            }
        }
        self.by_key.insert(key, (seq, state));
    }

    /// The place among its equals of a step that begins now.
    fn next(&self, base: &str) -> u64 {
        self.begun.get(base).map_or(0, |b| b.freed.first().copied().unwrap_or(b.next))
    }

    fn take(&mut self, base: &str) {
        if let Some(begun) = self.begun.get_mut(base) {
            if begun.freed.pop_first().is_none() {
                begun.next += 1;
            }
        } else {
            self.begun.insert(base.to_owned(), Begun { next: 1, ..Begun::default() });
        }
    }

    fn used(&mut self, key: &str, seq: Seq) {
        if let Some(unused) = name_of(key).and_then(|name| self.unused.get_mut(name)) {
            unused.remove(&seq);
        }
    }
}

/// The name in a key that has one.
fn name_of(key: &str) -> Option<&str> {
    let (name, rest) = key.rsplit_once('(')?;
    rest.contains(')').then_some(name)
}

fn nth(base: &str, n: u64) -> String {
    if n == 0 { base.to_owned() } else { format!("{base}#{n}") }
}

/// A step's key but for its place among equals; `arguments` is any text that is equal for equal ones.
fn base_of(name: &str, arguments: &str) -> String {
    let Digest(bytes) = Digest::of(arguments.as_bytes());
    let first: u64 = bytes.iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    format!("{name}({first:016x})")
}

#[pymethods]
impl Recorded {
    /// The whole way of a step that is recorded: takes its place and gives its recorded value, and its key without
    /// its place among equals.
    ///
    /// None for the value, and nothing taken, where it is not finished.
    fn replay<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        arguments: &str,
    ) -> PyResult<(Option<Bound<'py, PyBytes>>, String)> {
        let base = base_of(name, arguments);
        let (seq, kept) = {
            let mut memory = self.memory();
            let key = nth(&base, memory.next(&base));
            let Some((seq, State::Done)) = memory.by_key.get(&key).copied() else { return Ok((None, base)) };
            memory.take(&base);
            memory.used(&key, seq);
            (seq, memory.values.remove(&seq))
        };
        if let Some(kept) = kept {
            return Ok((Some(PyBytes::new(py, &decoded(&kept, self.run, seq)?)), base));
        }
        let core = self.shared.core()?;
        // A short read of a page in memory: to give the lock away would cost as much.
        let value = value(core.store.as_ref(), self.run, seq)?;
        Ok((Some(PyBytes::new(py, &value)), base))
    }

    /// The key of a step that begins: its base, or the next of its equals.
    fn take(&self, base: &str) -> String {
        let mut memory = self.memory();
        let n = memory.next(base);
        memory.take(base);
        nth(base, n)
    }

    /// The step came to nothing: the next of its equals stands in its place.
    fn give_back(&self, base: &str, key: &str) {
        let n = key.strip_prefix(base).and_then(|rest| rest.strip_prefix('#')).map_or(Ok(0), str::parse);
        if let (Ok(n), Some(begun)) = (n, self.memory().begun.get_mut(base)) {
            begun.freed.insert(n);
        }
    }

    /// The newest entry of `key`, as (seq, state), or None; a finished one counts as used from now on.
    fn find(&self, key: &str) -> Option<(i64, &'static str)> {
        let mut memory = self.memory();
        let (seq, state) = *memory.by_key.get(key)?;
        if state == State::Done {
            memory.used(key, seq);
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

    /// A key without its place among equals: see `replay`.
    #[staticmethod]
    fn base(name: &str, arguments: &str) -> String {
        base_of(name, arguments)
    }
}
