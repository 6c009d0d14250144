//! Filter of headers, to the upstream and to the client: the complete list of what the proxy changes in them.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use outlast_core::run::token;

/// Prefixes of headers of Outlast and RiskKernel, which pass neither to the upstream nor from it.
const OURS: [&str; 2] = ["x-outlast-", "x-riskkernel-"];

/// Headers that may contain a credential.
pub const CREDENTIALS: [&str; 4] = ["authorization", "x-api-key", "api-key", "x-goog-api-key"];

/// Returns whether a header is one of Outlast's or RiskKernel's own.
pub fn is_ours(name: &HeaderName) -> bool {
    OURS.iter().any(|prefix| name.as_str().starts_with(prefix))
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

fn is_dropped_both_ways(name: &HeaderName) -> bool {
    let n = name.as_str();
    is_hop_by_hop(name)
        || is_ours(name)
        || matches!(n, "content-length" | "cookie" | "set-cookie" | "forwarded" | "via")
        || n.starts_with("x-forwarded-")
}

/// Returns the headers that `Connection` names. They are hop-by-hop too.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|n| n.trim().parse().ok())
        .collect()
}

/// Returns the request's headers as they go upstream, without credentials, which the caller adds afterwards.
///
/// `edited`: the body was decoded and changed, so that its encoding no longer applies.
pub fn upstream(headers: &HeaderMap, edited: bool) -> HeaderMap {
    let mut out = passed(headers, |name, value| {
        [header::HOST, header::ACCEPT_ENCODING, header::EXPECT].contains(name)
            || CREDENTIALS.contains(&name.as_str())
            || holds_token(value)
            || (edited && *name == header::CONTENT_ENCODING)
    });
    // A compressed stream could not be read frame by frame, nor given back byte for byte.
    out.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    out
}

/// Returns whether a value contains a run token (`ol_…`). Such a header never goes upstream.
fn holds_token(value: &HeaderValue) -> bool {
    memchr::memmem::find(value.as_bytes(), token::PREFIX.as_bytes()).is_some()
        && value.to_str().is_ok_and(|text| token::mask(text) != text)
}

/// Returns the answer's headers as clients get them. `decoded`: the proxy has removed the content encoding.
pub fn client(headers: &HeaderMap, decoded: bool) -> HeaderMap {
    passed(headers, |name, _| decoded && *name == header::CONTENT_ENCODING)
}

/// Returns the headers that pass, without those that are dropped both ways and those that `is_dropped` names.
fn passed(headers: &HeaderMap, is_dropped: impl Fn(&HeaderName, &HeaderValue) -> bool) -> HeaderMap {
    let named = named_by_connection(headers);
    let mut out = HeaderMap::with_capacity(headers.len() + 2);
    for (name, value) in headers {
        if !is_dropped_both_ways(name) && !named.contains(name) && !is_dropped(name, value) {
            out.append(name, value.clone());
        }
    }
    out
}

/// Returns the first value of a header as text; `None` if it is absent or is not text.
pub fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut m = HeaderMap::new();
        for (n, v) in pairs {
            m.append(*n, HeaderValue::from_static(v));
        }
        m
    }

    #[test]
    fn no_credential_and_nothing_of_ours_goes_upstream() {
        let sent = upstream(
            &map(&[
                ("authorization", "Bearer ol_x"),
                ("x-api-key", "k"),
                ("x-outlast-run", "r"),
                ("x-riskkernel-run-id", "r"),
                ("cookie", "c"),
                ("forwarded", "f"),
                ("x-forwarded-for", "1"),
                ("host", "h"),
                ("connection", "x-odd, close"),
                ("x-odd", "1"),
                ("x-copy-of-the-key", "key=ol_x"),
                ("accept-encoding", "gzip"),
                ("anthropic-beta", "b"),
                ("x-stainless-retry-count", "1"),
            ]),
            false,
        );
        let mut names: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept-encoding", "anthropic-beta", "x-stainless-retry-count"]);
        assert_eq!(sent["accept-encoding"], "identity");
    }

    #[test]
    fn an_upstream_cannot_speak_in_our_name() {
        let got = client(&map(&[("x-outlast-run", "r"), ("set-cookie", "c"), ("retry-after", "3")]), false);
        assert_eq!(got.len(), 1);
        assert_eq!(got["retry-after"], "3");
    }
}
