//! Steps recorded by a run's earlier attempts, and which of them this attempt has already replayed.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use outlast_core::{
    journal::{Payload, State},
    store::{Error, Store},
    words::{Digest, RunNo, Seq},
};
use parking_lot::Mutex;
use pyo3::{prelude::*, sync::PyOnceLock};

use crate::{
    shared::Shared,
    values::{decoded, value},
};

/// Number of entries read at once.
const PAGE: usize = 4096;

/// Steps of one iteration of a run, by key, read once in pages when the run is opened.
///
/// A key is `name(digest of the arguments)`, with `#n` for the n-th repetition of equal calls; or a key that the caller
/// gave.
#[pyclass(frozen, module = "outlast._native")]
pub struct Recorded {
    shared: Arc<Shared>,
    run: RunNo,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// Recorded steps in journal order, oldest first.
    steps: Vec<Kept>,
    /// Index in `steps` of the newest step of each key.
    by_key: HashMap<Arc<str>, u32>,
    /// Number of each name: its index in `unused`, which counts the finished steps not asked for yet.
    names: HashMap<Box<str>, u32>,
    unused: Vec<Unused>,
    /// Steps that this attempt has begun, by base key, with the repetition numbers that were given back.
    begun: HashMap<String, Begun>,
    /// Index before which no step counts as unused, as the program resumed from a later checkpoint.
    passed: usize,
    strands: Strands,
}

struct Kept {
    key: Arc<str>,
    seq: Seq,
    state: State,
    /// Number of the step's name if the step is finished and was not asked for yet; `None` otherwise.
    unused: Option<u32>,
    /// Recorded value if it is short and was not asked for yet; `None` otherwise.
    value: Option<Payload>,
}

/// Finished steps of one name that were not asked for yet.
#[derive(Default)]
struct Unused {
    count: usize,
    /// Index in `steps` before which no step of this name is unused.
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

