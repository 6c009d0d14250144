//! A commit on its way, for Python: waited for, or told to a callback.

use std::sync::{Arc, Mutex, PoisonError};

use outlast_core::{
    engine::{
        call::keep::Keep,
        op::{Op, Outcome},
        step::{begin_step::Step, count_loop::Turn},
    },
    envelope::unit::Unit,
    store::{self, Durability, Store},
};
use pyo3::prelude::*;

use crate::{
    approval,
    error::Failure,
    item,
    post::{Letter, Post},
};

/// One operation whose commit has not been heard of yet. It happens also when nobody waits.
///
/// It is submitted when it is known how it is waited for: a thread that blocks does the store's work itself
/// where nobody else is at work.
#[pyclass(frozen, module = "outlast._native")]
pub struct Ticket {
    asked: Mutex<Option<(Op, Durability)>>,
    /// Parts of a long value, in order: committed before it, each in a commit of its own.
    parts: Mutex<Vec<Keep>>,
    store: Arc<dyn Store>,
    post: Post,
    /// For the hints of refusals.
    run: String,
    /// What else is done once it is committed.
    after: Mutex<Option<After>>,
    /// Whose it is: a process forked from that one leaves it alone.
    pid: u32,
}

type After = Box<dyn FnOnce() + Send>;

impl Ticket {
    pub fn new(store: Arc<dyn Store>, op: Op, durability: Durability, post: Post, run: &str) -> Ticket {
        Ticket {
            asked: Mutex::new(Some((op, durability))),
            parts: Mutex::default(),
            store,
            post,
            run: run.to_owned(),
            after: Mutex::default(),
            pid: outlast_store::process::id(),
        }
    }

    /// The same, with something to do for whoever waits once it is committed.
    pub fn and_then(self, after: impl FnOnce() + Send + 'static) -> Ticket {
        *self.after.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(after));
        self
    }

    fn after(&self) -> After {
        let after = self.after.lock().unwrap_or_else(PoisonError::into_inner).take();
        after.unwrap_or_else(|| Box::new(|| {}))
    }

    /// The same, when `parts` are committed. One that cannot be is the answer.
    pub fn behind(self, parts: Vec<Keep>) -> Ticket {
        *self.parts.lock().unwrap_or_else(PoisonError::into_inner) = parts;
        self
    }

    fn parts(&self) -> Vec<Keep> {
        std::mem::take(&mut *self.parts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn take(&self) -> Result<(Op, Durability), Failure> {
        let taken = self.asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.ok_or_else(|| Failure::new("internal", "this ticket was waited for already", None))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.pid != outlast_store::process::id() {
            // The other process submits it. A store cannot be closed in this one.
            return std::mem::forget(self.store.clone());
        }
        if let Ok((op, durability)) = self.take() {
            // In this order they are committed.
            for part in self.parts() {
                drop(self.store.submit(part.into(), Durability::Committed));
            }
            drop(self.store.submit(op, durability));
        }
    }
}

#[pymethods]
impl Ticket {
    /// Blocks until the commit, without the interpreter's lock, and gives its answer.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (op, durability) = self.take()?;
        let after = self.after();
        let outcome = py.detach(|| {
            for part in self.parts() {
                self.store.submit_here(part.into(), Durability::Committed).wait()?;
            }
            self.store.submit_here(op, durability).wait().inspect(|_| after())
        });
        answer(py, outcome, &self.run)
    }

    /// Blocks like `wait`, but not for a commit where nobody else is at work: the opening is answered from what
    /// is committed, and written with the next commit, or within 100 ms.
    fn wait_ahead(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (op, durability) = self.take()?;
        // Microseconds, or not at all: the interpreter's lock is not worth giving away.
        let outcome = match self.store.ahead(op) {
            Ok(outcome) => outcome,
            Err(op) => py.detach(|| self.store.submit_here(op, durability).wait()),
        };
        answer(py, outcome, &self.run)
    }

    /// Resolves a future of a running event loop when it is committed. Or calls `done(answer, error)` from another
    /// thread; one of the two is None.
    fn then(&self, done: Bound<'_, PyAny>) -> PyResult<()> {
        let (op, durability) = self.take()?;
        let letter = Letter::to(&done, &self.run);
        let parts = self.parts();
        if parts.is_empty() && self.after.lock().is_ok_and(|after| after.is_none()) {
            // At once: nothing has to be there before, or to be done behind it.
            self.post.when(self.store.submit(op, durability), letter);
            return Ok(());
        }
        let (store, post, after) = (self.store.clone(), self.post.clone(), self.after());
        self.post.runtime().spawn(async move {
            let outcome = behind(store, parts, op, durability).await;
            post.send(letter, outcome.inspect(|_| after()));
        });
        Ok(())
    }
}

async fn behind(
    store: Arc<dyn Store>,
    parts: Vec<Keep>,
    op: Op,
    durability: Durability,
) -> Result<Outcome, store::Error> {
    for part in parts {
        store.submit(part.into(), Durability::Committed).await?;
    }
    store.submit(op, durability).await
}

/// What an operation answered, as Python values:
/// an item as `Seat.claim_item` and `record_item` say; a step `(seq, begun before, done, tries)`; a loop its count; anything else with a number that number.
pub fn answer(py: Python<'_>, outcome: Result<Outcome, store::Error>, run: &str) -> PyResult<Py<PyAny>> {
    let number = |n: i64| Ok(n.into_pyobject(py)?.into_any().unbind());
    match outcome.map_err(Failure::from)? {
        Outcome::Begun(Step::Run { seq, begun_before, tries, .. }) => {
            Ok((seq.0, begun_before, false, tries).into_pyobject(py)?.into_any().unbind())
        }
        Outcome::Begun(Step::InDoubt { seq }) => {
            Ok((seq.0, true, false, -1).into_pyobject(py)?.into_any().unbind())
        }
        Outcome::Begun(Step::Done { seq }) => {
            Ok((seq.0, true, true, 0).into_pyobject(py)?.into_any().unbind())
        }
        Outcome::Turned(Turn::Counted { loops }) => number(loops),
        Outcome::Turned(Turn::Refused(refusal)) => Err(Failure::refused(&refusal, run).into()),
        Outcome::Recorded(seq) | Outcome::StepResolved(seq) | Outcome::Saved(seq) | Outcome::Reset(seq) => {
            number(seq.0)
        }
        Outcome::ItemClaimed(claim) => Ok(item::told(py, claim)?.into_any().unbind()),
        Outcome::ItemEnded(e) => Ok((e.standing.name(), e.tries, e.spent.cost(), e.spent[Unit::Calls])
            .into_pyobject(py)?
            .into_any()
            .unbind()),
        Outcome::Tried(n) => number(n),
        Outcome::Put(done) => number(done.commit),
        Outcome::ApprovalAsked(answer) => Ok(approval::told(answer).into_pyobject(py)?.into_any().unbind()),
        Outcome::Ended(status) | Outcome::Raised(status) => {
            Ok(status.name().into_pyobject(py)?.into_any().unbind())
        }
        _ => Ok(py.None()),
    }
}
