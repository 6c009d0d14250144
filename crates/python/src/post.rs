//! Reports commits to event loops: all tickets resolved by one group in one call, with one wake-up per loop.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake},
};

use outlast_core::{engine::Outcome, store};
use outlast_server::work::Hand;
use parking_lot::Mutex;
use pyo3::{prelude::*, sync::PyOnceLock, types::PyList};
use tokio::runtime::Handle;

use crate::answer::answer;

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
