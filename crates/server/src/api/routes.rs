//! Table of our own routes: method, path, who may, query parameters, handler. A new route is a row here and its handler.
//!
//! No router of others': keys of the state may be empty segments, `/run/TOKEN` may stand before some paths and not before
//! others, and a path that no row has may still be a provider's.

use std::{future::Future, pin::Pin};

use http::{Method, Uri, request::Parts};
use outlast_core::engine::{Tell, Word};

use super::{
    acts, approvals,
    error::{Error, Shape},
    fleet,
    gate::Who,
    probes, read,
    request::{Answered, ApiRequest},
    riskkernel, rows, session, state,
};
use crate::{
    state::Error as StateError,
    wire::{refuse::Refusal, target},
};

type Answering = Pin<Box<dyn Future<Output = Answered<Error>> + Send>>;

/// Route of ours. `{…}` in the path is one segment, percent-encoded.
pub struct Route {
    pub method: Method,
    pub path: &'static str,
    pub who: Who,
    pub query: &'static [&'static str],
    pub(super) handler: fn(ApiRequest) -> Answering,
}

/// Routes for clients of one kind, which are told errors in one shape.
pub struct Face {
    pub routes: &'static [Route],
    pub shape: Shape,
    /// Prefix of paths that belong to these routes, whether a row has them or not, and who is told that none does.
    roots: &'static [&'static str],
    /// Callers that are told that a path below `roots` has no row.
    who: Who,
    /// Whether unknown query parameters are ignored, as RiskKernel does. Elsewhere they are refused, so that a mistyped
    /// one is not ignored.
    pub(super) is_lenient: bool,
    /// Whether the routes are served while the server drains, for those who wait for its end.
    pub(super) is_served_to_the_end: bool,
}

/// Writes rows of the table. A handler takes the request, and what stands in its parentheses.
macro_rules! routes {
    ($($method:ident $path:literal $who:ident [$($query:literal)*] $($handler:ident)::+ $(($arg:expr))?;)*) => {
        &[$(Route {
            method: Method::$method,
            path: $path,
            who: Who::$who,
            query: &[$($query),*],
            handler: |asked| {
                Box::pin(async move { $($handler)::+(asked $(, $arg)?).await.map_err(Error::from) })
            },
        }),*]
    };
}

/// Face of our own clients, with the strictest of all rules.
const OURS: Face = Face {
    routes: &[],
    shape: Shape::Ours,
    roots: &[],
    who: Who::OwnRun,
    is_lenient: false,
    is_served_to_the_end: false,
};

pub static PROBES: Face = Face {
    routes: routes! {
        GET "/livez"   Anybody [] probes::livez;
        GET "/readyz"  Anybody [] probes::readyz;
        GET "/metrics" Api     [] probes::metrics;
    },
    shape: Shape::Sdk,
    who: Who::Anybody,
    is_lenient: true,
    is_served_to_the_end: true,
    ..OURS
};

pub static READ: Face = Face {
    routes: routes! {
        GET "/v1/runs" OwnRun ["status" "name" "tag" "directory" "since" "until" "cursor" "limit"] read::runs::list(false);
        GET "/v1/jobs" OwnRun ["status" "name" "tag" "directory" "since" "until" "cursor" "limit"] read::runs::list(true);
        GET "/v1/runs/{id}/summary" OwnRun [] read::runs::summary;
        GET "/v1/runs/{id}/attempts" OwnRun ["died" "lines"] read::runs::attempts;
        GET "/v1/runs/{id}/iterations" OwnRun [] read::runs::iterations;
        GET "/v1/runs/{id}/entries" OwnRun ["kind" "state" "attempt" "key" "after" "limit" "gist"] read::entries::list;
        GET "/v1/runs/{id}/entries/{seq}" OwnRun [] read::entries::one;
        GET "/v1/runs/{id}/entries/{seq}/raw" OwnRun ["side"] read::entries::raw;
        GET "/v1/runs/{id}/entries/{seq}/files" OwnRun [] read::entries::files;
        GET "/v1/runs/{id}/entries/{seq}/stream" OwnRun ["from"] read::stream::stream;
        GET "/v1/runs/{id}/resume_tax" OwnRun [] read::runs::resume_tax;
        GET "/v1/runs/{id}/items" OwnRun ["standing" "after" "limit" "values"] read::runs::items;
        GET "/v1/events" OwnRun ["run" "kind" "after" "limit" "progress"] read::events::events;
        GET "/v1/rows/store" OwnRun [] rows::about;
        POST "/v1/rows/store" OwnRun [] rows::post;
    },
    is_served_to_the_end: true,
    ..OURS
};

