//! REST over approvals and policies, below `/v1/approvals` and `/v1/policies`.
//!
//! Names and shapes are RiskKernel's (camel case, times in RFC 3339), with more members. A run asks with its token and
//! reads its own approvals; a person decides, with the API token.

mod ask;
mod policies;
pub mod show;
mod wait;

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response, StatusCode, request::Parts};
use outlast_core::{
    engine::{
        self,
        act::InName,
        approval::{decide_approval::DecideApproval, request_approval::Asker},
    },
    journal::approval::{ApprovalId, Status},
    reads,
    store::{self, Ask as _, Durability, Store, filter::ApprovalFilter as Filter},
    words::{digest::Digest, id::RunNo},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use ask::{ApprovalBody, ask};
pub use wait::decided;

use super::{
    query::{self, Query},
    state,
};
use crate::{state::Error, wire::body::AnswerBody};

/// Operation that a route serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    List,
    Get,
    Ask,
    Decide,
    Policies,
    Policy,
    PutPolicy,
}

/// Route of approvals and policies. `{…}` in the path is one segment, percent-encoded.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub method: &'static str,
    pub path: &'static str,
    pub does: Does,
    /// Query parameters of the route. Any other is refused.
    pub query: &'static [&'static str],
}

pub const ROUTES: &[Route] = &[
    Route { method: "GET", path: "/v1/approvals", does: Does::List, query: &["status", "run", "limit"] },
    Route { method: "POST", path: "/v1/approvals", does: Does::Ask, query: &[] },
    Route { method: "GET", path: "/v1/approvals/{id}", does: Does::Get, query: &[] },
    Route { method: "POST", path: "/v1/approvals/{id}", does: Does::Decide, query: &[] },
    Route { method: "GET", path: "/v1/policies", does: Does::Policies, query: &[] },
    Route { method: "POST", path: "/v1/policies", does: Does::PutPolicy, query: &[] },
    Route { method: "GET", path: "/v1/policies/{name}", does: Does::Policy, query: &[] },
];

/// Default number of approvals in a list. `MOST` is the largest.
const PAGE: usize = 100;
const MOST: usize = 1_000;

/// Number of approvals, newest first, that are searched for those of one status.
const LOOKED_AT: usize = 10_000;

/// Caller of a request, in whose name the request acts.
#[derive(Clone, Copy, Debug)]
pub enum By {
    /// Attempt of a run, named by a run token or a header.
    Run(Asker),
    /// Caller of Outlast's own routes. `protected`: the listener has an API token.
    Api { protected: bool },
}

impl By {
    /// Returns the only run whose approvals the caller may read; `None` for all runs.
    fn only(&self) -> Option<RunNo> {
        match self {
            By::Run(asker) => Some(asker.run()),
            By::Api { .. } => None,
        }
    }
}

/// Finds the route of a request, and returns the value of its `{…}` segment, not decoded; `None` if no route fits.
pub fn find<'a>(method: &Method, path: &'a str) -> Option<(&'static Route, Option<&'a str>)> {
    ROUTES.iter().filter(|r| r.method == method.as_str()).find_map(|route| match route.path.split_once('{') {
        None => (route.path == path).then_some((route, None)),
        Some((root, _)) => {
            let segment = path.strip_prefix(root).filter(|s| !s.is_empty() && !s.contains('/'))?;
            Some((route, Some(segment)))
        }
    })
}

/// Request with the caller and path segment that the listener has found for it.
pub(crate) struct ApprovalsRequest<'a> {
    pub store: &'a Arc<dyn Store>,
    pub by: By,
    pub segment: Option<&'a str>,
    pub parts: &'a Parts,
    pub body: Bytes,
    /// Who acts, as decisions record it.
    pub actor: String,
}

/// Answers a request of a route. The caller, `asked.by`, was checked before.
pub(crate) async fn answer(route: &'static Route, asked: ApprovalsRequest<'_>) -> Response<AnswerBody> {
    let answered = match route.does {
        Does::List => list(route, asked).await,
        Does::Get => get(asked).await,
        Does::Ask => wants(asked).await,
        Does::Decide => decide(asked).await,
        Does::Policies => policies::list(asked).await,
        Does::Policy => policies::get(asked).await,
        Does::PutPolicy => policies::put(asked).await,
    };
    answered.unwrap_or_else(|e| refused(&e))
}

/// Returns the response for an error, in Outlast's shape and, in the same body, in RiskKernel's.
pub(crate) fn refused(error: &Error) -> Response<AnswerBody> {
    let message = match error.hint() {
        Some(hint) => format!("{error} ({hint})"),
        None => error.to_string(),
    };
    state::refused_with(error, json!({ "code": error.code(), "message": message }))
}

