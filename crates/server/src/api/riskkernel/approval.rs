//! Routes of a run's approvals, requested by its agent and decided by a person, and of its decided tool calls.

use http::{Response, StatusCode};
use outlast_core::{
    engine::{
        self,
        act::InName,
        approval::{decide_approval::DecideApproval, request_approval::Asker},
    },
    journal::approval::{self, ApprovalId, Status},
    reads::{self, approvals::View},
    store::{self, Ask as _, Durability, Store, filter::ApprovalFilter as Filter},
    words::{digest::Digest, id::RunNo},
};
use serde::Deserialize;

use super::{Act, Error, RiskKernelRequest, answered, run::shown};
use crate::{
    api::approvals::{ApprovalBody, ask, may_decide, read_decision, show},
    wire::body::AnswerBody,
};

/// Largest number of approvals read for a list of tool calls, newest first.
const MOST: usize = 1_000;

/// Requests an approval in the run's name. Answers 200 if none is needed, else 201 with it, new or already decided.
pub async fn request(asked: RiskKernelRequest<'_>) -> Result<Response<AnswerBody>, Error> {
    let run = asked.run_to(Act::Enter).await?.run.no;
    let wanted: ApprovalBody = asked.json()?;
    if wanted.tool.is_empty() {
        return Err(Error::BadRequest("tool is wanted".into()));
    }
    let answer = async {
        let (actor, entered) = asked.enter(run).await?;
        let asker = Asker::Attempt { actor, slot: entered.slot };
        Ok(ask(&asked.host.store, asker, wanted).await?)
    };
    match asked.working(run, answer.await).await?.id {
        None => answered(StatusCode::OK, &show::not_required()),
        Some(id) => {
            let found = asked.face.desk.read(move |store| reads::approvals::find(store, id)).await?;
            let found = found.ok_or_else(|| unknown(&id.to_string()))?;
            answered(StatusCode::CREATED, &show::approval(&found))
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Decision {
    approval_id: Option<String>,
    decision: String,
    reason: Option<String>,
    decided_by: Option<String>,
    /// Digest of the arguments that the person saw, if the request names it.
    arguments_digest: Option<Digest>,
}

/// Records a person's decision on the approval that the request names, or on the only pending one. Needs an API token;
/// a run token is refused.
pub async fn decide(asked: RiskKernelRequest<'_>) -> Result<Response<AnswerBody>, Error> {
    may_decide(&asked.by)?;
    let run = asked.run().await?.run;
    let said: Decision = asked.json()?;
    let approve = read_decision(&said.decision)?;
    let id = match said.approval_id.filter(|id| !id.is_empty()) {
        Some(text) => {
            text.parse().ok().filter(|id: &ApprovalId| id.run == run.no).ok_or_else(|| unknown(&text))?
        }
        None => {
            let found = asked.face.desk.read(move |store| pending(store, run.no)).await?;
            match found.as_slice() {
                [only] => only.id,
                [] => return Err(Error::NoPendingApproval { run: run.id.to_string() }),
                several => {
                    return Err(Error::AmbiguousApproval { run: run.id.to_string(), pending: several.len() });
                }
            }
        }
    };
    let by = said.decided_by.filter(|by| !by.is_empty()).unwrap_or_else(|| "api".into());
    let reason = said.reason.filter(|reason| !reason.is_empty());
    let decision = DecideApproval { id, digest: said.arguments_digest, approve, reason, by };
    asked.host.store.ask(InName::of(asked.actor.as_str(), decision), Durability::Synced).await?;
    asked.host.wake();
    answered(StatusCode::OK, &shown(&asked, run.no).await?)
}

/// Returns the approvals of a run that wait for a person, newest first.
pub fn pending(store: &dyn Store, run: RunNo) -> Result<Vec<View>, store::Error> {
    let filter = Filter { run: Some(run), open: true, limit: approval::MOST_PENDING };
    reads::approvals::list(store, &filter, Some(Status::Pending))
}

/// Answers with the run's decided approvals as tool calls, oldest first.
pub async fn tool_calls(asked: RiskKernelRequest<'_>) -> Result<Response<AnswerBody>, Error> {
    let run = asked.run().await?.run.no;
    let read = asked.face.desk.read(move |store| {
        let found =
            reads::approvals::list(store, &Filter { run: Some(run), open: false, limit: MOST }, None)?;
        let decided = found.iter().rev().filter(|view| view.status != Status::Pending);
        Ok(decided.map(show::tool_call).collect::<Vec<_>>())
    });
    answered(StatusCode::OK, &read.await?)
}

fn unknown(id: &str) -> Error {
    let id = id.chars().take(80).collect();
    store::Error::from(engine::Error::UnknownApproval { id }).into()
}
