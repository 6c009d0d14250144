//! Pending commit for Python, waited for by a thread or a task: an effect of `outlast.effects`.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake},
};

use outlast_core::{
    engine::{Op, Outcome, Step, StorePart, Turn},
    envelope::Unit,
    journal::{ItemClaim, approval::Answer},
    store::{self, Durability, Store},
};
use outlast_server::work::Hand;
use parking_lot::Mutex;
use pyo3::{IntoPyObjectExt as _, intern, prelude::*, sync::PyOnceLock, types::PyList};
use tokio::runtime::Handle;

use crate::{error::Failure, shared::Core};

/// One operation and its pending commit. Dropping the ticket still submits the operation.
///
/// The operation is submitted once it is known how the caller waits: a thread that blocks runs the store's work itself
/// if no other thread is doing so.
#[pyclass(frozen, module = "outlast._native")]
pub struct Ticket {
    /// `None` once it was submitted.
    asked: Mutex<Option<Asked>>,
    store: Arc<dyn Store>,
    post: Post,
    /// Program in whose name the operation is submitted; `None` if it is no run's.
    hand: Option<Arc<Hand>>,
    /// Whether a thread that waits may be answered ahead of the commit.
    may_be_ahead: bool,
    is_ahead: AtomicBool,
    /// Id of the process that made the ticket. A process forked from it leaves the ticket alone.
    pid: u32,
}

struct Asked {
    /// Parts of a long value, in order. Each is committed before the operation, in its own commit.
    parts: Vec<StorePart>,
    op: Op,
    durability: Durability,
    /// Action that whoever waits runs once the operation is committed; `None` if there is none.
    after: Option<Box<dyn FnOnce() + Send>>,
}

impl Asked {
    async fn submit(self, store: Arc<dyn Store>) -> Result<Outcome, store::Error> {
        for part in self.parts {
            store.submit(part.into(), Durability::Committed).await?;
        }
        let outcome = store.submit(self.op, self.durability).await?;
        self.after.into_iter().for_each(|after| after());
        Ok(outcome)
    }

    /// Submits from a thread that blocks.
    fn submit_here(self, store: &dyn Store) -> Result<Outcome, store::Error> {
        for part in self.parts {
            store.submit_here(part.into(), Durability::Committed).wait()?;
        }
        let outcome = store.submit_here(self.op, self.durability).wait()?;
        self.after.into_iter().for_each(|after| after());
        Ok(outcome)
    }
}

impl Core {
    /// Returns the ticket of an operation, in the name of `hand` if a run is open.
    pub fn ticket(&self, op: impl Into<Op>, durability: Durability, hand: Option<Arc<Hand>>) -> Ticket {
        let asked = Asked { parts: Vec::new(), op: op.into(), durability, after: None };
        Ticket {
            asked: Mutex::new(Some(asked)),
            store: self.store.clone(),
            post: self.post.clone(),
            hand,
            may_be_ahead: false,
            is_ahead: AtomicBool::new(false),
            pid: outlast_store::process::id(),
        }
    }
}

impl Ticket {
    /// Returns the ticket with an action to run once the operation is committed. The action is not run if the
    /// operation fails, or if the ticket is dropped without a wait.
    pub fn and_then(self, after: impl FnOnce() + Send + 'static) -> Ticket {
        if let Some(asked) = &mut *self.asked.lock() {
            asked.after = Some(Box::new(after));
        }
        self
    }

    /// Returns the ticket with parts of a long value that are committed before the operation. If a part fails, its
    /// error is the ticket's answer.
    pub fn behind(self, parts: Vec<StorePart>) -> Ticket {
        if let Some(asked) = &mut *self.asked.lock() {
            asked.parts = parts;
        }
        self
    }

    /// Returns the ticket of an opening that may be answered ahead: a thread that waits is answered from committed data
    /// if the store is idle, and the opening is written with the next commit or within 100 ms.
    pub fn ahead(mut self, may_be_ahead: bool) -> Ticket {
        self.may_be_ahead = may_be_ahead;
        self
    }

    fn take(&self) -> Result<Asked, Failure> {
        let taken = self.asked.lock().take();
        taken.ok_or_else(|| Failure::new("internal", "this ticket was waited for already", None))
    }

