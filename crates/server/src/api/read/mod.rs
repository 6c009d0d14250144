//! The read API below `/v1`: runs, attempts, entries, iterations, jobs and events, as the page, `watch` and a fleet's
//! command line read them. Nothing here writes.
//!
//! Times are microseconds since the Unix epoch, amounts whole numbers of the unit in their name. `docs/reference/openapi.json`
//! describes the routes; a test compares it with [`ROUTES`].

mod attempts;
mod entries;
mod events;
pub mod exchange;
mod jobs;
pub mod plans;
mod progress;
pub mod resume_tax;
pub mod rows;
mod runs;
pub mod show;
mod stream;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, header, request::Parts};
use outlast_core::{
    engine,
    store::{self, RunView, Store},
    words::id::{RunId, RunNo, Seq},
};
use serde_json::Value;

use crate::{
    api::{
        query::{self, Query},
        segments,
        state::refused,
    },
    proxy::host::Host,
    state::Error,
    wire::body::{AnswerBody, JSON, unkept},
};

/// Operation that a route serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    Runs,
    Summary,
    Attempts,
    Entries,
    Entry,
    Raw,
    Stream,
    Iterations,
    Items,
    Jobs,
    Events,
    ResumeTax,
    Rows,
}

/// Route of the read API, by GET. `{…}` in the path is one segment, percent-encoded.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub path: &'static str,
    pub does: Does,
    /// Query parameters of the route. Any other is refused.
    pub query: &'static [&'static str],
}

const fn route(path: &'static str, does: Does, query: &'static [&'static str]) -> Route {
    Route { path, does, query }
}

pub const ROUTES: &[Route] = &[
    route("/v1/runs", Does::Runs, &["status", "name", "tag", "since", "until", "cursor", "limit"]),
    route("/v1/runs/{id}/summary", Does::Summary, &[]),
    route("/v1/runs/{id}/attempts", Does::Attempts, &["died"]),
    route("/v1/runs/{id}/entries", Does::Entries, &["kind", "state", "attempt", "key", "after", "limit"]),
    route("/v1/runs/{id}/entries/{seq}", Does::Entry, &[]),
    route("/v1/runs/{id}/entries/{seq}/raw", Does::Raw, &["side"]),
    route("/v1/runs/{id}/entries/{seq}/stream", Does::Stream, &["from"]),
    route("/v1/runs/{id}/iterations", Does::Iterations, &[]),
    route("/v1/runs/{id}/resume_tax", Does::ResumeTax, &[]),
    route("/v1/runs/{id}/items", Does::Items, &["standing", "after", "limit", "values"]),
    route("/v1/jobs", Does::Jobs, &["status", "name", "tag", "since", "until", "cursor", "limit"]),
    route("/v1/events", Does::Events, &["run", "kind", "after", "limit", "progress"]),
    route("/v1/rows/{what}", Does::Rows, rows::QUERY),
];

/// Finds the route of a request, and returns the values of its `{…}` segments, not decoded; `None` if no route fits. A
/// segment must not be empty.
pub fn find<'a>(method: &Method, path: &'a str) -> Option<(&'static Route, Vec<&'a str>)> {
    let open = |route: &Route| segments::open(route.path, path).filter(|open| !open.contains(&""));
    let mut routes = ROUTES.iter().filter(|_| *method == Method::GET);
    routes.find_map(|route| Some((route, open(route)?)))
}

/// Caller of a request, by the runs that it may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    All,
    /// Only this run, whose token the caller has.
    Run(RunNo),
}

/// Request that is being answered: who reads, the query, and the values in its path.
pub(crate) struct ReadRequest<'a> {
    host: &'a Arc<Host>,
    reader: Reader,
    query: Query,
    /// Values of the path's `{…}` segments, decoded.
    path: Vec<String>,
}

/// Answers a request of a route. `reader`: the caller, checked before. `parts`: the request's head without run tokens.
pub(crate) async fn answer(host: &Arc<Host>, reader: Reader, parts: &Parts) -> Response<AnswerBody> {
    answered(host, reader, parts).await.unwrap_or_else(|e| refused(&e))
}

