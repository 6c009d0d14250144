//! Answers: outcomes of operations as Python values.

use std::sync::Arc;

use outlast_core::{
    engine::{
        op::Outcome,
        step::{Step, Turn},
    },
    envelope::unit::Unit,
    journal::{approval::Answer, job::ItemClaim},
    store,
    words::id::RunNo,
};
use pyo3::{prelude::*, types::PyTuple};

use crate::{error::Failure, openings::Openings};

/// Run and process state for which an operation is submitted and its errors are worded.
#[derive(Default)]
pub struct Caller {
    pub run: RunNo,
    /// Id of the run, which the hints of errors name.
    pub id: String,
    pub openings: Arc<Openings>,
}

/// Converts an operation's outcome to Python values.
///
/// An item becomes a tuple as in `claim_item` and `record_item`, a step `(seq, begun before, done, tries)`, a loop its
/// count, and any other outcome with a number that number.
pub fn answer(
    py: Python<'_>,
    outcome: Result<Outcome, store::Error>,
    caller: &Caller,
) -> PyResult<Py<PyAny>> {
    let number = |n: i64| Ok(n.into_pyobject(py)?.into_any().unbind());
    let outcome = outcome.inspect_err(|e| {
        if let store::Error::Engine(e) = e {
            caller.openings.lock().note_failure(caller.run, e);
        }
    });
    let outcome = outcome.map_err(Failure::from)?;
    caller.openings.lock().note(caller.run, &outcome);
    match outcome {
        Outcome::Begun(Step::Run { opening, begun_before, tries, .. }) => {
            Ok((opening.seq.0, begun_before, false, tries).into_pyobject(py)?.into_any().unbind())
        }
        Outcome::Begun(Step::InDoubt { seq }) => {
            Ok((seq.0, true, false, -1).into_pyobject(py)?.into_any().unbind())
        }
        Outcome::Begun(Step::Done { seq }) => {
            Ok((seq.0, true, true, 0).into_pyobject(py)?.into_any().unbind())
        }
        Outcome::Turned(Turn::Counted { loops }) => number(loops),
        Outcome::Turned(Turn::Refused(refusal)) => Err(Failure::refused(&refusal, &caller.id).into()),
        Outcome::Recorded(seq) | Outcome::StepResolved(seq) | Outcome::Saved(seq) | Outcome::Reset(seq) => {
            number(seq.0)
        }
        Outcome::ItemClaimed(claim) => Ok(claimed(py, claim)?.into_any().unbind()),
        Outcome::ItemEnded(e) => Ok((e.standing.name(), e.tries, e.spent.cost(), e.spent[Unit::Calls])
            .into_pyobject(py)?
            .into_any()
            .unbind()),
        Outcome::Tried(n) => number(n),
        Outcome::Put(done) => number(done.commit),
        Outcome::ApprovalAsked(answer) => Ok(approved(answer).into_pyobject(py)?.into_any().unbind()),
        Outcome::Ended(status) | Outcome::Raised(status) => {
            Ok(status.name().into_pyobject(py)?.into_any().unbind())
        }
        _ => Ok(py.None()),
    }
}

/// Converts the outcome of claiming an item to a Python tuple.
fn claimed<'py>(py: Python<'py>, claim: ItemClaim) -> PyResult<Bound<'py, PyTuple>> {
    match claim {
        ItemClaim::Run(r) => {
            ("run", r.opening.seq.0, r.tries, r.continued, r.deaths, r.steps.as_ref()).into_pyobject(py)
        }
        ItemClaim::Ended { seq, standing } => ("ended", seq.0, standing.name()).into_pyobject(py),
        ItemClaim::Held { seq } => ("held", seq.0).into_pyobject(py),
        ItemClaim::Suspect { seq, deaths } => ("suspect", seq.0, deaths).into_pyobject(py),
        ItemClaim::Changed { seq } => ("changed", seq.0).into_pyobject(py),
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
