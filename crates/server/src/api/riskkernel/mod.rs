//! RiskKernel's REST surface, for its published SDK: runs, steps, checkpoints, approvals, facts.
//!
//! A run created here is a run like any other, and a run that a header created is found here.
//! The engine decides budgets, halts and counts. `docs/guides/riskkernel.md` describes how to migrate.

mod amount;
mod approval;
mod checkpoint;
mod error;
mod memory;
mod routes;
mod run;
mod show;
mod tokens;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, request::Parts};
use outlast_core::{
    engine::{
        self,
        actor::Actor,
        run::enter::{Enter, Entered},
    },
    store::{self, Ask as _, Durability, RunView},
    words::id::{RunId, RunNo},
};
use serde::Serialize;
use serde_json::json;

use self::tokens::Tokens;
pub use self::{
    error::Error,
    routes::{ROUTES, Route, Verb},
};
use crate::{
    api::{
        approvals::By,
        query::{self, Query},
    },
    proxy::{
        host::Host,
        seat::{self, Act},
    },
    state::{self, StateDesk},
    version::{COMMIT, DATE, VERSION},
    wire::{
        body::{AnswerBody, JSON, response, unkept},
        who::{actor, api, bears_token},
    },
};

/// RiskKernel's routes over one store. Cheap to clone.
#[derive(Clone)]
pub struct RiskKernel {
    desk: Arc<StateDesk>,
    tokens: Arc<Tokens>,
}

/// A request on its way through a route.
struct RiskKernelRequest<'a> {
    face: &'a RiskKernel,
    host: &'a Arc<Host>,
    by: By,
    /// Caller in whose name the request acts, as the journal records it.
    actor: String,
    query: Query,
    /// Values of the path's `{…}` segments, decoded.
    path: Vec<String>,
    body: Bytes,
}

/// Request whose caller and route are checked: its route, and the values of its path's `{…}` segments.
pub(crate) struct LetIn {
    route: &'static Route,
    by: By,
    actor: String,
    path: Vec<String>,
    query: Query,
}

impl RiskKernel {
    pub fn new(desk: Arc<StateDesk>) -> RiskKernel {
        RiskKernel { desk, tokens: Arc::default() }
    }

    /// Returns whether a path is below RiskKernel's routes, even if no route has this path.
    pub fn takes(path: &str) -> bool {
        routes::takes(path)
    }

    /// Checks the caller and finds the route, before the body is read. Probes need no token.
    pub(crate) fn let_in(&self, host: &Host, parts: &Parts) -> Result<LetIn, Error> {
        let path = parts.uri.path();
        let found = routes::find(&parts.method, path);
        let mut protected = false;
        if !found.as_ref().is_some_and(|(route, _)| route.verb.is_probe()) {
            protected = api(&host.config.access, &parts.headers)?.is_a_persons();
            if bears_token(&parts.uri, &parts.headers)? {
                return Err(state::Error::NoRunDecides.into());
            }
            if host.is_draining() {
                return Err(Error::Draining);
            }
        }
        let (route, segments) = found.ok_or_else(|| Error::NoRoute {
            method: parts.method.to_string(),
            path: path.chars().take(120).collect(),
        })?;
        let path = segments.into_iter().map(query::decode).collect::<Result<_, _>>()?;
        let query = Query::known(parts.uri.query().unwrap_or_default(), route.query)?;
        let by = By::Api { protected };
        let actor = actor(&host.config.access, &parts.headers);
        Ok(LetIn { route, by, actor, path, query })
    }

    pub(crate) async fn answer(&self, host: &Arc<Host>, let_in: LetIn, body: Bytes) -> Response<AnswerBody> {
        let LetIn { route, by, actor, path, query } = let_in;
        let asked = RiskKernelRequest { face: self, host, by, actor, query, path, body };
        let answered = match route.verb {
            Verb::CreateRun => run::create(asked).await,
            Verb::GetRun => run::get(asked).await,
            Verb::Step => run::step(asked).await,
            Verb::Cancel => run::cancel(asked).await,
            Verb::Complete => run::complete(asked).await,
            Verb::SaveCheckpoint => checkpoint::save(asked).await,
            Verb::LatestCheckpoint => checkpoint::latest(asked).await,
            Verb::RequestApproval => approval::request(asked).await,
            Verb::DecideApproval => approval::decide(asked).await,
            Verb::ToolCalls => approval::tool_calls(asked).await,
            Verb::ListFacts => memory::facts(asked).await,
            Verb::PutFact => memory::put_fact(asked).await,
            Verb::ListMemory => memory::list(asked),
            Verb::ReadMemory => memory::read(asked),
            Verb::Healthz => answered(StatusCode::OK, &json!({ "status": "ok" })),
            Verb::Version => answered(StatusCode::OK, &version()),
        };
        answered.unwrap_or_else(|e| refused(&e))
    }
}

