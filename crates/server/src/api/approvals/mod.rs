//! REST over approvals and policies, below `/v1/approvals` and `/v1/policies`.
//!
//! Names and shapes are RiskKernel's (camel case, times in RFC 3339), with more members. A run asks with its token and
//! reads its own approvals; a person decides, with the API token.
//!
//! Request for an approval, and the wait for a person's decision.

pub(super) mod policies;
pub mod show;

use std::{sync::Arc, time::Duration};

use outlast_core::{
    engine::{self, Asker, DecideApproval, InName, RequestApproval},
    journal::{
        ApprovalId, Payload,
        approval::{Answer, EXPIRES_MS, Status},
    },
    reads,
    store::{self, ApprovalFilter as Filter, Ask as _, Durability, News, Store},
    words::Digest,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::{
    gate::Caller,
    request::{Answered, ApiRequest, created, json},
};
use crate::{dialect::canonical_value, hints::Hints, state::Error};

/// Default number of approvals in a list. `MOST` is the largest.
const PAGE: usize = 100;
const MOST: usize = 1_000;

/// Number of approvals, newest first, that are searched for those of one status.
const LOOKED_AT: usize = 10_000;

/// Answers with the newest approvals, those of one status or run only if the query says so.
pub(super) async fn list(asked: ApiRequest) -> Answered {
    let query = &asked.query;
    let status = match query.text("status").filter(|s| !s.is_empty()) {
        None => None,
        Some(text) => Some(Status::parse(text).ok_or_else(|| {
            let known = Status::ALL.map(Status::name).join(", ");
            Error::BadRequest(format!("status is {text:?}, and one of {known} is wanted"))
        })?),
    };
    let limit = query.limit(PAGE, MOST)?;
    let (named, only) = (query.text("run").map(str::to_owned), asked.caller.only_run());
    let found = asked
        .read(move |store| {
            let run = match &named {
                Some(id) => match reads::runs::with_id(store, id)?.map(|view| view.run.no) {
                    Some(no) if only.is_none_or(|own| own == no) => Some(no),
                    _ => return Ok(Vec::new()),
                },
                None => only,
            };
            let open = status == Some(Status::Pending);
            // Open approvals may have expired. They are filtered out after the limit, so more are read.
            let filter = Filter { run, open, limit: if status.is_some() { LOOKED_AT } else { limit } };
            let mut found = reads::approvals::list(store, &filter, status)?;
            found.truncate(limit);
            Ok(found)
        })
        .await?;
    json(&found.iter().map(show::Approval::new).collect::<Vec<_>>())
}

/// Answers with one approval.
pub(super) async fn get(asked: ApiRequest) -> Answered {
    json(&show::Approval::new(&view(&asked, id(&asked)?).await?))
}

/// Returns the approval id in the path. Errors: `unknown_approval`, also for a run that names another run's approval.
fn id(asked: &ApiRequest) -> Result<ApprovalId, Error> {
    let id: Option<ApprovalId> = asked.name().parse().ok();
    let own = id.filter(|id| asked.caller.only_run().is_none_or(|own| own == id.run));
    own.ok_or_else(|| unknown(asked.name()))
}

/// Returns the error of an approval that is not there, or not the caller's.
pub(super) fn unknown(id: &str) -> Error {
    let id = id.chars().take(80).collect();
    Error::Store(engine::Error::UnknownApproval { id }.into())
}

/// Reads an approval. Errors: `unknown_approval`.
pub(super) async fn view(asked: &ApiRequest, id: ApprovalId) -> Result<reads::approvals::View, Error> {
    let found = asked.read(move |store| reads::approvals::find(store, id)).await?;
    found.ok_or_else(|| unknown(&id.to_string()))
}

/// Requests an approval in the name of the run that asks.
pub(super) async fn ask_for(asked: ApiRequest) -> Answered {
    let Caller::Run(asker) = &asked.caller else { return Err(Error::NoRunAsks) };
    let answer = ask(&asked.host.store, *asker, asked.json()?).await?;
    match (answer.id, answer.status) {
        (None, _) => json(&show::not_required()),
        (Some(id), Status::Pending) => created(&show::Approval::new(&view(&asked, id).await?)),
        (Some(id), _) => json(&show::Approval::new(&view(&asked, id).await?)),
    }
}

/// Word of a person.
#[derive(PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Approve,
    Deny,
}

