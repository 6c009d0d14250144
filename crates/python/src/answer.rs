//! Answers: outcomes of operations as Python values.

use outlast_core::{
    engine::{Outcome, Step, Turn},
    envelope::Unit,
    journal::{ItemClaim, approval::Answer},
    store,
};
use outlast_server::work::Hand;
use pyo3::{IntoPyObjectExt as _, prelude::*};

use crate::error::Failure;

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
