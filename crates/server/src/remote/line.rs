//! The line to another machine's server: its address, the API token, requests that wait for their answer.
//!
//! Downloads of text that a person names by its URL.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use outlast_core::{
    engine::{self, state::transaction},
    store::Error,
    words::{Cause, Class},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    notify::Target,
    proxy::upstream::{IDLE, Key, Pool, SendFailed},
    state,
    wire::network::{Network, is_loopback},
};

/// Time in which the server has to answer a request.
const ANSWER: Duration = Duration::from_secs(30);

/// Largest answer of a server that is read, in bytes.
const MOST: usize = 1 << 30;

/// Number of characters of a server's error message that are shown.
const SHOWN: usize = 300;

/// Address of a server: `https`, or `http` to this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(String);

/// Error of a text that is no server's address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    #[error("not a server's address (wanted https://HOST, or http://127.0.0.1:PORT)")]
    NoUrl,
    #[error("http:// would send the API token readable over the network (wanted https://HOST)")]
    PlainHttp,
}

impl Address {
    /// Parses a URL, which may have a path, and no user, query or fragment.
    pub fn parse(text: &str) -> Result<Address, BadAddress> {
        let uri: Uri = text.parse().map_err(|_| BadAddress::NoUrl)?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(BadAddress::NoUrl)?;
        let is_plain = uri.query().is_none() && !text.contains(['@', '#']);
        match uri.scheme_str().filter(|_| is_plain) {
            Some("https") => {}
            Some("http") if is_loopback(host) => {}
            Some("http") => return Err(BadAddress::PlainHttp),
            _ => return Err(BadAddress::NoUrl),
        }
        Ok(Address(text.trim_end_matches('/').to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Requests to one server, each of which blocks until it is answered. Not for async code.
pub struct Line {
    server: Address,
    headers: HeaderMap,
    has_token: bool,
    pool: Pool,
    runtime: tokio::runtime::Runtime,
}

/// Response of a server with a success status.
pub struct Answered {
    body: Bytes,
    at: String,
}

impl Answered {
    /// Reads the body as JSON. Errors: `server_differs`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.body).map_err(|e| differs(&self.at, &e))
    }
}

impl Line {
    /// Prepares requests to the server; sends nothing yet.
    pub fn new(server: Address, token: Option<&Key>, network: &Network) -> Result<Line, Error> {
        let mut headers = HeaderMap::new();
        let no_runtime = |e: std::io::Error| Error::Io { why: e.to_string() };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_runtime)?;
        if let Some(token) = token {
            let bad = |_| refused("bad_token", "the API token is no header's text".into(), None);
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose())).map_err(bad)?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        headers.insert(header::USER_AGENT, HeaderValue::from_static("outlast"));
        Ok(Line { server, headers, has_token: token.is_some(), pool: Pool::new(network, IDLE), runtime })
    }

    pub fn server(&self) -> &Address {
        &self.server
    }

    pub fn get(&self, target: &str) -> Result<Answered, Error> {
        self.send(Method::GET, target, String::new(), false, None)
    }

    /// Posts JSON that asks.
    pub fn ask(&self, target: &str, body: String) -> Result<Answered, Error> {
        self.send(Method::POST, target, body, false, None)
    }

    /// Posts JSON that changes something; `by` is who acts. Errors: `CommitUnknown` when the answer is lost: the server
    /// may have done it.
    pub fn order(&self, target: &str, body: String, by: Option<&str>) -> Result<Answered, Error> {
        self.send(Method::POST, target, body, true, by)
    }

    fn send(
        &self,
        method: Method,
        target: &str,
        body: String,
        changes: bool,
        by: Option<&str>,
    ) -> Result<Answered, Error> {
        let url = format!("{}{target}", self.server);
        let mut headers = self.headers.clone();
        if let Some(by) = by.and_then(|by| HeaderValue::from_str(by).ok()) {
            headers.insert(crate::wire::shown::BY, by);
        }
        if method == Method::POST {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let asked = self.runtime.block_on(async {
            tokio::time::timeout(ANSWER, async {
                let response = self.pool.send(method, &url, headers, body.into()).await?;
                let (head, body) = response.into_parts();
                let whole = Limited::new(body, MOST).collect().await;
                let lost = |e: Box<dyn std::error::Error + Send + Sync>| SendFailed::Lost(e.to_string());
                Ok((head.status, whole.map_err(lost)?.to_bytes()))
            })
            .await
            .unwrap_or_else(|_| Err(SendFailed::Lost(format!("no answer within {} s", ANSWER.as_secs()))))
        });
        let (status, body) = asked.map_err(|e| self.failed(changes, e))?;
        if status.is_success() {
            return Ok(Answered { body, at: self.server.to_string() });
        }
        Err(self.refusal(status, target, &body))
    }

    fn failed(&self, changes: bool, e: SendFailed) -> Error {
        let server = &self.server;
        let hint = match &e {
            SendFailed::Unreachable(_, Cause::NoTls | Cause::Untrusted) => {
                "where its certificate is of an authority of your own, name its file in SSL_CERT_FILE"
            }
            _ => "see that `outlast serve` runs there, and that --server or OUTLAST_SERVER names it",
        };
        let why = match e {
            SendFailed::Lost(why) if changes => {
                return Error::CommitUnknown { why: format!("{server} did not answer: {why}") };
            }
            e => e.to_string(),
        };
        refused("server_unreachable", format!("{server} cannot be reached: {why}"), Some(hint.into()))
    }

    /// Returns the error for an answer that is no success, in the server's own words where it has some.
    fn refusal(&self, status: StatusCode, target: &str, body: &[u8]) -> Error {
        let server = &self.server;
        let told: Value = serde_json::from_slice(body).unwrap_or_default();
        let word = |name: &str| {
            let text = told["error"][name].as_str().or(told[name].as_str())?;
            Some(text.chars().filter(|c| !c.is_control()).take(SHOWN).collect::<String>())
        };
        let code = word("code").unwrap_or_default();
        let message = word("message").unwrap_or_default();
        let said = if message.is_empty() { String::new() } else { format!(": {message}") };
        let denied = |message: String, hint: &str| refused("server_denied", message, Some(hint.into()));
        match status.as_u16() {
            401 | 403 if code == "only_the_command_decides" => denied(
                format!("{server} has no API token, and takes no orders without one"),
                "start it with --api-token-file, and give the same token in OUTLAST_API_TOKEN",
            ),
            401 | 403 if !self.has_token => denied(
                format!("{server} wants its API token ({status}){said}"),
                "set OUTLAST_API_TOKEN, or OUTLAST_API_TOKEN_FILE to a file of mode 0600",
            ),
            401 | 403 => denied(
                format!("{server} does not let this token in ({status}){said}"),
                "see OUTLAST_API_TOKEN: it has to be what the server's --api-token-file holds",
            ),
            404 if own_code(&code).is_none() => no_route(server, target),
            300..=399 => {
                let message = format!("{server} answered {status}, and redirects are not followed");
                refused("server_differs", message, None)
            }
            500.. => refused("server_unreachable", format!("{server} answered {status}{said}"), word("hint")),
            _ => refused(
                own_code(&code).map_or("server_refused", |(code, _)| code),
                if message.is_empty() { format!("{server} answered {status}") } else { message },
                word("hint"),
            ),
        }
    }
}

/// Error of a request for a route that the server does not have.
fn no_route(server: &Address, target: &str) -> Error {
    let path = target.split('?').next().unwrap_or(target);
    let hint = "it may be an older outlast, or another program: compare outlast --version there and here";
    refused("server_differs", format!("{server} has no route {path}"), Some(hint.into()))
}

/// Error of an answer whose shape this version does not know.
pub fn differs(server: &dyn fmt::Display, why: &dyn fmt::Display) -> Error {
    let hint = "use the same version of outlast there and here";
    let message = format!("{server} does not answer as this outlast expects: {why}");
    refused("server_differs", message, Some(hint.into()))
}

/// Error of a request that the server did not do. `code` has its class from here, or from the server's own table.
pub fn refused(code: &'static str, message: String, hint: Option<String>) -> Error {
    let class = match code {
        "server_unreachable" => Class::Unavailable,
        "server_denied" => Class::NoCredential,
        "server_differs" => Class::Internal,
        code => own_code(code).map_or(Class::Invalid, |(_, class)| class),
    };
    Error::Server { code, class, message, hint }
}

/// Returns the row of a code that a server of this version answers; `None` for any other, and for a route that it does
/// not have.
fn own_code(code: &str) -> Option<(&'static str, Class)> {
    let lists = [engine::Error::CODES, transaction::Error::CODES, state::Error::CODES];
    lists.into_iter().flatten().copied().find(|(known, _)| *known == code && *known != "no_route")
}

/// Time in which the whole text of a download has to come.
const WHOLE: Duration = Duration::from_secs(120);

/// Largest text that is downloaded, in bytes.
const LARGEST: usize = 32 << 20;

/// Downloads a text by `https://`, or by `http://` from this machine. Blocks; not for async code. No redirect is followed.
///
/// Errors: why there is no such text.
pub fn download(url: &str, network: &Network) -> Result<String, String> {
    Target::parse(url).map_err(|e| e.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let whole = async {
        let sent =
            Pool::new(network, IDLE).send(Method::GET, url, HeaderMap::new(), Default::default()).await;
        let response = sent.map_err(|e| e.to_string())?;
        if !response.status().is_success() {
            return Err(format!("the server answered {}, and redirects are not followed", response.status()));
        }
        let body = Limited::new(response.into_body(), LARGEST).collect().await.map_err(|e| e.to_string())?;
        String::from_utf8(body.to_bytes().into()).map_err(|e| e.to_string())
    };
    runtime.map_err(|e| e.to_string())?.block_on(async {
        let late = |_| Err(format!("it did not come within {} s", WHOLE.as_secs()));
        tokio::time::timeout(WHOLE, whole).await.unwrap_or_else(late)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_over_tls_or_stays_on_this_machine() {
        let check = |text: &str, want: Result<&str, BadAddress>| {
            assert_eq!(Address::parse(text).map(|a| a.to_string()), want.map(str::to_owned), "{text}");
        };
        check("https://fleet.example", Ok("https://fleet.example"));
        check("https://fleet.example/outlast/", Ok("https://fleet.example/outlast"));
        check("http://127.0.0.1:7077/", Ok("http://127.0.0.1:7077"));
        check("http://[::1]:7077", Ok("http://[::1]:7077"));
        check("http://localhost:7077", Ok("http://localhost:7077"));
        check("http://fleet.example", Err(BadAddress::PlainHttp));
        check("http://10.0.0.7:7077", Err(BadAddress::PlainHttp));
        check("http://localhost.evil.example", Err(BadAddress::PlainHttp));
        for none in
            ["", "fleet", "fleet:7077", "ftp://fleet", "https://me:secret@fleet", "https://fleet/?x=1"]
        {
            check(none, Err(BadAddress::NoUrl));
        }
    }
}