    fn answered_ahead(&self, py: Python<'_>, asked: Asked) -> Result<Outcome, store::Error> {
        let submit = |op| self.store.submit_here(op, asked.durability).wait();
        match self.store.is_shared() {
            // A database answers in a round trip.
            true => py.detach(|| self.store.ahead(asked.op).unwrap_or_else(submit)),
            // A file answers in microseconds, so the interpreter's lock is not released.
            false => self.store.ahead(asked.op).unwrap_or_else(|op| py.detach(|| submit(op))),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.pid != outlast_store::process::id() {
            // The other process submits it. A store cannot be closed in this process.
            return std::mem::forget(self.store.clone());
        }
        if let Ok(asked) = self.take() {
            // Submitted in the order in which they must be committed.
            for part in asked.parts {
                drop(self.store.submit(part.into(), Durability::Committed));
            }
            drop(self.store.submit(asked.op, asked.durability));
        }
    }
}

#[pymethods]
impl Ticket {
    /// Blocks until the commit, without the interpreter's lock, and returns the answer. An opening that may be answered
    /// ahead does not wait for the commit.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let asked = self.take()?;
        self.is_ahead.store(self.may_be_ahead, Relaxed);
        let outcome = match self.may_be_ahead {
            true => self.answered_ahead(py, asked),
            false => py.detach(|| asked.submit_here(self.store.as_ref())),
        };
        answer(py, outcome, self.hand.as_deref())
    }

    /// Returns whether the answer may have come ahead of the commit.
    #[getter]
    fn is_ahead(&self) -> bool {
        self.is_ahead.load(Relaxed)
    }

    /// Returns a future of the running event loop that is resolved once the operation is committed.
    fn awaited<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let running = RUNNING_LOOP.import(py, "asyncio", "get_running_loop")?.call0()?;
        let future = running.call_method0(intern!(py, "create_future"))?;
        let letter = Letter { to: future.clone().unbind(), hand: self.hand.clone() };
        let asked = self.take()?;
        if asked.parts.is_empty() && asked.after.is_none() {
            // Submitted at once: no parts come first, and no action follows.
            self.post.when(self.store.submit(asked.op, asked.durability), letter);
            return Ok(future);
        }
        let (store, post) = (self.store.clone(), self.post.clone());
        self.post.runtime().spawn(async move { post.send(letter, asked.submit(store).await) });
        Ok(future)
    }
}

// --- Answers: outcomes of operations as Python values.

/// Converts an operation's outcome to Python values. `hand` keeps what was opened; errors name its run.
///
/// An item becomes a tuple as in `claim_item` and `record_item`, a step `(seq, begun before, done, tries)`, a loop its
/// count, and any other outcome with a number that number.
pub fn answer(
    py: Python<'_>,
    outcome: Result<Outcome, store::Error>,
    hand: Option<&Hand>,
) -> PyResult<Py<PyAny>> {
    if let Some(hand) = hand {
        hand.note(&outcome);
    }
    match outcome.map_err(Failure::from)? {
        Outcome::Begun(Step::Run { opening, begun_before, tries, .. }) => {
            (opening.seq.0, begun_before, false, tries).into_py_any(py)
        }
        Outcome::Begun(Step::InDoubt { seq }) => (seq.0, true, false, -1).into_py_any(py),
        Outcome::Begun(Step::Done { seq }) => (seq.0, true, true, 0).into_py_any(py),
        Outcome::Turned(Turn::Refused(refusal)) => {
            Err(Failure::refused(&refusal, hand.map_or("", |hand| hand.id.as_str())).into())
        }
        Outcome::Recorded(seq) | Outcome::StepResolved(seq) | Outcome::Saved(seq) | Outcome::Reset(seq) => {
            seq.0.into_py_any(py)
        }
        Outcome::ItemClaimed(claim) => claimed(py, claim),
        Outcome::ItemEnded(e) => {
            (e.standing.name(), e.tries, e.spent.cost(), e.spent[Unit::Calls]).into_py_any(py)
        }
        Outcome::Turned(Turn::Counted { loops: number }) | Outcome::Tried(number) => number.into_py_any(py),
        Outcome::ItemSpared(standing) => standing.name().into_py_any(py),
        Outcome::Put(done) => done.commit.into_py_any(py),
        Outcome::ApprovalAsked(answer) => approved(answer).into_py_any(py),
        _ => Ok(py.None()),
    }
}

/// Converts the outcome of claiming an item to a Python tuple.
fn claimed(py: Python<'_>, claim: ItemClaim) -> PyResult<Py<PyAny>> {
    match claim {
        ItemClaim::Run(r) => {
            ("run", r.opening.seq.0, r.tries, r.continued, r.deaths, r.steps.as_ref()).into_py_any(py)
        }
        ItemClaim::Ended { seq, standing } => ("ended", seq.0, standing.name()).into_py_any(py),
        ItemClaim::Held { seq } => ("held", seq.0).into_py_any(py),
        ItemClaim::Suspect { seq, deaths } => ("suspect", seq.0, deaths).into_py_any(py),
        ItemClaim::Changed { seq } => ("changed", seq.0).into_py_any(py),
    }
}