pub static FLEET: Face = Face {
    routes: routes! {
        GET "/v1/budgets" Api [] fleet::budgets;
        GET "/v1/plans" Api [] fleet::plans;
        GET "/v1/spend" Api ["by" "since" "until"] fleet::spend;
    },
    shape: Shape::Sdk,
    who: Who::Api,
    is_served_to_the_end: true,
    ..OURS
};

pub static ACTS: Face = Face {
    routes: routes! {
        POST "/v1/runs/{id}/stop" Person [] acts::on_run(acts::order(|run| Tell { run, word: Word::Stop }));
        POST "/v1/runs/{id}/wake" Person [] acts::on_run(acts::order(|run| Tell { run, word: Word::Wake }));
        POST "/v1/runs/{id}/budget" Person [] acts::on_run(acts::budget);
        POST "/v1/runs/{id}/retry" Person [] acts::on_run(acts::retry);
        POST "/v1/runs/{id}/fork" Person [] acts::on_run(acts::fork);
        POST "/v1/budgets/{name}/set" Person [] acts::on_budget(fleet::set_budget);
        POST "/v1/budgets/{name}/raise" Person [] acts::on_budget(fleet::raise_budget);
        POST "/v1/budgets/{name}/remove" Person [] acts::on_budget(fleet::remove_budget);
    },
    who: Who::Person,
    is_lenient: true,
    ..OURS
};

pub static APPROVALS: Face = Face {
    routes: routes! {
        GET  "/v1/approvals" OwnRun ["status" "run" "limit"] approvals::list;
        POST "/v1/approvals" Asker [] approvals::ask_for;
        GET  "/v1/approvals/{id}" OwnRun [] approvals::get;
        POST "/v1/approvals/{id}" OwnRun [] approvals::decide;
        GET  "/v1/policies" OwnRun [] approvals::policies::list;
        POST "/v1/policies" OwnRun [] approvals::policies::put;
        GET  "/v1/policies/{name}" OwnRun [] approvals::policies::get;
    },
    shape: Shape::Both,
    ..OURS
};

pub static SESSIONS: Face = Face {
    routes: routes! {
        POST "/v1/run_sessions" OwnRun [] session::open;
        POST "/v1/run_sessions/{session}" OwnRun [] session::act;
    },
    roots: &["/v1/run_sessions"],
    // What a session has open is recorded to the end.
    is_served_to_the_end: true,
    ..OURS
};

pub static STATE: Face = Face {
    routes: routes! {
        GET    "/v1/state/{namespace}/{agent}/{key}" Writer ["version" "commit" "time"] state::get;
        PUT    "/v1/state/{namespace}/{agent}/{key}" Writer ["expected_version" "transaction"] state::put;
        DELETE "/v1/state/{namespace}/{agent}/{key}" Writer ["expected_version" "transaction"] state::delete;
        GET    "/v1/state/{namespace}/{agent}/{key}/history" Writer ["after" "limit"] state::reads(state::ask::history);
        GET    "/v1/state/keys" Writer [
            "namespace" "agent" "prefix" "commit" "time" "cursor" "limit"
        ] state::reads(state::ask::keys);
        GET    "/v1/state/scan" Writer [
            "namespace" "agent" "prefix" "commit" "time" "cursor" "limit"
        ] state::reads(state::ask::scan);
        GET    "/v1/state/namespaces" Writer ["after" "limit"] state::reads(state::ask::namespaces);
        GET    "/v1/state/agents" Writer ["namespace" "after" "limit"] state::reads(state::ask::agents);
        GET    "/v1/state/replay" Writer [
            "namespace" "agent" "from_commit" "to_commit" "from_time" "to_time" "after" "follow"
        ] state::replay::replay;
        GET    "/v1/state/resume_point" Writer ["namespace" "agent" "prefix"] state::reads(state::ask::resume_point);
        POST   "/v1/state/transaction" Writer [] state::transact;
        GET    "/v1/state/transaction" Writer ["id"] state::outcome;
        GET    "/v1/state/keep" Writer ["namespace"] state::kept;
        PUT    "/v1/state/keep" Writer ["namespace"] state::keep;
    },
    roots: &[STATE_ROOT],
    who: Who::Writer,
    ..OURS
};

