//! Address of an MCP server, with the headers that it wants.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use parking_lot::Mutex;

use super::mirror::Mirror;
use crate::{proxy::upstream::Key, wire::network::is_loopback};

/// Headers that the protocol or HTTP sets, so that a person cannot.
const OWN: [&str; 9] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Address of an MCP server, with the headers to send to it.
#[derive(Clone)]
pub struct Target {
    pub(super) url: String,
    pub(super) headers: HeaderMap,
    /// Headers that the server's tools ask for, as learned over any connection to the server.
    pub(super) mirror: Arc<Mutex<Mirror>>,
}

/// Reason why a server cannot be called at this address or with these headers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    #[error("{0:?} is not the URL of a server (wanted https://HOST/PATH)")]
    NoUrl(String),
    #[error("a header is sent over https only, or to this machine")]
    HeaderInTheClear,
    #[error("{0:?} is not the name of a header that may be set")]
    BadName(String),
    #[error("the value of the header {0} is no text of a header")]
    BadValue(String),
}

impl Target {
    /// Checks the server's address and the headers (name, value).
    pub fn new(url: &str, headers: &[(String, String)]) -> Result<Target, BadTarget> {
        let bad = || BadTarget::NoUrl(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(bad)?;
        let has_login = uri.authority().is_some_and(|a| a.as_str().contains('@'));
        let is_http = match uri.scheme_str() {
            _ if has_login => return Err(bad()),
            Some("https") => false,
            Some("http") => true,
            _ => return Err(bad()),
        };
        if is_http && !is_loopback(host) && !headers.is_empty() {
            return Err(BadTarget::HeaderInTheClear);
        }
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let bad = || BadTarget::BadName(name.clone());
            let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
            if OWN.contains(&header.as_str()) || header.as_str().starts_with("mcp-") {
                return Err(bad());
            }
            let mut text = HeaderValue::from_str(value).map_err(|_| BadTarget::BadValue(name.clone()))?;
            text.set_sensitive(true);
            map.append(header, text);
        }
        Ok(Target { url: url.to_owned(), headers: map, mirror: Arc::default() })
    }

    /// Returns a server's text without the values of our headers, which some servers repeat.
    pub(super) fn masked(&self, text: &str) -> String {
        self.headers.values().filter_map(|value| value.to_str().ok()).fold(text.to_owned(), |text, value| {
            value.split(' ').fold(text, |text, word| Key::new(word.to_owned()).masked_text(&text))
        })
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.url.split('?').next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, headers: &[(&str, &str)], wanted: Option<BadTarget>) {
        let headers: Vec<(String, String)> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        assert_eq!(Target::new(url, &headers).err(), wanted, "{url} {headers:?}");
    }

    #[test]
    fn a_secret_leaves_this_machine_encrypted_only() {
        let secret = [("Authorization", "Bearer x")];
        check("https://mcp.example/mcp?x=1", &secret, None);
        check("http://127.0.0.1:8000/mcp", &secret, None);
        check("http://[::1]:8000/mcp", &secret, None);
        check("http://localhost/mcp", &secret, None);
        check("http://mcp.example/mcp", &[], None);
        check("http://mcp.example/mcp", &secret, Some(BadTarget::HeaderInTheClear));
        for bad in ["mcp.example", "/mcp", "ftp://mcp.example", "https://", "https://user:word@mcp.example/"]
        {
            check(bad, &[], Some(BadTarget::NoUrl(bad.into())));
        }
    }

    #[test]
    fn headers_of_the_protocol_are_not_set_by_hand() {
        for name in ["Mcp-Session-Id", "mcp-anything", "Host", "content-length", "a b", ""] {
            check("https://mcp.example", &[(name, "x")], Some(BadTarget::BadName(name.into())));
        }
        check("https://mcp.example", &[("X-A", "x\ny")], Some(BadTarget::BadValue("X-A".into())));
    }

    #[test]
    fn a_servers_words_do_not_repeat_a_secret() {
        let headers = [("authorization".to_owned(), "Bearer sk-12345678".to_owned())];
        let target = Target::new("https://mcp.example", &headers).unwrap();
        assert_eq!(target.masked("bad token sk-12345678!"), "bad token ***!");
        assert!(!format!("{target:?}").contains("sk-"));
    }
}