impl RiskKernelRequest<'_> {
    /// Returns the id of the run that the path names. Errors: `unknown_run`.
    fn run_id(&self) -> Result<RunId, Error> {
        let text = self.path.first().map_or("", String::as_str);
        RunId::new(text).map_err(|_| unknown(text))
    }

    /// Reads the run that the path names. Errors: `unknown_run`.
    async fn run(&self) -> Result<RunView, Error> {
        self.look_up(self.run_id()?).await
    }

    /// Reads the run that the path names, to act on it. Errors: `unknown_run`; `others_run` without an API token.
    async fn run_to(&self, act: Act) -> Result<RunView, Error> {
        let view = self.run().await?;
        if !matches!(self.by, By::Api { protected: true }) {
            let asked = view.clone();
            self.face.desk.read(move |store| seat::may(act, store, &asked)).await??;
        }
        Ok(view)
    }

    async fn look_up(&self, id: RunId) -> Result<RunView, Error> {
        let of = id.clone();
        let found = self
            .face
            .desk
            .read(move |store| match store.run_no(&of)? {
                Some(no) => store.run(no),
                None => Ok(None),
            })
            .await?;
        found.ok_or_else(|| unknown(id.as_str()))
    }

    /// Finds or opens the run's attempt for callers without a label, the same one that their proxied calls use.
    async fn enter(&self, run: RunNo) -> Result<(Actor, Entered), Error> {
        let node = &self.host.node;
        let enter = |instance| {
            let enter = Enter { run, label: None, instance };
            self.host.store.ask(enter, Durability::Synced)
        };
        let mut instance = node.instance();
        let mut entered = enter(instance).await;
        if entered == Err(store::Error::Engine(engine::Error::InstanceDead)) {
            // The process was stopped for longer than its lease; it goes on under a new number.
            node.register_anew(instance).await?;
            instance = node.instance();
            entered = enter(instance).await;
        }
        let entered = entered?;
        Ok((Actor { run, attempt: entered.attempt, instance }, entered))
    }

    /// Translates the error of a run's work: a halted or cancelled run is reported in RiskKernel's terms.
    async fn working<T>(&self, run: RunNo, done: Result<T, Error>) -> Result<T, Error> {
        let Err(why) = done else { return done };
        match self.face.desk.read(move |store| store.run(run)).await? {
            Some(view) => Err(Error::of_work(why, &view.run)),
            None => Err(why),
        }
    }

    /// Parses the request's JSON body. An empty body counts as `{}`. Errors: `bad_request`.
    fn json<'b, T: serde::Deserialize<'b>>(&'b self) -> Result<T, Error> {
        let body = self.body.trim_ascii();
        let body = if body.is_empty() { b"{}" } else { body };
        if !body.starts_with(b"{") {
            return Err(Error::BadRequest("the body has to be a JSON object".into()));
        }
        serde_json::from_slice(body)
            .map_err(|e| Error::BadRequest(format!("the body is not what is wanted here: {e}")))
    }
}

fn unknown(id: &str) -> Error {
    let id = id.chars().take(140).collect();
    Error::from(store::Error::from(engine::Error::UnknownRun { id }))
}

fn version() -> serde_json::Value {
    let known = |what: Option<&'static str>| what.unwrap_or("unknown");
    json!({ "version": VERSION, "commit": known(COMMIT), "date": known(DATE) })
}

fn answered(status: StatusCode, body: &impl Serialize) -> Result<Response<AnswerBody>, Error> {
    let text = serde_json::to_vec(body).map_err(|e| Error::Unwritable(e.to_string()))?;
    Ok(unkept(status.as_u16(), JSON, text))
}

/// Returns the response for an error. The hint is part of the message, because the SDK shows nothing else.
pub(crate) fn refused(error: &Error) -> Response<AnswerBody> {
    let message = match error.hint() {
        Some(hint) => format!("{error} ({hint})"),
        None => error.to_string(),
    };
    let body = json!({ "code": error.code(), "message": message });
    let mut response = response(error.status(), JSON, body.to_string());
    let headers = response.headers_mut();
    if let Ok(code) = HeaderValue::from_str(error.code()) {
        headers.insert("x-outlast-code", code);
    }
    response
}
