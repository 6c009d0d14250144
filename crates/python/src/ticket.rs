//! A commit on its way, for Python: waited for, or told to a callback.

use std::sync::{Mutex, PoisonError};

use outlast_core::{
    op::{Outcome, Step, Turn},
    store::{self, Ticket as Commit},
    unit::Unit,
};
use pyo3::prelude::*;
use tokio::runtime::Handle;

use crate::{error::Failure, item};

/// One operation whose commit has not been heard of yet. It happens also when nobody waits.
#[pyclass(frozen, module = "outlast._native")]
pub struct Ticket {
    commit: Mutex<Option<Commit>>,
    runtime: Handle,
    /// For the hints of refusals.
    run: String,
}

impl Ticket {
    pub fn new(commit: Commit, runtime: Handle, run: &str) -> Ticket {
        Ticket { commit: Mutex::new(Some(commit)), runtime, run: run.to_owned() }
    }

    fn take(&self) -> Result<Commit, Failure> {
        let taken = self.commit.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.ok_or_else(|| Failure::new("internal", "this ticket was waited for already", None))
    }
}

#[pymethods]
impl Ticket {
    /// Blocks until the commit, without the interpreter's lock, and gives its answer.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let commit = self.take()?;
        let outcome = py.detach(|| commit.wait());
        answer(py, outcome, &self.run)
    }

    /// Calls `done(answer, error)` from another thread when it is committed; one of the two is None.
    fn then(&self, done: Py<PyAny>) -> PyResult<()> {
        let commit = self.take()?;
        let run = self.run.clone();
        self.runtime.spawn(async move {
            let outcome = commit.await;
            // None: the interpreter is gone, and with it whoever waited.
            Python::try_attach(|py| {
                let told = match answer(py, outcome, &run) {
                    Ok(answer) => done.call1(py, (answer, py.None())),
                    Err(error) => done.call1(py, (py.None(), error.into_value(py))),
                };
                // A loop that was closed meanwhile: nobody waits there any more.
                if let Err(e) = told {
                    tracing::debug!(error = %e, "nobody waits for a commit");
                }
                drop(done);
            });
        });
        Ok(())
    }
}

/// What an operation answered, as Python values:
/// an item as `Seat.claim_item` and `record_item` say; a step `(seq, begun before, done)`; a loop its count; anything else with a number that number.
fn answer(py: Python<'_>, outcome: Result<Outcome, store::Error>, run: &str) -> PyResult<Py<PyAny>> {
    let number = |n: i64| Ok(n.into_pyobject(py)?.into_any().unbind());
    match outcome.map_err(Failure::from)? {
        Outcome::Begun(Step::Run { seq, begun_before, .. }) => {
            Ok((seq.0, begun_before, false).into_pyobject(py)?.into_any().unbind())
        }
        Outcome::Begun(Step::InDoubt { seq }) => {
            Ok((seq.0, true, false).into_pyobject(py)?.into_any().unbind())
        }
        Outcome::Begun(Step::Done { seq }) => Ok((seq.0, true, true).into_pyobject(py)?.into_any().unbind()),
        Outcome::Turned(Turn::Counted { loops }) => number(loops),
        Outcome::Turned(Turn::Refused(refusal)) => Err(Failure::refused(&refusal, run).into()),
        Outcome::Recorded(seq) | Outcome::Saved(seq) | Outcome::Reset(seq) => number(seq.0),
        Outcome::ItemClaimed(claim) => Ok(item::told(py, claim)?.into_any().unbind()),
        Outcome::ItemEnded(e) => Ok((e.standing.name(), e.tries, e.spent.cost(), e.spent[Unit::Calls])
            .into_pyobject(py)?
            .into_any()
            .unbind()),
        Outcome::Tried(n) => number(n),
        Outcome::Put(commit) => number(commit),
        Outcome::Ended(status) | Outcome::Raised(status) => {
            Ok(status.name().into_pyobject(py)?.into_any().unbind())
        }
        _ => Ok(py.None()),
    }
}
