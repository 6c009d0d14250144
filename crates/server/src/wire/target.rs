//! Targets of requests: their path and query without run tokens.

use std::borrow::Cow;

use http::Uri;
use outlast_core::run::token;
use percent_encoding::percent_decode_str;

use super::access::NotLetIn;
use crate::dialect::is_geminis;

/// Returns the path of a request without the prefix `/run/TOKEN`.
pub fn path(uri: &Uri) -> &str {
    let path = uri.path();
    let behind = path.strip_prefix("/run/").and_then(|rest| rest.find('/').map(|at| &rest[at..]));
    behind.unwrap_or(path)
}

/// Returns the query of a request without run tokens.
pub fn query(uri: &Uri) -> String {
    let (_, target) = split_query(uri.path_and_query().map_or("/", |p| p.as_str()));
    target.split_once('?').map_or_else(String::new, |(_, query)| query.to_owned())
}

/// Splits `/run/TOKEN/v1/…` into the token and the rest. For agents that send a provider key of their own.
pub fn split_path(target: &str) -> (Option<String>, String) {
    if let Some(rest) = target.strip_prefix("/run/")
        && let Some((token, path)) = rest.split_once('/')
    {
        return (Some(token.to_owned()), format!("/{path}"));
    }
    (None, target.to_owned())
}

/// Removes run tokens from the query, under any parameter name and percent-encoded or not. Returns the
/// tokens, and the rest of the target unchanged.
pub fn split_query(target: &str) -> (Vec<String>, String) {
    let Some((path, query)) = target.split_once('?') else { return (Vec::new(), target.to_owned()) };
    let mut tokens = Vec::new();
    let kept: Vec<&str> = query
        .split('&')
        .filter(|pair| {
            let value = pair.split_once('=').map_or(*pair, |(_, value)| value);
            let value = percent_decode_str(value).decode_utf8().unwrap_or(Cow::Borrowed(value));
            let is_token = token::looks_like_token(&value);
            if is_token {
                tokens.push(value.into_owned());
            }
            !is_token
        })
        .collect();
    let target = if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) };
    (tokens, target)
}

/// Moves a Gemini key from the query (`?key=…`), where it would be part of the digest, to the header `x-goog-api-key`.
///
/// Errors: `credentials_disagree` when the header has another key already.
pub fn move_key(parts: &mut http::request::Parts) -> Result<(), NotLetIn> {
    let Some(target) = parts.uri.path_and_query() else { return Ok(()) };
    let of_gemini = |path: &str| is_geminis(path) || (path.contains("/models/") && path.contains(':'));
    let Some(query) = target.query().filter(|_| of_gemini(path(&parts.uri))) else { return Ok(()) };
    let plain = |value: &str| !value.is_empty() && !value.contains('%') && !token::looks_like_token(value);
    let is_key = |pair: &&str| pair.strip_prefix("key=").is_some_and(plain);
    let Some(key) = query.split('&').find(is_key) else { return Ok(()) };
    let value = &key["key=".len()..];
    if parts.headers.get("x-goog-api-key").is_some_and(|had| had.as_bytes() != value.as_bytes()) {
        return Err(NotLetIn::Disagree);
    }
    let value = value.parse().map_err(|_| NotLetIn::BadHeader("a credential"))?;
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_key(pair)).collect();
    let question = if kept.is_empty() { "" } else { "?" };
    let moved = format!("{}{question}{}", target.path(), kept.join("&"));
    parts.uri = moved.parse().map_err(|_| NotLetIn::BadHeader("the target"))?;
    parts.headers.insert("x-goog-api-key", value);
    Ok(())
}
