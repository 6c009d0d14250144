//! Requests approvals from people, and looks up the answers.

use outlast_core::{
    engine::{Asker, RequestApproval},
    journal::{
        Kind, Payload,
        approval::{self, Answer, Status},
    },
    run::rules::Rules,
    store::{ApprovalFilter as Filter, Durability},
    words::{Digest, RunNo, Seq},
};
use outlast_server::dialect::canonical_value;
use pyo3::prelude::*;

use crate::{
    engine::Engine,
    error::Failure,
    open_run::OpenRun,
    shared::Core,
    ticket::{Approved, Ticket, approved},
};

/// Requests an approval in the attempt's name. The ticket resolves once the request is on disk, with its answer so far.
/// See `RequestApproval`.
#[pyfunction]
pub fn request_approval(
    open_run: &OpenRun,
    tool: String,
    side_effect: Option<String>,
    arguments: &[u8],
    key: Option<String>,
    expires_ms: i64,
) -> PyResult<Ticket> {
    let arguments = canonical(arguments)?;
    let (actor, slot) = open_run.actor();
    let asker = Asker::Attempt { actor, slot };
    let arguments = Payload::encode(&arguments);
    let request = RequestApproval { asker, key, tool, side_effect, arguments, expires_ms };
    Ok(open_run.submit(request, Durability::Synced)?)
}

/// Returns whether an approval is still pending. Returns false for an approval whose request lies in the future, made
/// by a clock that was ahead: the caller then requests it again, which corrects its deadline.
#[pyfunction]
pub fn is_pending(py: Python<'_>, engine: &Engine, run: i64, seq: i64) -> PyResult<bool> {
    let core = engine.core()?;
    let look = || -> Result<bool, Failure> {
        let entry = core.store.entry(RunNo(run), Seq(seq))?;
        let now = core.store.now()?;
        let asked = entry.as_ref().filter(|e| e.opened_at <= now);
        let detail = asked.and_then(|e| Some((e.approval.as_ref()?, e.state)));
        Ok(detail.is_some_and(|(a, state)| a.status(state, now) == Status::Pending))
    };
    Ok(py.detach(look)?)
}

/// Returns the answer of a completed run to this request, which may be that no approval is required; None if the run
/// never asked for it.
#[pyfunction]
pub fn recalled_approval(
    py: Python<'_>,
    engine: &Engine,
    run: i64,
    tool: &str,
    side_effect: Option<&str>,
    arguments: &[u8],
    key: Option<&str>,
) -> PyResult<Option<Approved>> {
    let core = engine.core()?;
    let digest = Digest::of(&canonical(arguments)?);
    let key = key.map_or_else(|| approval::key_of(tool, &digest), str::to_owned);
    let found = py.detach(|| recall(&core, RunNo(run), tool, side_effect, digest, &key))?;
    Ok(found.map(approved))
}

fn recall(
    core: &Core,
    run: RunNo,
    tool: &str,
    side_effect: Option<&str>,
    digest: Digest,
    key: &str,
) -> Result<Option<Answer>, Failure> {
    let filter = Filter { run: Some(run), open: false, limit: usize::MAX >> 1 };
    let now = core.store.now()?;
    let mut asked = core.store.approvals(&filter)?.into_iter();
    let own = asked.find(|e| e.kind == Kind::Approval && e.key.as_deref() == Some(key));
    let fits = own.filter(|e| e.approval.as_ref().is_some_and(|a| a.tool == tool && a.digest == digest));
    if let Some(entry) = fits {
        return Ok(Answer::of(&entry, now));
    }
    let rules = core.store.run(run)?.and_then(|v| v.spec.rules);
    let allowed = rules.as_ref().is_none_or(|r| r.allows(tool));
    let free = allowed && !Rules::ask_for(rules.as_ref(), tool, side_effect);
    Ok(free.then(Answer::not_required))
}

fn canonical(arguments: &[u8]) -> Result<Vec<u8>, Failure> {
    canonical_value(arguments).map_err(|e| Failure::new("bad_approval", format!("the arguments: {e}"), None))
}
