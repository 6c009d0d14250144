//! Our own routes: probes, the read API, acts of people, sessions of programs, the state, approvals, RiskKernel's.
//!
//! [`routes`] is the one table of them: method, path, parameters, who may, handler. The door gives each request that the
//! table has to [`Api::answer`], and `docs/reference/openapi.json` describes them; a test compares it with the table.

pub mod acts;
mod amount;
pub mod approvals;
mod error;
mod fleet;
mod gate;
mod probes;
pub mod read;
mod request;
mod riskkernel;
pub mod routes;
pub mod rows;
mod session;
pub mod state;

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response, request::Parts};
use hyper::body::Incoming;

use self::{
    error::Error,
    gate::Who,
    request::{ApiRequest, Query},
    riskkernel::Tokens,
    routes::Found,
    session::Sessions,
};
use crate::{
    dialect::Upstream,
    proxy::host::Host,
    state::StateDesk,
    wire::{body::AnswerBody, incoming, refuse::Refusal, target},
};

/// Our own routes over one store. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    desk: Arc<StateDesk>,
    tokens: Arc<Tokens>,
    sessions: Arc<Sessions>,
}

impl Api {
    pub fn new(desk: Arc<StateDesk>) -> Api {
        Api { desk, tokens: Arc::default(), sessions: Arc::default() }
    }

    /// Answers a request of the table. `sdk`: whose error shape the caller's SDK reads.
    pub(crate) async fn answer(
        &self,
        host: &Arc<Host>,
        found: Found<'_>,
        parts: &Parts,
        body: Incoming,
        sdk: Upstream,
    ) -> Response<AnswerBody> {
        let shape = found.face.shape;
        let answered = self.let_in_and_answer(host, found, parts, body).await;
        answered.unwrap_or_else(|e| e.response(host, shape, sdk))
    }

    async fn let_in_and_answer(
        &self,
        host: &Arc<Host>,
        found: Found<'_>,
        parts: &Parts,
        body: Incoming,
    ) -> Result<Response<AnswerBody>, Error> {
        let stays = found.face.is_served_to_the_end || found.who() == Who::Anybody;
        let _arriving = (!stays).then(|| host.arrives());
        if !stays && host.is_draining() {
            return Err(Refusal::Draining.into());
        }
        let caller = gate::let_in(host, parts, found.who()).await?;
        let (route, open) = found.route.map_err(|missing| missing.error(parts))?;
        let path = open.into_iter().map(request::decode).collect::<Result<_, _>>()?;
        let query = Query::parse(&target::query(&parts.uri), route.query, found.face.is_lenient)?;
        let body = match parts.method {
            Method::GET => Bytes::new(),
            _ => incoming::whole(body, host.config.max_body).await?,
        };
        let (host, headers) = (host.clone(), parts.headers.clone());
        (route.handler)(ApiRequest { api: self.clone(), host, caller, path, query, headers, body }).await
    }
}