/// Prefix of the state's paths. Their `{…}` segments may be empty: so may a namespace, an agent and a key.
const STATE_ROOT: &str = "/v1/state/";

pub static RISKKERNEL: Face = Face {
    routes: routes! {
        POST "/v1/runs" NoRun [] riskkernel::run::create;
        GET  "/v1/runs/{id}" NoRun [] riskkernel::run::get;
        POST "/v1/runs/{id}/steps" NoRun [] riskkernel::run::step;
        POST "/v1/runs/{id}/cancel" NoRun [] riskkernel::run::cancel;
        POST "/v1/runs/{id}/complete" NoRun [] riskkernel::run::complete;
        POST "/v1/runs/{id}/checkpoints" NoRun [] riskkernel::checkpoint::save;
        GET  "/v1/checkpoints/{run_id}" NoRun [] riskkernel::checkpoint::latest;
        POST "/v1/runs/{id}/approvals" NoRun [] riskkernel::approval::request;
        POST "/v1/runs/{id}/approve" NoRun [] riskkernel::approval::decide;
        GET  "/v1/runs/{id}/tool-calls" NoRun [] riskkernel::approval::tool_calls;
        GET  "/v1/memory/facts" NoRun ["namespace"] riskkernel::memory::facts;
        PUT  "/v1/memory/facts" NoRun [] riskkernel::memory::put_fact;
        GET  "/v1/memory" NoRun ["namespace" "q"] riskkernel::memory::list;
        GET  "/v1/memory/entry" NoRun ["name" "namespace"] riskkernel::memory::read;
        GET  "/healthz" Anybody [] riskkernel::healthz;
        GET  "/version" Anybody [] riskkernel::version;
    },
    shape: Shape::RiskKernel,
    roots: &["/v1/runs", "/v1/checkpoints", "/v1/memory", "/healthz", "/version"],
    who: Who::NoRun,
    is_lenient: true,
    ..OURS
};

/// All our routes.
pub static FACES: [&Face; 8] = [&PROBES, &READ, &FLEET, &ACTS, &APPROVALS, &SESSIONS, &STATE, &RISKKERNEL];

/// Place of a request in the table.
pub(crate) struct Found<'a> {
    pub face: &'static Face,
    /// Route, and the values of its path's `{…}` segments, not decoded.
    pub(super) route: Result<(&'static Route, Vec<&'a str>), Missing>,
}

/// Reason for which a path of ours has no route for a request.
#[derive(Clone, Copy)]
pub(super) enum Missing {
    /// The path is below a face's roots.
    Route,
    /// The path has a route, with another method.
    Method(&'static str),
}

impl Found<'_> {
    pub(super) fn who(&self) -> Who {
        self.route.as_ref().map_or(self.face.who, |(route, _)| route.who)
    }
}

impl Missing {
    pub(super) fn error(self, parts: &Parts) -> Error {
        let method = parts.method.to_string();
        match self {
            Missing::Route => {
                let path = target::path(&parts.uri).chars().take(120).collect();
                StateError::NoRoute { method, path }.into()
            }
            Missing::Method(path) => Refusal::ReadOnly { method, path }.into(),
        }
    }
}

/// Finds a request's place in the table; `None` if the path is none of ours. `only_run`: the listener serves one run.
pub(crate) fn find<'a>(method: &Method, uri: &'a Uri, only_run: bool) -> Option<Found<'a>> {
    let (bare, behind_token) = (uri.path(), target::path(uri));
    // A run token in the path counts where a run may ask.
    let path = |who: Who| if who.may_be_run(only_run) { behind_token } else { bare };
    let rows = FACES.iter().flat_map(|face| face.routes.iter().map(move |route| (*face, route)));
    let found = rows.filter(|(_, route)| route.method == *method).find_map(|(face, route)| {
        Some(Found { face, route: Ok((route, open(route.path, path(route.who))?)) })
    });
    if found.is_some() {
        return found;
    }
    let is_below = |face: &Face| {
        let below = |root: &str| {
            let rest = path(face.who).strip_prefix(root);
            rest.is_some_and(|rest| rest.is_empty() || root.ends_with('/') || rest.starts_with('/'))
        };
        face.roots.iter().any(|root| below(root))
    };
    if let Some(face) = FACES.iter().find(|face| is_below(face)) {
        return Some(Found { face, route: Err(Missing::Route) });
    }
    let of_fleet = FLEET.routes.iter().find(|route| route.path == bare)?;
    Some(Found { face: &FLEET, route: Err(Missing::Method(of_fleet.path)) })
}

