//! The page: its files, and the exchange of a link for a session.
//!
//! The page reads all it shows from the routes below `/v1`, like any other caller. The files hold no data, so nobody has
//! to be let in to get them; the `Host` header is checked all the same.

mod files;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};
use serde::Deserialize;
use serde_json::json;

use crate::{
    version::VERSION,
    wire::{
        access::{Access, NotLetIn},
        body::{AnswerBody, unkept},
        headers::text,
        origin,
        refuse::Refusal,
    },
};

/// Path of the page that tells a visitor which credential the listener wants.
const ABOUT: &str = "/ui/about";

/// Path to which the secret of a link is sent, in exchange for a session.
const SESSION: &str = "/ui/session";

/// Policy that every answer carries: scripts, styles and requests of this origin alone, and no text that becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; frame-ancestors 'none'; form-action 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

/// Part of the page that a listener shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shows {
    /// Page on the same listener as the proxy, as `outlast serve` shows it.
    Beside,
    /// Page and the routes that it needs, without a proxy, as `outlast ui` shows it.
    Alone,
}

/// Returns whether a path is below the page's, even if no file has this path.
pub fn takes(path: &str) -> bool {
    path == "/" || path == "/ui" || path.starts_with("/ui/")
}

/// Returns whether a request exchanges a link's secret for a session.
pub fn is_exchange(parts: &Parts) -> bool {
    parts.method == Method::POST && parts.uri.path() == SESSION
}

/// Answers a request for a file of the page, or for the listener's version and access rules.
pub fn answer(access: &Access, parts: &Parts) -> Result<Response<AnswerBody>, Refusal> {
    origin::check(access, &parts.headers)?;
    if parts.method != Method::GET && parts.method != Method::HEAD {
        return Err(Refusal::ReadOnly { method: parts.method.to_string(), path: "the page" });
    }
    if parts.uri.path() == ABOUT {
        let sessions = access.sessions.as_ref();
        return Ok(told(&json!({
            "version": VERSION,
            "api_token": access.api_token.is_some(),
            "read_only": sessions.is_some_and(|s| s.read_only()),
        })));
    }
    let Some(file) = files::find(parts.uri.path()) else {
        return Ok(answered(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "no such file\n"));
    };
    Ok(answered(StatusCode::OK, file.kind, file.bytes))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    link: String,
}

/// Exchanges a link's secret for the bearer of a session. Only a page of this very origin may ask, not one of another
/// port of the host.
///
/// Errors: `bad_link` for a secret that is unknown, used or too old.
pub fn exchange(access: &Access, parts: &Parts, body: &Bytes) -> Result<Response<AnswerBody>, Refusal> {
    origin::check(access, &parts.headers)?;
    is_of_this_page(&parts.headers)?;
    let link: Link = serde_json::from_slice(body).map_err(|_| Refusal::BadLink)?;
    let sessions = access.sessions.as_ref().ok_or(Refusal::BadLink)?;
    let bearer = sessions.exchange(&link.link).ok_or(Refusal::BadLink)?;
    Ok(told(&json!({ "bearer": bearer, "read_only": sessions.read_only() })))
}

/// Checks that a request comes from a page of this origin, port included: a script of another one names itself.
fn is_of_this_page(headers: &HeaderMap) -> Result<(), NotLetIn> {
    let (host, from) = (text(headers, "host").unwrap_or_default(), text(headers, "origin"));
    let authority = from.and_then(|from| from.split_once("://")).map(|(_, authority)| authority);
    let site = text(headers, "sec-fetch-site").unwrap_or("same-origin");
    if authority.is_some_and(|a| a.eq_ignore_ascii_case(host)) && site == "same-origin" {
        return Ok(());
    }
    Err(NotLetIn::ForeignOrigin { origin: from.unwrap_or("none").chars().take(80).collect() })
}

fn told(body: &serde_json::Value) -> Response<AnswerBody> {
    answered(StatusCode::OK, "application/json", body.to_string())
}

fn answered(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<AnswerBody> {
    // Not kept: another version of the program may listen here tomorrow.
    let mut response = unkept(status.as_u16(), kind, body);
    let headers = response.headers_mut();
    let fixed = HeaderValue::from_static;
    headers.insert(header::CONTENT_SECURITY_POLICY, fixed(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, fixed("nosniff"));
    headers.insert(header::X_FRAME_OPTIONS, fixed("DENY"));
    headers.insert(header::REFERRER_POLICY, fixed("no-referrer"));
    headers.insert("cross-origin-opener-policy", fixed("same-origin"));
    headers.insert("cross-origin-resource-policy", fixed("same-origin"));
    response
}
