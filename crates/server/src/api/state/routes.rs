//! Table of the state's routes. The router uses it, and a test compares docs/reference/openapi.json with it.

use http::Method;

use crate::api::segments;

/// Operation that a route serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    Put,
    Delete,
    History,
    Keys,
    Namespaces,
    Agents,
    Scan,
    Replay,
    ResumePoint,
    Transact,
    Outcome,
    Kept,
    Keep,
}

/// Route of the state. `{…}` in the path is one segment, percent-encoded, which may be empty.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub method: &'static str,
    pub path: &'static str,
    pub verb: Verb,
    /// Query parameters of the route. Any other is refused, so that a mistyped one is not ignored.
    pub query: &'static [&'static str],
}

pub const ROOT: &str = "/v1/state/";

const ITEM: &str = "/v1/state/{namespace}/{agent}/{key}";
const CHANGE: &[&str] = &["expected_version", "transaction"];
const PAGES: &[&str] = &["namespace", "agent", "prefix", "commit", "time", "cursor", "limit"];
const NAMES: &[&str] = &["after", "limit"];
const RANGE: &[&str] =
    &["namespace", "agent", "from_commit", "to_commit", "from_time", "to_time", "after", "follow"];

pub const ROUTES: &[Route] = &[
    Route { method: "GET", path: ITEM, verb: Verb::Get, query: &["version", "commit", "time"] },
    Route { method: "PUT", path: ITEM, verb: Verb::Put, query: CHANGE },
    Route { method: "DELETE", path: ITEM, verb: Verb::Delete, query: CHANGE },
    Route {
        method: "GET",
        path: "/v1/state/{namespace}/{agent}/{key}/history",
        verb: Verb::History,
        query: &["after", "limit"],
    },
    Route { method: "GET", path: "/v1/state/keys", verb: Verb::Keys, query: PAGES },
    Route { method: "GET", path: "/v1/state/namespaces", verb: Verb::Namespaces, query: NAMES },
    Route {
        method: "GET",
        path: "/v1/state/agents",
        verb: Verb::Agents,
        query: &["namespace", "after", "limit"],
    },
    Route { method: "GET", path: "/v1/state/scan", verb: Verb::Scan, query: PAGES },
    Route { method: "GET", path: "/v1/state/replay", verb: Verb::Replay, query: RANGE },
    Route {
        method: "GET",
        path: "/v1/state/resume_point",
        verb: Verb::ResumePoint,
        query: &["namespace", "agent", "prefix"],
    },
    Route { method: "POST", path: "/v1/state/transaction", verb: Verb::Transact, query: &[] },
    Route { method: "GET", path: "/v1/state/transaction", verb: Verb::Outcome, query: &["id"] },
    Route { method: "GET", path: "/v1/state/keep", verb: Verb::Kept, query: &["namespace"] },
    Route { method: "PUT", path: "/v1/state/keep", verb: Verb::Keep, query: &["namespace"] },
];

/// Finds the route of a request, and returns the values of its `{…}` segments, not decoded; `None` if no route fits.
pub fn find<'a>(method: &Method, path: &'a str) -> Option<(&'static Route, Vec<&'a str>)> {
    let mut routes = ROUTES.iter().filter(|route| route.method == method.as_str());
    routes.find_map(|route| Some((route, segments::open(route.path, path)?)))
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
        check(Method::GET, "/v1/state/ns/a/k", Some((Verb::Get, &["ns", "a", "k"])));
        check(Method::PUT, "/v1/state//a%2Fb/", Some((Verb::Put, &["", "a%2Fb", ""])));
        check(Method::GET, "/v1/state/ns/a/k/history", Some((Verb::History, &["ns", "a", "k"])));
        check(Method::GET, "/v1/state/ns/a/history", Some((Verb::Get, &["ns", "a", "history"])));
        check(Method::GET, "/v1/state/keys", Some((Verb::Keys, &[])));
        check(Method::POST, "/v1/state/transaction", Some((Verb::Transact, &[])));
        check(Method::PUT, "/v1/state/keep", Some((Verb::Keep, &[])));
        check(Method::POST, "/v1/state/ns/a/k", None);
        check(Method::GET, "/v1/state/ns/a", None);
        check(Method::GET, "/v1/statehouse", None);
    }
}