/// Returns the values of the `{…}` segments of `route` in `path`, not decoded; `None` if the path does not match.
fn open<'a>(route: &str, path: &'a str) -> Option<Vec<&'a str>> {
    // Every request is held against every row: what does not fit allocates nothing.
    let (mut wanted, mut had) = (route.split('/'), path.split('/'));
    let may_be_empty = route.starts_with(STATE_ROOT);
    let mut open = Vec::new();
    loop {
        match (wanted.next(), had.next()) {
            (None, None) => return Some(open),
            (Some(wanted), Some(had)) if wanted.starts_with('{') && (may_be_empty || !had.is_empty()) => {
                open.push(had)
            }
            (Some(wanted), Some(had)) if wanted == had => {}
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: &Method, path: &str, want: Option<(&str, &[&str])>) {
        let uri = path.parse().unwrap();
        let found = find(method, &uri, false).and_then(|found| found.route.ok());
        assert_eq!(found.as_ref().map(|(r, open)| (r.path, open.as_slice())), want, "{method} {path}");
    }

    #[test]
    fn a_path_has_at_most_one_route() {
        for (method, path, route, open) in [
            (Method::GET, "/v1/runs", "/v1/runs", &[][..]),
            (Method::POST, "/v1/runs", "/v1/runs", &[]),
            (Method::GET, "/v1/runs/r-1", "/v1/runs/{id}", &["r-1"]),
            (Method::POST, "/v1/runs/r/steps", "/v1/runs/{id}/steps", &["r"]),
            (Method::GET, "/v1/runs/r/entries", "/v1/runs/{id}/entries", &["r"]),
            (Method::GET, "/v1/runs/r/entries/7/raw", "/v1/runs/{id}/entries/{seq}/raw", &["r", "7"]),
            (Method::GET, "/run/token/v1/events", "/v1/events", &[]),
            (Method::POST, "/run/token/v1/approvals", "/v1/approvals", &[]),
            (Method::GET, "/v1/approvals/apr_1_2", "/v1/approvals/{id}", &["apr_1_2"]),
            (Method::GET, "/v1/memory/facts", "/v1/memory/facts", &[]),
            (Method::GET, "/v1/state/ns/a/k", "/v1/state/{namespace}/{agent}/{key}", &["ns", "a", "k"]),
            (Method::PUT, "/v1/state//a%2Fb/", "/v1/state/{namespace}/{agent}/{key}", &["", "a%2Fb", ""]),
            (
                Method::GET,
                "/v1/state/ns/a/history",
                "/v1/state/{namespace}/{agent}/{key}",
                &["ns", "a", "history"],
            ),
            (
                Method::GET,
                "/v1/state/n/a/k/history",
                "/v1/state/{namespace}/{agent}/{key}/history",
                &["n", "a", "k"],
            ),
        ] {
            check(&method, path, Some((route, open)));
            let rows = FACES.iter().flat_map(|face| face.routes).filter(|row| row.method == method);
            let fit = rows
                .filter(|row| super::open(row.path, target::path(&path.parse().unwrap())).is_some())
                .count();
            assert_eq!(fit, 1, "{method} {path}");
        }
        for path in
            ["/v1/runs/", "/v1/runs//summary", "/v1/approvals/", "/v1/approvals/a/b", "/v1/policies/a/b"]
        {
            check(&Method::GET, path, None);
        }
        for path in
            ["/v1/state/ns/a", "/run/token/v1/budgets", "/run/token/v1/state/n/a/k", "/run/token/livez"]
        {
            check(&Method::GET, path, None);
        }
        for (method, path) in [(Method::POST, "/v1/runs/r"), (Method::DELETE, "/v1/approvals/apr_1_2")] {
            check(&method, path, None);
        }
        check(&Method::HEAD, "/v1/runs", None);
    }

    #[test]
    fn what_stands_below_a_root_is_ours_and_nothing_else() {
        let check = |path: &str, want: bool| {
            assert_eq!(find(&Method::GET, &path.parse().unwrap(), false).is_some(), want, "{path}");
        };
        check("/v1/runs/r/no-such", true);
        check("/v1/state/a", true);
        check("/healthz/x", true);
        check("/v1/runsx", false);
        check("/v1/statehouse", false);
        check("/v1/approvalsx", false);
        check("/v1/chat/completions", false);
        check("/run/token/v1/state/a", false);
    }
}
