//! REST over the state, below `/v1/state/`. `docs/reference/openapi.json` describes it; a test compares it with
//! [`ROUTES`].
//!
//! Times are microseconds since the Unix epoch.

mod item;
mod keep;
mod list;
mod replay;
mod routes;
pub mod show;
mod transaction;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Response, request::Parts};
use serde::Serialize;
use serde_json::{Value, json};

pub use self::routes::{ROUTES, Route, Verb};
use super::query::{self, Query};
use crate::{
    state::{Error, StateDesk, Writer},
    wire::body::{AnswerBody, JSON, response, unkept},
};

/// REST routes of the state over one store. Cheap to clone. `door::state` checks access and finds the writer before.
#[derive(Clone)]
pub struct StateRoutes {
    desk: Arc<StateDesk>,
}

/// A request on its way through a route.
struct StateRequest<'a> {
    desk: &'a Arc<StateDesk>,
    writer: Writer,
    query: Query,
    /// Values of the path's `{…}` segments, decoded.
    path: Vec<String>,
    parts: &'a Parts,
    body: Bytes,
}

impl StateRoutes {
    pub fn new(desk: Arc<StateDesk>) -> StateRoutes {
        StateRoutes { desk }
    }

    /// Returns whether a path is below `/v1/state/`, even if no route has this path.
    pub fn takes(path: &str) -> bool {
        path.starts_with(routes::ROOT)
    }

    pub(crate) async fn answer(&self, writer: Writer, parts: &Parts, body: Bytes) -> Response<AnswerBody> {
        self.route(writer, parts, body).await.unwrap_or_else(|e| refused(&e))
    }

    async fn route(&self, writer: Writer, parts: &Parts, body: Bytes) -> Result<Response<AnswerBody>, Error> {
        let path = parts.uri.path();
        let (route, segments) = routes::find(&parts.method, path).ok_or_else(|| Error::NoRoute {
            method: parts.method.to_string(),
            path: path.chars().take(120).collect(),
        })?;
        let path = segments.into_iter().map(query::decode).collect::<Result<_, _>>()?;
        let query = Query::parse(parts.uri.query().unwrap_or_default(), route)?;
        let asked = StateRequest { desk: &self.desk, writer, query, path, parts, body };
        match route.verb {
            Verb::Get => item::get(asked).await,
            Verb::Put => item::put(asked).await,
            Verb::Delete => item::delete(asked).await,
            Verb::History => item::history(asked).await,
            Verb::Keys => list::keys(asked).await,
            Verb::Namespaces => list::namespaces(asked).await,
            Verb::Agents => list::agents(asked).await,
            Verb::Scan => list::scan(asked).await,
            Verb::ResumePoint => list::resume_point(asked).await,
            Verb::Replay => replay::replay(asked).await,
            Verb::Transact => transaction::transact(asked).await,
            Verb::Outcome => transaction::outcome(asked).await,
            Verb::Kept => keep::get(asked).await,
            Verb::Keep => keep::put(asked).await,
        }
    }
}

/// Returns the response for an error, the same for every route.
pub(crate) fn refused(error: &Error) -> Response<AnswerBody> {
    refused_with(error, json!({}))
}

/// Returns the response for an error, whose JSON has the members of `body` too.
pub(crate) fn refused_with(error: &Error, mut body: Value) -> Response<AnswerBody> {
    body["error"] = json!({
        "code": error.code(),
        "message": error.to_string(),
        "hint": error.hint(),
    });
    let mut response = response(error.class().http(), JSON, body.to_string());
    response.headers_mut().insert("x-outlast-code", HeaderValue::from_static(error.code()));
    response
}

pub(crate) fn answered(body: &impl Serialize) -> Result<Response<AnswerBody>, Error> {
    let text = serde_json::to_vec(body).map_err(|e| Error::BadValue(e.to_string()))?;
    Ok(unkept(200, JSON, text))
}
