//! Routes of a run's approvals, requested by its agent and decided by a person, and of its decided tool calls.

use outlast_core::{
    engine::Asker,
    journal::approval::{ApprovalId, Status},
    reads::approvals,
    store::ApprovalFilter as Filter,
};

use super::{Act, Error, run::shown};
use crate::api::{
    approvals::{ApprovalBody, Decision, ask, show, unknown, view},
    request::{Answered, ApiRequest, created, json},
};

/// Largest number of approvals read for a list of tool calls, newest first.
const MOST: usize = 1_000;

/// Requests an approval in the run's name. Answers 200 if none is needed, else 201 with it, new or already decided.
pub async fn request(asked: ApiRequest) -> Answered<Error> {
    let run = asked.run_to(Act::Enter).await?.run.no;
    let wanted: ApprovalBody = asked.json()?;
    if wanted.tool.is_empty() {
        return Err(Error::bad("tool is wanted"));
    }
    let answer = async {
        let (actor, entered) = asked.enter(run).await?;
        let asker = Asker::Attempt { actor, slot: entered.slot };
        Ok(ask(&asked.host.store, asker, wanted).await?)
    };
    match asked.working(run, answer.await).await?.id {
        None => json(&show::not_required()),
        Some(id) => created(&show::Approval::new(&view(&asked, id).await?)),
    }
}

/// Records a person's decision on the approval that the request names, or on the only pending one. Needs an API token;
/// a run token is refused.
pub async fn decide(asked: ApiRequest) -> Answered<Error> {
    asked.caller.must_be_a_person()?;
    let run = asked.run().await?.run;
    let said: Decision = asked.json()?;
    let id = match said.approval_id.as_deref().filter(|id| !id.is_empty()) {
        Some(text) => {
            text.parse().ok().filter(|id: &ApprovalId| id.run == run.no).ok_or_else(|| unknown(text))?
        }
        None => {
            let found = asked.read(move |store| approvals::pending(store, Some(run.no))).await?;
            match found.as_slice() {
                [only] => only.id,
                [] => return Err(Error::NoPendingApproval { run: run.id.to_string() }),
                several => {
                    return Err(Error::AmbiguousApproval { run: run.id.to_string(), pending: several.len() });
                }
            }
        }
    };
    said.record(&asked, id).await?;
    asked.host.wake();
    json(&shown(&asked, run.no).await?)
}

/// Answers with the run's decided approvals as tool calls, oldest first.
pub async fn tool_calls(asked: ApiRequest) -> Answered<Error> {
    let run = asked.run().await?.run.no;
    let read = asked.read(move |store| {
        let found = approvals::list(store, &Filter { run: Some(run), open: false, limit: MOST }, None)?;
        let decided = found.iter().rev().filter(|view| view.status != Status::Pending);
        Ok(decided.map(show::tool_call).collect::<Vec<_>>())
    });
    json(&read.await?)
}