/// Answer to an approval as a Python tuple: id, seq, status, whether an approval was required, reason, decided by,
/// decided at (microseconds since the Unix epoch).
pub type Approved =
    (Option<String>, Option<i64>, &'static str, bool, Option<String>, Option<String>, Option<i64>);

pub fn approved(answer: Answer) -> Approved {
    let (id, said) = (answer.id, answer.decision);
    (
        id.map(|id| id.to_string()),
        id.map(|id| id.seq.0),
        answer.status.name(),
        answer.required,
        said.as_ref().and_then(|s| s.reason.clone()),
        said.as_ref().map(|s| s.by.clone()),
        said.map(|s| s.at.0),
    )
}

// --- Reports commits to event loops: all tickets resolved by one group in one call, with one wake-up per loop.

/// Recipient of a commit's outcome.
pub struct Letter {
    /// Future of an asyncio event loop.
    pub to: Py<PyAny>,
    /// Program in whose name the operation was submitted.
    pub hand: Option<Arc<Hand>>,
}

type Undelivered = (Letter, Result<Outcome, store::Error>);

/// Queue of outcomes for Python, all delivered by the next thread that gets the interpreter's lock. Cheap to clone.
#[derive(Clone)]
pub struct Post {
    runtime: Handle,
    waiting: Arc<Mutex<Vec<Undelivered>>>,
}

impl Post {
    pub fn new(runtime: Handle) -> Post {
        Post { runtime, waiting: Arc::default() }
    }

    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Passes the ticket's outcome to `letter` once the ticket is resolved.
    pub fn when(&self, ticket: store::Ticket, letter: Letter) {
        let awaited = Awaited { post: self.clone(), open: Mutex::new(Some((ticket, letter))) };
        Arc::new(awaited).look();
    }

    /// Passes an outcome to `letter` from a runtime thread, as the store's thread must not wait for the interpreter.
    pub fn send(&self, letter: Letter, outcome: Result<Outcome, store::Error>) {
        let mut waiting = self.waiting.lock();
        waiting.push((letter, outcome));
        if waiting.len() == 1 {
            let post = self.clone();
            self.runtime.spawn(async move { post.deliver() });
        }
    }

    /// Delivers all queued outcomes, including those added while waiting for the interpreter.
    fn deliver(&self) {
        let take = || std::mem::take(&mut *self.waiting.lock());
        // `None`: the interpreter is gone, and with it whoever waited.
        let told = Python::try_attach(|py| tell(py, take()));
        // The loop was closed meanwhile, so no one waits there.
        if let Some(Err(e)) = told {
            tracing::debug!(error = %e, "nobody waits for a commit");
        }
    }
}

/// Ticket that is not resolved yet, with its recipient.
struct Awaited {
    post: Post,
    open: Mutex<Option<(store::Ticket, Letter)>>,
}

impl Awaited {
    fn look(self: Arc<Self>) {
        let waker = self.clone().into();
        let mut open = self.open.lock();
        let Some((ticket, _)) = open.as_mut() else { return };
        if let Poll::Ready(outcome) = Pin::new(ticket).poll(&mut Context::from_waker(&waker))
            && let Some((_, letter)) = open.take()
        {
            self.post.send(letter, outcome);
        }
    }
}

impl Wake for Awaited {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

/// Calls each loop once, with a list of (future, answer, error). An exception from one does not affect the others.
fn tell(py: Python<'_>, letters: Vec<Undelivered>) -> PyResult<()> {
    static RESOLVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let resolve = RESOLVE.import(py, "outlast.waiting", "resolve")?;
    let mut loops: Vec<(Bound<'_, PyAny>, Bound<'_, PyList>)> = Vec::new();
    let mut told = Ok(());
    for (letter, outcome) in letters {
        told = told.and(sort(py, &mut loops, letter, outcome));
    }
    for (its, letters) in loops {
        told = told.and(its.call_method1("call_soon_threadsafe", (resolve, letters)).map(drop));
    }
    told
}

/// Adds a letter to those of its event loop.
fn sort<'py>(
    py: Python<'py>,
    loops: &mut Vec<(Bound<'py, PyAny>, Bound<'py, PyList>)>,
    letter: Letter,
    outcome: Result<Outcome, store::Error>,
) -> PyResult<()> {
    let (value, error) = match answer(py, outcome, letter.hand.as_deref()) {
        Ok(value) => (value, py.None()),
        Err(error) => (py.None(), error.into_value(py).into_any()),
    };
    let to = letter.to.bind(py);
    let its = to.call_method0("get_loop")?;
    if let Some((_, letters)) = loops.iter().find(|(known, _)| known.is(&its)) {
        return letters.append((to, value, error));
    }
    let letters = PyList::new(py, [(to, value, error)])?;
    loops.push((its, letters));
    Ok(())
}