    /// Reads the steps of the iteration `scope` from the store into memory. Call it once, before any look-up.
    pub fn read(&self, store: &dyn Store, scope: &str) -> Result<(), Error> {
        let mut memory = self.memory.lock();
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

    /// Returns the recorded value of the next step named `base`, if that step is finished, and counts it as replayed;
    /// None otherwise.
    pub fn replay(&self, py: Python<'_>, base: &str) -> PyResult<Option<Vec<u8>>> {
        let here = here(py)?;
        let (seq, kept) = {
            let mut memory = self.memory.lock();
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
        // Releasing the interpreter's lock would cost as much as this short read of a cached page.
        Ok(Some(value(core.store.as_ref(), self.run, seq)?))
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
        // More than 4 billion steps would not fit in memory.
        let at = self.steps.len() as u32;
        self.by_key.insert(step.key.clone(), at);
        self.steps.push(step);
    }

    /// Returns the number of a step's name, assigning one to a new name.
    fn name(&mut self, name: &str) -> u32 {
        if let Some(no) = self.names.get(name) {
            return *no;
        }
        let no = self.unused.len() as u32;
        self.names.insert(name.into(), no);
        self.unused.push(Unused::default());
        no
    }

    /// Returns the number of finished steps of this name that were not asked for.
    fn count(&self, name: &str) -> usize {
        self.names.get(name).map_or(0, |no| self.unused[*no as usize].count)
    }

    /// Returns the repetition number, among steps with equal keys, of a step that begins now.
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

    /// Returns the index in `steps` of the newest step with this key; `None` if there is none.
    fn at(&self, key: &str) -> Option<usize> {
        self.by_key.get(key).map(|at| *at as usize)
    }

    fn used(&mut self, at: usize) {
        if let Some(name) = self.steps[at].unused.take() {
            self.unused[name as usize].count -= 1;
        }
    }

    /// Returns the oldest step of a name that was not asked for. A step once skipped is never looked at again.
    fn oldest_unused(&mut self, name: &str) -> Option<&Kept> {
        let no = *self.names.get(name)?;
        let unused = &mut self.unused[no as usize];
        let rest = self.steps.iter().skip(unused.from);
        unused.from += rest.take_while(|step| step.unused != Some(no)).count();
        self.steps.get(unused.from)
    }
}

/// Returns the name in a key made by `base_of`, None for a caller's own key.
fn name_of(key: &str) -> Option<&str> {
    let (name, rest) = key.rsplit_once('(')?;
    let (digest, _) = rest.split_once(')')?;
    (digest.len() == 16 && digest.bytes().all(|b| b.is_ascii_hexdigit())).then_some(name)
}

fn nth(base: &str, n: u64) -> String {
    if n == 0 { base.to_owned() } else { format!("{base}#{n}") }
}

/// Returns a step's key without its repetition number. `arguments` is any text that is the same for equal arguments.
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
    /// Reserves and returns the key of the next step named `base`. Returns None and reserves nothing if the step may be
    /// served from the journal: it is finished, or it is not recorded while later steps of that name are. The caller
    /// then decides, and calls `take` to reserve the key.
    pub fn begin(&self, py: Python<'_>, base: &str) -> PyResult<Option<String>> {
        let here = here(py)?;
        let mut memory = self.memory.lock();
        memory.strands.note(here);
        let key = nth(base, memory.next(base));
        let usual = match memory.at(&key) {
            Some(at) => memory.steps[at].state != State::Done,
            // With several strands, one may well be ahead of steps that another has yet to replay.
            None => !memory.strands.is_one() || name_of(base).is_none_or(|name| memory.count(name) == 0),
        };
        if usual {
            memory.take(base);
        }
        Ok(usual.then_some(key))
    }

    /// Takes and returns the key of a step that begins: its base, or the next repetition of it.
    fn take(&self, py: Python<'_>, base: &str) -> PyResult<String> {
        let here = here(py)?;
        let mut memory = self.memory.lock();
        memory.strands.note(here);
        let n = memory.next(base);
        memory.take(base);
        Ok(nth(base, n))
    }

    /// Gives `key` back, as its step came to nothing: the next step with an equal key takes its place.
    fn give_back(&self, key: &str) {
        // A base ends in a bracket, followed by the repetition number.
        let (base, place) = key.split_at(key.rfind(')').map_or(key.len(), |at| at + 1));
        let n = place.strip_prefix('#').map_or(Ok(0), str::parse);
        if let (Ok(n), Some(begun)) = (n, self.memory.lock().begun.get_mut(base)) {
            begun.freed.insert(n);
        }
    }

    /// Records the strand from which a step with the caller's own key is called.
    fn note_strand(&self, py: Python<'_>) -> PyResult<()> {
        let here = here(py)?;
        self.memory.lock().strands.note(here);
        Ok(())
    }

    /// Returns whether one thread or task did all steps so far, so that their order does not depend on timing.
    #[getter]
    fn is_sequential(&self) -> bool {
        self.memory.lock().strands.is_one()
    }

    /// Marks the order of steps as dependent on timing from now on.
    fn be_concurrent(&self) {
        self.memory.lock().strands.be_several();
    }

    /// Returns the newest entry of `key` as (seq, state), or None. A finished one counts as used from now on.
    fn find(&self, key: &str) -> Option<(i64, &'static str)> {
        let mut memory = self.memory.lock();
        let at = memory.at(key)?;
        if memory.steps[at].state == State::Done {
            memory.used(at);
        }
        let step = &memory.steps[at];
        Some((step.seq.0, step.state.name()))
    }

    /// Returns the oldest finished step of this name that was not asked for, as (seq, key), and how many there are.
    fn unused(&self, name: &str) -> Option<(i64, String, usize)> {
        let mut memory = self.memory.lock();
        let count = memory.count(name);
        let step = memory.oldest_unused(name)?;
        Some((step.seq.0, step.key.to_string(), count))
    }

    /// Marks all steps before `seq` as used: the program resumes from what it saved there.
    fn pass_over(&self, seq: i64) {
        let mut memory = self.memory.lock();
        while memory.steps.get(memory.passed).is_some_and(|step| step.seq.0 < seq) {
            let at = memory.passed;
            memory.used(at);
            memory.passed += 1;
        }
    }

    /// Returns the number of different step keys.
    fn __len__(&self) -> usize {
        self.memory.lock().by_key.len()
    }

    /// Adds a step that this attempt has recorded itself.
    fn note(&self, key: String, seq: i64, done: bool) {
        let state = if done { State::Done } else { State::Failed };
        self.memory.lock().push(Kept { key: key.into(), seq: Seq(seq), state, unused: None, value: None });
    }

    /// Returns a key without its repetition number. `arguments` is any text that is equal for equal arguments.
    #[staticmethod]
    fn base(name: &str, arguments: &str) -> String {
        base_of(name, arguments)
    }
}

// --- Threads and tasks that steps come from. With more than one, the order of steps depends on timing.

/// Thread, and the current task of its running event loop (0 if there is none), from which a step is called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Strand {
    thread: usize,
    task: usize,
}

/// Returns the strand of the calling code: its thread and task.
pub fn here(py: Python<'_>) -> PyResult<Strand> {
    static RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static CURRENT_TASK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    thread_local!(static HERE: u8 = const { 0 });
    let thread = HERE.with(|here| std::ptr::from_ref(here) as usize);
    let running = RUNNING_LOOP.import(py, "asyncio", "_get_running_loop")?.call0()?;
    if running.is_none() {
        return Ok(Strand { thread, task: 0 });
    }
    let task = CURRENT_TASK.import(py, "asyncio", "current_task")?.call1((running,))?;
    Ok(Strand { thread, task: task.as_ptr() as usize })
}

/// Threads and tasks (strands) from which the steps of a run were called so far.
#[derive(Default)]
pub struct Strands {
    first: Option<Strand>,
    several: bool,
}

impl Strands {
    pub fn note(&mut self, strand: Strand) {
        self.several |= *self.first.get_or_insert(strand) != strand;
    }

    /// Returns whether all steps so far were called from one strand.
    pub fn is_one(&self) -> bool {
        !self.several
    }

    pub fn be_several(&mut self) {
        self.several = true;
    }
}
