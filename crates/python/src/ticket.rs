//! Pending commit for Python, waited for by a thread or a task: an effect of `outlast.effects`.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use outlast_core::{
    engine::{Op, Outcome, StorePart},
    store::{self, Durability, Store},
};
use outlast_server::work::Hand;
use parking_lot::Mutex;
use pyo3::{intern, prelude::*, sync::PyOnceLock};

use crate::{
    answer::answer,
    error::Failure,
    post::{Letter, Post},
};

/// One operation and its pending commit. Dropping the ticket still submits the operation.
///
/// The operation is submitted once it is known how the caller waits: a thread that blocks runs the store's work itself
/// if no other thread is doing so.
#[pyclass(frozen, module = "outlast._native")]
pub struct Ticket {
    asked: Mutex<Option<(Op, Durability)>>,
    /// Parts of a long value, in order. Each is committed before the operation, in its own commit.
    parts: Mutex<Vec<StorePart>>,
    store: Arc<dyn Store>,
    post: Post,
    /// Program in whose name the operation is submitted; `None` if it is no run's.
    hand: Option<Arc<Hand>>,
    /// Action that the waiting thread runs once the operation is committed; `None` if there is none.
    after: Mutex<Option<After>>,
    /// Whether a thread that waits may be answered ahead of the commit.
    may_be_ahead: bool,
    is_ahead: AtomicBool,
    /// Id of the process that made the ticket. A process forked from it leaves the ticket alone.
    pid: u32,
}

type After = Box<dyn FnOnce() + Send>;

impl Ticket {
    pub fn new(
        store: Arc<dyn Store>,
        op: Op,
        durability: Durability,
        post: Post,
        hand: Option<Arc<Hand>>,
    ) -> Ticket {
        Ticket {
            asked: Mutex::new(Some((op, durability))),
            parts: Mutex::default(),
            store,
            post,
            hand,
            after: Mutex::default(),
            may_be_ahead: false,
            is_ahead: AtomicBool::new(false),
            pid: outlast_store::process::id(),
        }
    }

    /// Returns the ticket with an action to run once the operation is committed. The action is not run if the
    /// operation fails, or if the ticket is dropped without a wait.
    pub fn and_then(self, after: impl FnOnce() + Send + 'static) -> Ticket {
        *self.after.lock() = Some(Box::new(after));
        self
    }

    fn after(&self) -> After {
        let after = self.after.lock().take();
        after.unwrap_or_else(|| Box::new(|| {}))
    }

    /// Returns the ticket with parts of a long value that are committed before the operation. If a part fails, its
    /// error is the ticket's answer.
    pub fn behind(self, parts: Vec<StorePart>) -> Ticket {
        *self.parts.lock() = parts;
        self
    }

    /// Returns the ticket of an opening that may be answered ahead: a thread that waits is answered from committed data
    /// if the store is idle, and the opening is written with the next commit or within 100 ms.
    pub fn ahead(mut self, may_be_ahead: bool) -> Ticket {
        self.may_be_ahead = may_be_ahead;
        self
    }

    fn parts(&self) -> Vec<StorePart> {
        std::mem::take(&mut *self.parts.lock())
    }

    fn take(&self) -> Result<(Op, Durability), Failure> {
        let taken = self.asked.lock().take();
        taken.ok_or_else(|| Failure::new("internal", "this ticket was waited for already", None))
    }

    fn answered_ahead(
        &self,
        py: Python<'_>,
        op: Op,
        durability: Durability,
    ) -> Result<Outcome, store::Error> {
        let submit = |op| self.store.submit_here(op, durability).wait();
        match self.store.is_shared() {
            // A database answers in a round trip.
            true => py.detach(|| self.store.ahead(op).unwrap_or_else(submit)),
            // A file answers in microseconds, so the interpreter's lock is not released.
            false => self.store.ahead(op).unwrap_or_else(|op| py.detach(|| submit(op))),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.pid != outlast_store::process::id() {
            // The other process submits it. A store cannot be closed in this process.
            return std::mem::forget(self.store.clone());
        }
        if let Ok((op, durability)) = self.take() {
            // Submitted in the order in which they must be committed.
            for part in self.parts() {
                drop(self.store.submit(part.into(), Durability::Committed));
            }
            drop(self.store.submit(op, durability));
        }
    }
}

#[pymethods]
impl Ticket {
    /// Blocks until the commit, without the interpreter's lock, and returns the answer. An opening that may be answered
    /// ahead does not wait for the commit.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (op, durability) = self.take()?;
        if self.may_be_ahead {
            self.is_ahead.store(true, Relaxed);
            return answer(py, self.answered_ahead(py, op, durability), self.hand.as_deref());
        }
        let after = self.after();
        let outcome = py.detach(|| {
            for part in self.parts() {
                self.store.submit_here(part.into(), Durability::Committed).wait()?;
            }
            self.store.submit_here(op, durability).wait().inspect(|_| after())
        });
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
        let (op, durability) = self.take()?;
        let parts = self.parts();
        if parts.is_empty() && self.after.lock().is_none() {
            // Submitted at once: no parts come first, and no action follows.
            self.post.when(self.store.submit(op, durability), letter);
            return Ok(future);
        }
        let (store, post, after) = (self.store.clone(), self.post.clone(), self.after());
        self.post.runtime().spawn(async move {
            let outcome = behind(store, parts, op, durability).await;
            post.send(letter, outcome.inspect(|_| after()));
        });
        Ok(future)
    }
}

async fn behind(
    store: Arc<dyn Store>,
    parts: Vec<StorePart>,
    op: Op,
    durability: Durability,
) -> Result<Outcome, store::Error> {
    for part in parts {
        store.submit(part.into(), Durability::Committed).await?;
    }
    store.submit(op, durability).await
}
