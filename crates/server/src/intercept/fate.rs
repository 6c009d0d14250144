//! Fate of each request on an opened host. What costs money, or may be read as something that does, never passes unread.

use http::{HeaderMap, Method, Request};

use super::opened::{Destination, Opened};
use crate::{
    dialect::{
        HeaderFacts, Route, Upstream, route,
        route::{ambiguous, loose},
    },
    proxy::named::To,
    wire::{
        headers::{CREDENTIALS, text},
        refuse::Refusal,
        who,
    },
};

/// Requests other than reads that pass unread: host, method and path. A path that ends in a slash stands for all below.
///
/// Known clients send these for logins, settings and telemetry. None asks a model or buys anything.
const PASSING: [(&str, &str, &str); 15] = [
    ("api.anthropic.com", "POST", "/api/auth/trusted_devices"),
    ("api.anthropic.com", "POST", "/api/claude_cli_feedback"),
    ("api.anthropic.com", "POST", "/api/claude_code/metrics"),
    ("api.anthropic.com", "POST", "/api/eval/"),
    ("api.anthropic.com", "POST", "/api/event_logging/"),
    ("api.anthropic.com", "POST", "/api/frame/track"),
    ("api.anthropic.com", "POST", "/api/oauth/account/grove_notice_viewed"),
    ("api.anthropic.com", "PATCH", "/api/oauth/account/settings"),
    ("api.anthropic.com", "POST", "/api/oauth/claude_cli/create_api_key"),
    ("api.anthropic.com", "POST", "/v1/oauth/token"),
    ("api.anthropic.com", "POST", "/v1/privacy-consents/check"),
    ("api.openai.com", "POST", "/v1/traces/ingest"),
    ("chatgpt.com", "POST", "/backend-api/codex/analytics-events/events"),
    ("chatgpt.com", "POST", "/backend-api/wham/usage/thread-estimates/query"),
    ("chatgpt.com", "POST", "/backend-api/wham/usage/thread_usage/query"),
];

/// Decision about a request in an opened connection.
pub enum Fate {
    /// The request is passed on as it came, unread and unrecorded.
    Passes,
    /// The request goes to an API that the proxy knows, and is handled as on the proxy's own routes.
    Known(Destination),
    Refused(Refusal),
}

/// Decides on a request in a connection to `host`.
pub fn fate<B>(opened: &Opened, host: &str, port: u16, request: &Request<B>) -> Fate {
    let had = text(request.headers(), "host").unwrap_or_default();
    let wanted = format!("{host}:{port}");
    let with_port = if had.contains(':') { had.to_owned() } else { format!("{had}:443") };
    if !with_port.eq_ignore_ascii_case(&wanted) || request.headers().get_all("host").iter().count() != 1 {
        return Fate::Refused(Refusal::OtherHost { had: had.chars().take(80).collect(), wanted });
    }
    if request.uri().scheme().is_some() {
        return Fate::Refused(Refusal::AbsoluteTarget);
    }
    let target = request.uri().path_and_query().map_or("/", |p| p.as_str());
    if let Some(reason) = ambiguous(target) {
        return Fate::Refused(Refusal::BadTarget(reason));
    }
    // What is said over a changed protocol cannot be read.
    if request.headers().contains_key("upgrade") {
        return Fate::Refused(Refusal::NoWebSocket);
    }
    let Some(place) = opened.place(host, port, target) else { return passes(host, request) };
    let facts = facts(&place.to);
    let routed = match route(request.method().as_str(), &place.target, facts) {
        routed if place.is_spelled => routed,
        _ => Route::Unknown,
    };
    if matches!(routed, Route::Unknown) {
        // Other servers may take these for the path of a call: another method, other letters, a slash behind.
        let (path, _) = place.target.split_once('?').unwrap_or((&place.target, ""));
        let near = [Method::POST, Method::GET].map(|method| {
            !matches!(route(method.as_str(), &loose(path), facts), Route::Unknown | Route::Bad(_))
        });
        return match near.contains(&true) && request.method() != Method::OPTIONS {
            true => unlisted(request),
            false => passes(host, request),
        };
    }
    if routed.upstream().is_some_and(|upstream| upstream != place.to.shape()) {
        let reason = format!("this part of the API of {host} is not metered");
        return Fate::Refused(Refusal::NotMetered { reason });
    }
    // What costs nothing needs no reading, where it is meant for the upstream itself and shows a key of its own.
    match routed {
        Route::Free { .. } if place.is_at_home && shows_own_key(request) => Fate::Passes,
        _ => Fate::Known(place),
    }
}

/// Returns the facts that tell apart providers which share a path: in an opened connection the host decides.
pub fn facts(to: &To) -> HeaderFacts {
    let is_anthropic = matches!(to, To::Own(Upstream::Anthropic));
    HeaderFacts { anthropic_version: is_anthropic, x_api_key: false }
}

fn shows_own_key<B>(request: &Request<B>) -> bool {
    let is_key = CREDENTIALS.iter().any(|name| request.headers().contains_key(*name));
    is_key && matches!(who::bears_token(request.uri(), request.headers()), Ok(false))
}

/// Lets a request pass if it only reads or is on the list, unless it shows a run token: that is for no other host.
fn passes<B>(host: &str, request: &Request<B>) -> Fate {
    let (method, path) = (request.method(), request.uri().path());
    let is_listed = |(of, with, listed): &(&str, &str, &str)| {
        let is_it = path == *listed || (listed.ends_with('/') && path.starts_with(listed));
        *of == host && method.as_str() == *with && is_it
    };
    let may_pass = match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => !overrides_method(request.headers()),
        _ => PASSING.iter().any(is_listed),
    };
    match who::bears_token(request.uri(), request.headers()) {
        Ok(false) if may_pass => Fate::Passes,
        _ => unlisted(request),
    }
}

/// Returns whether a header asks the server to take the request for one with another method.
fn overrides_method(headers: &HeaderMap) -> bool {
    headers
        .keys()
        .any(|name| matches!(name.as_str(), "x-http-method-override" | "x-http-method" | "x-method-override"))
}

fn unlisted<B>(request: &Request<B>) -> Fate {
    let path = request.uri().path().chars().take(120).collect();
    Fate::Refused(Refusal::UnknownPath { method: request.method().to_string(), path })
}

#[cfg(test)]
mod tests;
