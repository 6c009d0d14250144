//! What a run's earlier attempts recorded of its steps, and which of it this life has used.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outlast_core::{
    journal::{State, payload::Payload},
    store::{Error, Store},
    words::{
        digest::Digest,
        id::{RunNo, Seq},
    },
};
use pyo3::prelude::*;

use crate::{
    engine::{Shared, decoded, value},
    strand::{self, Strands},
};

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
    /// Oldest first.
    steps: Vec<Kept>,
    /// The newest of each key, by its place in `steps`.
    by_key: HashMap<Arc<str>, u32>,
    /// Names by number, and the finished steps of each that this life has not asked for yet.
    names: HashMap<Box<str>, u32>,
    unused: Vec<Unused>,
    /// How many of each base this life has begun, and those that came to nothing.
    begun: HashMap<String, Begun>,
    /// Of those before this place none counts as unused: the program went on from behind them.
    passed: usize,
    strands: Strands,
}

struct Kept {
    key: Arc<str>,
    seq: Seq,
    state: State,
    /// Finished, of a step that has a name, and not asked for yet.
    unused: Option<u32>,
    /// What was recorded, where it is short, until it is asked for.
    value: Option<Payload>,
}

/// Of one name.
#[derive(Default)]
struct Unused {
    count: usize,
    /// None of this name is unused before this place.
    from: usize,
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
                    let recorded = recorded.filter(|_| step.state == State::Done);
                    memory.insert(step.key, step.seq, step.state, recorded);
                }
            }
            if !whole {
                return Ok(());
            }
        }
    }

    /// The recorded value of a step that is finished, whose place it takes; else its key without its place among equals.
    pub fn replay(&self, py: Python<'_>, base: &str) -> PyResult<Option<Vec<u8>>> {
        let here = strand::here(py)?;
        let (seq, kept) = {
            let mut memory = self.memory();
            memory.strands.note(here);
            let found = match memory.next(base) {
                0 => memory.at(base),
                n => memory.at(&nth(base, n)),
            };
            let Some(at) = found.filter(|at| memory.steps[*at].state == State::Done) else { return Ok(None) };
            memory.take(base);
            memory.used(at);
            (memory.steps[at].seq, memory.steps[at].value.take())
        };
        self.shared.is_own()?;
        if let Some(kept) = kept {
            return Ok(Some(decoded(&kept, self.run, seq)?));
        }
        let core = self.shared.core()?;
        // A short read of a page in memory: to give the lock away would cost as much.
        Ok(Some(value(core.store.as_ref(), self.run, seq)?))
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn insert(&mut self, key: String, seq: Seq, state: State, value: Option<Payload>) {
        let unused = name_of(&key).filter(|_| state == State::Done).map(|name| self.name(name));
        if let Some(name) = unused {
            self.unused[name as usize].count += 1;
        }
        self.push(Kept { key: key.into(), seq, state, unused, value });
    }

    fn push(&mut self, step: Kept) {
        // 4 billion steps are not held in memory.
        let at = self.steps.len() as u32;
        self.by_key.insert(step.key.clone(), at);
        self.steps.push(step);
    }

    /// The number of a name.
    fn name(&mut self, name: &str) -> u32 {
        if let Some(no) = self.names.get(name) {
            return *no;
        }
        let no = self.unused.len() as u32;
        self.names.insert(name.into(), no);
        self.unused.push(Unused::default());
        no
    }

    /// How many finished steps of this name were not asked for.
    fn count(&self, name: &str) -> usize {
        self.names.get(name).map_or(0, |no| self.unused[*no as usize].count)
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

    /// Where the newest of a key is.
    fn at(&self, key: &str) -> Option<usize> {
        self.by_key.get(key).map(|at| *at as usize)
    }

    fn used(&mut self, at: usize) {
        if let Some(name) = self.steps[at].unused.take() {
            self.unused[name as usize].count -= 1;
        }
    }

    /// The oldest of a name that was not asked for. What was once passed over is never looked at again.
    fn oldest_unused(&mut self, name: &str) -> Option<&Kept> {
        let no = *self.names.get(name)?;
        let unused = &mut self.unused[no as usize];
        let rest = self.steps.iter().skip(unused.from);
        unused.from += rest.take_while(|step| step.unused != Some(no)).count();
        self.steps.get(unused.from)
    }
}

/// The name in a key that `base_of` made; a caller's own key has none.
fn name_of(key: &str) -> Option<&str> {
    let (name, rest) = key.rsplit_once('(')?;
    let (digest, _) = rest.split_once(')')?;
    (digest.len() == 16 && digest.bytes().all(|b| b.is_ascii_hexdigit())).then_some(name)
}

fn nth(base: &str, n: u64) -> String {
    if n == 0 { base.to_owned() } else { format!("{base}#{n}") }
}

/// A step's key but for its place among equals; `arguments` is any text that is equal for equal ones.
pub fn base_of(name: &str, arguments: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let Digest(bytes) = Digest::of(arguments.as_bytes());
    let mut base = String::with_capacity(name.len() + 18);
    base.push_str(name);
    base.push('(');
    for byte in bytes.iter().take(8) {
        base.push(char::from(HEX[usize::from(byte >> 4)]));
        base.push(char::from(HEX[usize::from(byte & 15)]));
    }
    base.push(')');
    base
}

#[pymethods]
impl Recorded {
    /// The key of a usual step that begins. None, and nothing taken, where it has to be looked at closely: it is finished,
    /// or finished ones of its name are there instead.
    pub fn begin(&self, py: Python<'_>, base: &str) -> PyResult<Option<String>> {
        let here = strand::here(py)?;
        let mut memory = self.memory();
        memory.strands.note(here);
        let key = nth(base, memory.next(base));
        let usual = match memory.at(&key) {
            Some(at) => memory.steps[at].state != State::Done,
            // Where several strands do steps, one may well be ahead of what another has yet to replay.
            None => !memory.strands.is_one() || name_of(base).is_none_or(|name| memory.count(name) == 0),
        };
        if usual {
            memory.take(base);
        }
        Ok(usual.then_some(key))
    }

    /// The key of a step that begins: its base, or the next of its equals.
    fn take(&self, py: Python<'_>, base: &str) -> PyResult<String> {
        let here = strand::here(py)?;
        let mut memory = self.memory();
        memory.strands.note(here);
        let n = memory.next(base);
        memory.take(base);
        Ok(nth(base, n))
    }

    /// The step came to nothing: the next of its equals stands in its place. `key` is what it took.
    fn give_back(&self, key: &str) {
        // A base ends in a bracket; what is behind it is the place.
        let (base, place) = key.split_at(key.rfind(')').map_or(key.len(), |at| at + 1));
        let n = place.strip_prefix('#').map_or(Ok(0), str::parse);
        if let (Ok(n), Some(begun)) = (n, self.memory().begun.get_mut(base)) {
            begun.freed.insert(n);
        }
    }

    /// A step of a key of its own begins: which strand it comes from is noted.
    fn note_strand(&self, py: Python<'_>) -> PyResult<()> {
        let here = strand::here(py)?;
        self.memory().strands.note(here);
        Ok(())
    }

    /// Whether one thread or task did all steps so far, so that their order is no matter of timing.
    #[getter]
    fn is_sequential(&self) -> bool {
        self.memory().strands.is_one()
    }

    /// From now on the order of steps counts for nothing.
    fn be_concurrent(&self) {
        self.memory().strands.be_several();
    }

    /// The newest entry of `key`, as (seq, state), or None; a finished one counts as used from now on.
    fn find(&self, key: &str) -> Option<(i64, &'static str)> {
        let mut memory = self.memory();
        let at = memory.at(key)?;
        if memory.steps[at].state == State::Done {
            memory.used(at);
        }
        let step = &memory.steps[at];
        Some((step.seq.0, step.state.name()))
    }

    /// The oldest finished step of this name that was not asked for, as (seq, key), and how many there are.
    fn unused(&self, name: &str) -> Option<(i64, String, usize)> {
        let mut memory = self.memory();
        let count = memory.count(name);
        let step = memory.oldest_unused(name)?;
        Some((step.seq.0, step.key.to_string(), count))
    }

    /// The program goes on from what it saved at `seq`: it need not ask for what it did before.
    fn pass_over(&self, seq: i64) {
        let mut memory = self.memory();
        while memory.steps.get(memory.passed).is_some_and(|step| step.seq.0 < seq) {
            let at = memory.passed;
            memory.used(at);
            memory.passed += 1;
        }
    }

    /// How many keys there are.
    fn __len__(&self) -> usize {
        self.memory().by_key.len()
    }

    /// Notes what this life has recorded itself.
    fn note(&self, key: String, seq: i64, done: bool) {
        let state = if done { State::Done } else { State::Failed };
        self.memory().push(Kept { key: key.into(), seq: Seq(seq), state, unused: None, value: None });
    }

    /// A key without its place among equals; `arguments` is any text that is equal for equal ones.
    #[staticmethod]
    fn base(name: &str, arguments: &str) -> String {
        base_of(name, arguments)
    }
}