/// Body of a decision.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Decision {
    /// Approval that is decided; `None`: the one in the path, or the only pending one of the run there.
    pub approval_id: Option<String>,
    decision: Verdict,
    reason: Option<String>,
    decided_by: Option<String>,
    /// Digest of the arguments that the person saw; `None`: the request does not name it.
    arguments_digest: Option<Digest>,
}

impl Decision {
    /// Records the decision on the approval `id`.
    pub async fn record(self, asked: &ApiRequest, id: ApprovalId) -> Result<(), Error> {
        let by = self.decided_by.filter(|by| !by.is_empty()).unwrap_or_else(|| "api".into());
        let reason = self.reason.filter(|reason| !reason.is_empty());
        let decision = DecideApproval {
            id,
            digest: self.arguments_digest,
            approve: self.decision == Verdict::Approve,
            reason,
            by,
        };
        asked.host.store.ask(InName::of(asked.actor(), decision), Durability::Synced).await?;
        Ok(())
    }
}

/// Records a person's decision on the approval in the path.
pub(super) async fn decide(asked: ApiRequest) -> Answered {
    asked.caller.must_be_a_person()?;
    let id = id(&asked)?;
    let decision: Decision = asked.json()?;
    if decision.decision == Verdict::Approve && decision.arguments_digest.is_none() {
        let seen = view(&asked, id).await?.detail.digest;
        return Err(Error::BadRequest(format!(
            "to approve wants the argumentsDigest of what was looked at; the approval has {seen}"
        )));
    }
    decision.record(&asked, id).await?;
    json(&show::Approval::new(&view(&asked, id).await?))
}

/// Body of a request for an approval. Unknown members are ignored, as RiskKernel's clients expect.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalBody {
    pub tool: String,
    pub side_effect: Option<String>,
    /// Arguments of the tool call, any JSON; `None`: `{}`.
    pub arguments: Option<Box<RawValue>>,
    /// Key by which the caller identifies the request; `None`: tool and arguments identify it.
    pub key: Option<String>,
    /// Seconds from now until the approval expires; `None`: a day.
    pub expires_in_seconds: Option<f64>,
}

/// Requests an approval in the name of `asker`. Durable before it returns.
///
/// Errors: those of `RequestApproval`; arguments that have a key twice.
pub async fn ask(store: &Arc<dyn Store>, asker: Asker, wanted: ApprovalBody) -> Result<Answer, Error> {
    let text = wanted.arguments.as_deref().map_or("{}", RawValue::get);
    let arguments = canonical_value(text.as_bytes())
        .map_err(|e| Error::BadRequest(format!("the arguments are no JSON that can be told apart: {e}")))?;
    let expires_ms = match wanted.expires_in_seconds {
        None => EXPIRES_MS,
        // Saturates beyond the range of `i64`, which means never.
        Some(seconds) => (seconds * 1000.0).ceil() as i64,
    };
    let request = RequestApproval {
        asker,
        key: wanted.key,
        tool: wanted.tool,
        side_effect: wanted.side_effect,
        arguments: Payload::encode(&arguments),
        expires_ms,
    };
    Ok(store.ask(request, Durability::Synced).await?)
}

/// Interval between two looks at an approval that nobody has decided.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until a person has decided on an approval, or it has expired, or until `until`. Returns the newest answer.
pub async fn decided(
    store: &dyn Store,
    hints: &Arc<Hints>,
    mut answer: Answer,
    until: Instant,
) -> Result<Answer, store::Error> {
    // A decision is an event.
    let mut ear = hints.ear(News::EVENTS);
    while let (Status::Pending, Some(id)) = (answer.status, answer.id) {
        let (entry, now) = (store.entry(id.run, id.seq)?, store.now()?);
        answer = entry.and_then(|e| Answer::of(&e, now)).unwrap_or(answer);
        if answer.status != Status::Pending || Instant::now() >= until {
            break;
        }
        let _ = ear.pause(LOOK).await;
    }
    Ok(answer)
}
