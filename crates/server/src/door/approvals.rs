//! Access to the routes of approvals and policies: in whose name a request comes.

use bytes::Bytes;
use http::{Response, request::Parts};
use hyper::body::Incoming;
use outlast_core::engine::{actor::Actor, approval::request_approval::Asker};

use super::Proxy;
use crate::{
    api::approvals::{self, ApprovalsRequest, By, Does, Route, refused},
    proxy::{host::Host, seat},
    state::Error,
    wire::{
        access::NotLetIn,
        body::AnswerBody,
        refuse::Refusal,
        who::{self, Who},
    },
};

/// Answers a request of the routes of approvals and policies.
pub async fn answer(
    proxy: &Proxy,
    host: &Host,
    parts: &Parts,
    body: Incoming,
) -> Result<Response<AnswerBody>, Refusal> {
    let Some((route, segment)) = route(parts) else {
        return Err(Refusal::Internal("the route is not one of approvals".into()));
    };
    match by(host, parts, route).await {
        Ok(by) => {
            let body: Bytes = proxy.body(host, body).await?;
            let actor = who::actor(&host.config.access, &parts.headers);
            Ok(approvals::answer(
                route,
                ApprovalsRequest { store: &host.store, by, segment, parts, body, actor },
            )
            .await)
        }
        Err(Unseated::NotLetIn(e)) => Ok(refused(&Error::NotLetIn(e))),
        Err(Unseated::Refused(refusal)) => Err(refusal),
    }
}

/// Finds the route of a request, whose path may have a `/run/TOKEN` prefix; `None` for any other request.
pub fn route(parts: &Parts) -> Option<(&'static Route, Option<&str>)> {
    approvals::find(&parts.method, who::path(&parts.uri))
}

enum Unseated {
    NotLetIn(NotLetIn),
    Refused(Refusal),
}

impl From<NotLetIn> for Unseated {
    fn from(e: NotLetIn) -> Self {
        Unseated::NotLetIn(e)
    }
}

/// Returns in whose name a request comes. A run token counts before everything else; a header names the run only for
/// requests that ask for an approval.
async fn by(host: &Host, parts: &Parts, route: &Route) -> Result<By, Unseated> {
    let access = &host.config.access;
    if who::bears_token(&parts.uri, &parts.headers)? || access.only_run.is_some() {
        let caller = who::caller(access, &host.token_keys, &parts.uri, &parts.headers)?;
        let Who::Token(claims) = caller.who else { return Err(NotLetIn::RunTokenWanted.into()) };
        seat::serves(host, &Who::Token(claims)).map_err(Unseated::Refused)?;
        return Ok(By::Run(Asker::Token(claims)));
    }
    let protected = who::api(access, &parts.headers)?.is_a_persons();
    if route.does != Does::Ask {
        return Ok(By::Api { protected });
    }
    let caller = who::caller(access, &host.token_keys, &parts.uri, &parts.headers)?;
    if caller.who == Who::Nobody {
        return Ok(By::Api { protected });
    }
    let seat = seat::seat(host, caller.who).await.map_err(Unseated::Refused)?;
    let actor = Actor { run: seat.run, attempt: seat.attempt, instance: host.node.instance() };
    Ok(By::Run(Asker::Attempt { actor, slot: seat.slot }))
}
