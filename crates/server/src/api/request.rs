//! A request on its way through a route of ours.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use outlast_core::{
    engine::{self, Actor, Asker},
    store::{self, RunView, Store},
    words::{RunId, Seq},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{Api, gate::Caller, query::Query};
use crate::{
    proxy::host::Host,
    state::{Error, Writer},
    wire::{
        body::{AnswerBody, JSON, unkept},
        shown::Shown,
    },
};

/// Answer of a route's handler. Each face has errors of its own.
pub(crate) type Answered<E = Error> = Result<Response<AnswerBody>, E>;

/// Request whose caller may use its route.
pub(crate) struct ApiRequest {
    pub api: Api,
    pub host: Arc<Host>,
    pub caller: Caller,
    /// Values of the path's `{…}` segments, decoded.
    pub path: Vec<String>,
    pub query: Query,
    pub headers: HeaderMap,
    /// Empty for a GET, whose body nobody reads.
    pub body: Bytes,
}

impl ApiRequest {
    /// Returns the first value in the path.
    pub fn name(&self) -> &str {
        self.path.first().map_or("", String::as_str)
    }

    /// Reads the run that the path names. Errors: `unknown_run`; `foreign_run` for the bearer of another run's token.
    pub async fn run(&self) -> Result<RunView, Error> {
        self.named(self.name()).await
    }

    /// Reads the run with this id. Errors: as for `run`.
    pub async fn named(&self, id: &str) -> Result<RunView, Error> {
        let found = match RunId::new(id) {
            Err(_) => None,
            Ok(id) => {
                self.read(move |store| match store.run_no(&id)? {
                    Some(no) => store.run(no),
                    None => Ok(None),
                })
                .await?
            }
        };
        match (self.caller.only_run(), found) {
            (None, Some(view)) => Ok(view),
            (Some(own), Some(view)) if view.run.no == own => Ok(view),
            // Whether another run exists is not told either.
            (Some(_), _) => Err(Error::OwnRunOnly),
            (None, None) => {
                let id = id.chars().take(140).collect();
                Err(store::Error::from(engine::Error::UnknownRun { id }).into())
            }
        }
    }

    /// Returns the entry number that the path names. Errors: `unknown_entry` if it is no number.
    pub fn seq(&self, view: &RunView) -> Result<Seq, Error> {
        let text = self.path.get(1).map_or("", String::as_str);
        let seq = text.parse().ok().filter(|seq| *seq > 0).map(Seq);
        seq.ok_or_else(|| unknown_entry(view, text))
    }

    /// Runs `look` on a blocking thread: the reads of a store block.
    pub async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&dyn Store) -> Result<T, store::Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.api.desk.read(look).await
    }

    /// Parses the body, a JSON object. An empty body counts as `{}`. Errors: `bad_request`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let body = self.body.trim_ascii();
        let body = if body.is_empty() { b"{}" } else { body };
        if !body.starts_with(b"{") {
            return Err(Error::BadRequest("the body has to be a JSON object".into()));
        }
        serde_json::from_slice(body)
            .map_err(|e| Error::BadRequest(format!("the body is not what is wanted here: {e}")))
    }

    /// Returns the name under which the caller's acts are recorded.
    pub fn actor(&self) -> String {
        match &self.caller {
            Caller::Api(shown) => shown.actor(&self.headers),
            // A run's own writes name the run, and are no acts.
            Caller::Run(_) => Shown::Nothing.actor(&self.headers),
        }
    }

    /// Returns in whose name the request writes.
    pub fn writer(&self) -> Writer {
        match self.caller {
            Caller::Api(_) => Writer::NoRun,
            Caller::Run(Asker::Attempt { actor, slot }) => Writer::Run(Some((actor, slot))),
            Caller::Run(Asker::Token(claims)) => {
                let instance = self.host.node.instance();
                Writer::Run(Some((Actor { run: claims.run, attempt: claims.attempt, instance }, claims.slot)))
            }
        }
    }
}

/// Returns the error of an entry that a run does not have.
pub(crate) fn unknown_entry(view: &RunView, entry: &str) -> Error {
    let entry = entry.chars().take(20).collect();
    Error::UnknownEntry { run: view.run.id.to_string(), entry, last: view.run.next_seq.0 - 1 }
}

/// Returns an answer in JSON.
pub(crate) fn json<E: From<Error>>(body: &impl Serialize) -> Answered<E> {
    let text = serde_json::to_vec(body).map_err(|e| Error::BadValue(e.to_string()))?;
    Ok(of_type(text, JSON))
}

/// Returns an answer in JSON that tells that something was made.
pub(crate) fn created<E: From<Error>>(body: &impl Serialize) -> Answered<E> {
    let mut response = json::<E>(body)?;
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

/// Returns an answer that no browser takes for a document of another type.
pub(crate) fn of_type(body: impl Into<Bytes>, content_type: &'static str) -> Response<AnswerBody> {
    let mut response = unkept(200, content_type, body);
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
