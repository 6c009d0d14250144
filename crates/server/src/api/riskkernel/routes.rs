//! Table of RiskKernel's routes. The router uses it, and a test compares docs/reference/openapi.json with it.

use http::Method;

use crate::api::segments;

/// Operation that a route serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    CreateRun,
    GetRun,
    Step,
    Cancel,
    Complete,
    SaveCheckpoint,
    LatestCheckpoint,
    RequestApproval,
    DecideApproval,
    ToolCalls,
    ListFacts,
    PutFact,
    ListMemory,
    ReadMemory,
    Healthz,
    Version,
}

impl Verb {
    /// Returns whether the route is a probe, which concerns the server itself and no run.
    pub fn is_probe(self) -> bool {
        matches!(self, Verb::Healthz | Verb::Version)
    }
}

/// Route of RiskKernel's API. `{…}` in the path is one segment, percent-encoded.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub method: &'static str,
    pub path: &'static str,
    pub verb: Verb,
    /// Query parameters that the route reads. Others are ignored, as RiskKernel does.
    pub query: &'static [&'static str],
}

const fn route(method: &'static str, path: &'static str, verb: Verb) -> Route {
    Route { method, path, verb, query: &[] }
}

pub const ROUTES: &[Route] = &[
    route("POST", "/v1/runs", Verb::CreateRun),
    route("GET", "/v1/runs/{id}", Verb::GetRun),
    route("POST", "/v1/runs/{id}/steps", Verb::Step),
    route("POST", "/v1/runs/{id}/cancel", Verb::Cancel),
    route("POST", "/v1/runs/{id}/complete", Verb::Complete),
    route("POST", "/v1/runs/{id}/checkpoints", Verb::SaveCheckpoint),
    route("GET", "/v1/checkpoints/{run_id}", Verb::LatestCheckpoint),
    route("POST", "/v1/runs/{id}/approvals", Verb::RequestApproval),
    route("POST", "/v1/runs/{id}/approve", Verb::DecideApproval),
    route("GET", "/v1/runs/{id}/tool-calls", Verb::ToolCalls),
    Route { query: &["namespace"], ..route("GET", "/v1/memory/facts", Verb::ListFacts) },
    route("PUT", "/v1/memory/facts", Verb::PutFact),
    Route { query: &["namespace", "q"], ..route("GET", "/v1/memory", Verb::ListMemory) },
    Route { query: &["name", "namespace"], ..route("GET", "/v1/memory/entry", Verb::ReadMemory) },
    route("GET", "/healthz", Verb::Healthz),
    route("GET", "/version", Verb::Version),
];

/// Prefixes of paths that belong to RiskKernel's routes, whether there is such a route or not.
const ROOTS: [&str; 5] = ["/v1/runs", "/v1/checkpoints", "/v1/memory", "/healthz", "/version"];

pub fn takes(path: &str) -> bool {
    ROOTS
        .iter()
        .any(|root| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Finds the route of a request, and returns the values of its `{…}` segments, not decoded; `None` if no route fits. A
/// segment must not be empty.
pub fn find<'a>(method: &Method, path: &'a str) -> Option<(&'static Route, Vec<&'a str>)> {
    let mut routes = ROUTES.iter().filter(|route| route.method == method.as_str());
    let open = |route: &Route| segments::open(route.path, path).filter(|open| !open.contains(&""));
    routes.find_map(|route| Some((route, open(route)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_at_most_one_route() {
        let check = |method: Method, path: &str, want: Option<(Verb, &[&str])>| {
            let found = find(&method, path);
            assert_eq!(found.as_ref().map(|(r, s)| (r.verb, s.as_slice())), want, "{method} {path}");
        };
        check(Method::POST, "/v1/runs", Some((Verb::CreateRun, &[])));
        check(Method::GET, "/v1/runs/r-1", Some((Verb::GetRun, &["r-1"])));
        check(Method::POST, "/v1/runs/r/steps", Some((Verb::Step, &["r"])));
        check(Method::GET, "/v1/memory/facts", Some((Verb::ListFacts, &[])));
        check(Method::GET, "/healthz", Some((Verb::Healthz, &[])));
        check(Method::GET, "/v1/runs", None);
        check(Method::GET, "/v1/runs/", None);
        check(Method::POST, "/v1/runs/r", None);
        check(Method::DELETE, "/v1/runs/r", None);
    }

    #[test]
    fn what_stands_below_a_root_is_taken_and_nothing_else() {
        let check = |path: &str, want: bool| assert_eq!(takes(path), want, "{path}");
        check("/v1/runs", true);
        check("/v1/runs/r/no-such", true);
        check("/healthz", true);
        check("/v1/runsx", false);
        check("/v1/chat/completions", false);
        check("/v1/state/a/b/c", false);
    }
}