async fn list(route: &Route, asked: ApprovalsRequest<'_>) -> Result<Response<AnswerBody>, Error> {
    let query = Query::read(asked.parts.uri.query().unwrap_or_default(), route.query)?;
    let status = match query.text("status").filter(|s| !s.is_empty()) {
        None => None,
        Some(text) => Some(Status::parse(text).ok_or_else(|| {
            let known = Status::ALL.map(Status::name).join(", ");
            Error::BadRequest(format!("status is {text:?}, and one of {known} is wanted"))
        })?),
    };
    let limit = query.limit(PAGE, MOST)?;
    let (named, only) = (query.text("run").map(str::to_owned), asked.by.only());
    let found = read(asked.store, move |store| {
        let run = match &named {
            Some(id) => match run_no(store, id)?.filter(|no| only.is_none_or(|own| own == *no)) {
                Some(no) => Some(no),
                None => return Ok(Vec::new()),
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
    let shown: Vec<_> = found.iter().map(show::approval).collect();
    answered(StatusCode::OK, &shown)
}

fn run_no(store: &dyn Store, id: &str) -> Result<Option<RunNo>, store::Error> {
    outlast_core::words::id::RunId::new(id).map_or(Ok(None), |id| store.run_no(&id))
}

async fn get(asked: ApprovalsRequest<'_>) -> Result<Response<AnswerBody>, Error> {
    let id = id(&asked)?;
    answered(StatusCode::OK, &show::approval(&view(asked.store, id).await?))
}

/// Returns the approval id in the path. Errors: `unknown_approval`, also for a run that names another run's approval.
fn id(asked: &ApprovalsRequest<'_>) -> Result<ApprovalId, Error> {
    let text = query::decode(asked.segment.unwrap_or_default())?;
    let id: Option<ApprovalId> = text.parse().ok();
    let shown = text.chars().take(80).collect();
    id.filter(|id| asked.by.only().is_none_or(|own| own == id.run)).ok_or(unknown(shown))
}

fn unknown(id: String) -> Error {
    Error::Store(engine::Error::UnknownApproval { id }.into())
}

async fn view(store: &Arc<dyn Store>, id: ApprovalId) -> Result<reads::approvals::View, Error> {
    read(store, move |s| reads::approvals::find(s, id)).await?.ok_or_else(|| unknown(id.to_string()))
}

async fn wants(asked: ApprovalsRequest<'_>) -> Result<Response<AnswerBody>, Error> {
    let By::Run(asker) = asked.by else { return Err(Error::NoRunAsks) };
    let wanted = ApprovalBody::read(&asked.body)?;
    let answer = ask(asked.store, asker, wanted).await?;
    match answer.id {
        None => answered(StatusCode::OK, &show::not_required()),
        Some(id) => {
            let status = match answer.status {
                Status::Pending => StatusCode::CREATED,
                _ => StatusCode::OK,
            };
            answered(status, &show::approval(&view(asked.store, id).await?))
        }
    }
}

/// Body of a decision.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Decision {
    decision: String,
    reason: Option<String>,
    decided_by: Option<String>,
    arguments_digest: Option<Digest>,
}

async fn decide(asked: ApprovalsRequest<'_>) -> Result<Response<AnswerBody>, Error> {
    may_decide(&asked.by)?;
    let id = id(&asked)?;
    let said: Decision = serde_json::from_slice(&asked.body).map_err(|e| {
        Error::BadRequest(format!("the body has to be {{\"decision\": \"approve\" or \"deny\", …}}: {e}"))
    })?;
    let approve = read_decision(&said.decision)?;
    let by = said.decided_by.filter(|by| !by.is_empty()).unwrap_or_else(|| "api".into());
    let store = asked.store;
    let decision = DecideApproval { id, digest: said.arguments_digest, approve, reason: said.reason, by };
    store.ask(InName::of(asked.actor, decision), Durability::Synced).await?;
    answered(StatusCode::OK, &show::approval(&view(store, id).await?))
}

/// Returns true for `approve` and false for `deny`. Errors: any other word.
pub fn read_decision(word: &str) -> Result<bool, Error> {
    match word {
        "approve" => Ok(true),
        "deny" => Ok(false),
        other => {
            let shown: String = other.chars().take(80).collect();
            Err(Error::BadRequest(format!("decision is {shown:?}, and \"approve\" or \"deny\" is wanted")))
        }
    }
}

/// Checks that the caller may decide an approval: runs may not, and over REST only callers with an API token
/// may.
///
/// Without an API token an agent could decide its own approvals, because any local process can send the same
/// requests.
pub fn may_decide(by: &By) -> Result<(), Error> {
    match by {
        By::Api { protected: true } => Ok(()),
        By::Api { protected: false } => Err(Error::OnlyTheCommandDecides),
        By::Run(_) => Err(Error::NoRunDecides),
    }
}

/// Runs `look` on a blocking thread: the reads of a store block.
async fn read<T: Send + 'static>(
    store: &Arc<dyn Store>,
    look: impl FnOnce(&dyn Store) -> Result<T, store::Error> + Send + 'static,
) -> Result<T, Error> {
    let store = store.clone();
    let read = tokio::task::spawn_blocking(move || look(&*store)).await;
    Ok(read.map_err(|_| store::Error::Closed)??)
}

fn answered(status: StatusCode, body: &impl Serialize) -> Result<Response<AnswerBody>, Error> {
    let mut response = state::answered(body)?;
    *response.status_mut() = status;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_at_most_one_route() {
        let check = |method: Method, path: &str, want: Option<(Does, Option<&str>)>| {
            let found = find(&method, path).map(|(r, s)| (r.does, s));
            assert_eq!(found, want, "{method} {path}");
        };
        check(Method::GET, "/v1/approvals", Some((Does::List, None)));
        check(Method::POST, "/v1/approvals", Some((Does::Ask, None)));
        check(Method::GET, "/v1/approvals/apr_1_2", Some((Does::Get, Some("apr_1_2"))));
        check(Method::POST, "/v1/approvals/apr_1_2", Some((Does::Decide, Some("apr_1_2"))));
        check(Method::GET, "/v1/policies/careful", Some((Does::Policy, Some("careful"))));
        check(Method::POST, "/v1/policies", Some((Does::PutPolicy, None)));
        for path in
            ["/v1/approvals/", "/v1/approvals/a/b", "/v1/approvalsx", "/v1/policies/a/b", "/v1/approve"]
        {
            check(Method::GET, path, None);
        }
        check(Method::DELETE, "/v1/approvals/apr_1_2", None);
    }
}