async fn answered(host: &Arc<Host>, reader: Reader, parts: &Parts) -> Result<Response<AnswerBody>, Error> {
    let (route, segments) = find(&parts.method, parts.uri.path())
        .ok_or_else(|| Error::NoRoute { method: parts.method.to_string(), path: String::new() })?;
    let path = segments.into_iter().map(query::decode).collect::<Result<_, _>>()?;
    let query = Query::read(parts.uri.query().unwrap_or_default(), route.query)?;
    let asked = ReadRequest { host, reader, query, path };
    match route.does {
        Does::Runs => runs::list(asked, false).await,
        Does::Jobs => runs::list(asked, true).await,
        Does::Summary => runs::summary(asked).await,
        Does::Attempts => attempts::list(asked).await,
        Does::Iterations => attempts::iterations(asked).await,
        Does::Entries => entries::list(asked).await,
        Does::Entry => entries::one(asked).await,
        Does::Raw => entries::raw(asked).await,
        Does::Stream => stream::stream(asked).await,
        Does::Items => jobs::items(asked).await,
        Does::Events => events::events(asked, parts).await,
        Does::ResumeTax => resume_tax::of_run(asked).await,
        Does::Rows => rows::rows(asked).await,
    }
}

impl ReadRequest<'_> {
    /// Reads the run that the path names. Errors: `unknown_run`; `foreign_run` for the bearer of another run's token.
    async fn run(&self) -> Result<RunView, Error> {
        self.named(self.path.first().map_or("", String::as_str)).await
    }

    /// Reads the run that `text` names. Errors: as for `run`.
    async fn named(&self, text: &str) -> Result<RunView, Error> {
        let unknown = || {
            let id = text.chars().take(140).collect();
            Error::from(store::Error::from(engine::Error::UnknownRun { id }))
        };
        let id = RunId::new(text).map_err(|_| unknown())?;
        let found = self
            .read(move |store| match store.run_no(&id)? {
                Some(no) => store.run(no),
                None => Ok(None),
            })
            .await?;
        match (self.reader, found) {
            (Reader::All, found) => found.ok_or_else(unknown),
            (Reader::Run(own), Some(view)) if view.run.no == own => Ok(view),
            (Reader::Run(_), _) => Err(Error::OwnRunOnly),
        }
    }

    /// Returns the entry number that the path names. Errors: `unknown_entry` if it is no number.
    fn seq(&self, view: &RunView) -> Result<Seq, Error> {
        let text = self.path.get(1).map_or("", String::as_str);
        let none = || unknown_entry(view, text);
        text.parse().ok().filter(|seq| *seq > 0).map(Seq).ok_or_else(none)
    }

    /// Runs `look` on a blocking thread: the reads of a store block.
    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&dyn Store) -> Result<T, store::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let store = self.host.store.clone();
        let read = tokio::task::spawn_blocking(move || look(&*store)).await;
        Ok(read.map_err(|_| store::Error::Closed)??)
    }
}

fn unknown_entry(view: &RunView, entry: &str) -> Error {
    let entry = entry.chars().take(20).collect();
    Error::UnknownEntry { run: view.run.id.to_string(), entry, last: view.run.next_seq.0 - 1 }
}

/// Parses a list of words that are separated by commas. Errors: `bad_request`, which names the words that are known.
fn words<T: Copy>(
    query: &Query,
    name: &str,
    known: &[T],
    word: impl Fn(T) -> &'static str,
) -> Result<Vec<T>, Error> {
    let Some(text) = query.text(name) else { return Ok(Vec::new()) };
    let parse = |one: &str| {
        known.iter().copied().find(|k| word(*k) == one).ok_or_else(|| {
            let known: Vec<&str> = known.iter().map(|k| word(*k)).collect();
            Error::BadRequest(format!("{name} is {one:?}, and some of {} are wanted", known.join(", ")))
        })
    };
    text.split(',').map(parse).collect()
}

/// Returns an answer in JSON.
fn json(body: &Value) -> Result<Response<AnswerBody>, Error> {
    Ok(of_type(body.to_string(), JSON))
}

fn of_type(body: impl Into<Bytes>, content_type: &'static str) -> Response<AnswerBody> {
    let mut response = unkept(200, content_type, body);
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_at_most_one_route() {
        let check = |path: &str, want: Option<(Does, &[&str])>| {
            let found = find(&Method::GET, path);
            assert_eq!(found.as_ref().map(|(r, s)| (r.does, s.as_slice())), want, "{path}");
            assert!(find(&Method::POST, path).is_none(), "{path}");
        };
        check("/v1/runs", Some((Does::Runs, &[])));
        check("/v1/runs/r/entries", Some((Does::Entries, &["r"])));
        check("/v1/runs/r/entries/7", Some((Does::Entry, &["r", "7"])));
        check("/v1/runs/r/entries/7/raw", Some((Does::Raw, &["r", "7"])));
        check("/v1/runs/r/entries/7/stream", Some((Does::Stream, &["r", "7"])));
        check("/v1/runs/r", None);
        check("/v1/runs//summary", None);
        check("/v1/runs/", None);
    }
}
