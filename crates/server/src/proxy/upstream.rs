//! The providers: their addresses and keys, and one connection pool to all of them.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};

use outlast_core::words::{digest::Digest, outage::Cause};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tower_service::Service;

use crate::{
    dialect::Upstream,
    wire::ways::{Ways, bare},
};

/// Address and key of a provider.
#[derive(Clone)]
pub struct Provider {
    /// Base URL without a trailing slash: `https://api.openai.com`, or with a path before `/v1`.
    pub base: String,
    /// Configured key, which is sent if the caller sends no provider key of its own; `None`: there is none.
    pub key: Option<Key>,
}

/// Smallest length of a key that is masked, in bytes. A shorter text is no key, and occurs inside other words.
const SHORTEST: usize = 8;

/// Key of a provider. Never printed.
#[derive(Clone)]
pub struct Key(String);

impl Key {
    pub fn new(text: String) -> Key {
        Key(text)
    }

    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns `body` with the key replaced by `***`. Some providers repeat a wrong key in their error.
    pub fn masked(&self, body: Bytes) -> Bytes {
        let key = self.0.as_bytes();
        if key.len() < SHORTEST || memchr::memmem::find(&body, key).is_none() {
            return body;
        }
        let mut out = Vec::with_capacity(body.len());
        let mut from = 0;
        for at in memchr::memmem::find_iter(&body, key) {
            out.extend_from_slice(&body[from..at]);
            out.extend_from_slice(b"***");
            from = at + key.len();
        }
        out.extend_from_slice(&body[from..]);
        out.into()
    }

    pub fn masked_text(&self, text: &str) -> String {
        if self.0.len() < SHORTEST { text.to_owned() } else { text.replace(&self.0, "***") }
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Error of a base URL that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a base URL: {text:?} (wanted for example https://api.openai.com/v1)")]
pub struct BadBase {
    pub text: String,
}

impl Provider {
    /// Builds a provider from `base` in the form in which the SDKs take it. OpenAI's ends in `/v1`,
    /// Anthropic's does not; a trailing `/v1` is removed.
    pub fn new(base: &str, key: Option<Key>) -> Result<Provider, BadBase> {
        let bad = || BadBase { text: base.into() };
        let uri: Uri = base.parse().map_err(|_| bad())?;
        if !matches!(uri.scheme_str(), Some("http" | "https"))
            || uri.host().is_none()
            || uri.query().is_some()
        {
            return Err(bad());
        }
        let trimmed = base.trim_end_matches('/');
        Ok(Provider { base: trimmed.strip_suffix("/v1").unwrap_or(trimmed).into(), key })
    }

    /// Returns a digest of the address, and of the key too if `with_key`. Calls with the same digest share the
    /// upstream's rate limits.
    pub fn way(&self, with_key: bool) -> Digest {
        let key = self.key.as_ref().filter(|_| with_key).map_or("", Key::expose);
        Digest::of([self.base.as_str(), key].join("\n").as_bytes())
    }
}

/// Returns the name of a provider in digests, the journal and metrics.
pub fn name(upstream: Upstream) -> &'static str {
    match upstream {
        Upstream::OpenAi => "openai",
        Upstream::Anthropic => "anthropic",
        Upstream::Gemini => "gemini",
    }
}

/// Failure of a request before the head of its response arrived.
#[derive(Debug)]
pub enum SendFailed {
    /// The request could not be built, because it has no key or no valid URL.
    Unsendable(String),
    /// There was no connection, so no byte was sent.
    Unreachable(String, Cause),
    /// The connection failed after bytes were sent, so the upstream may have seen the request.
    Lost(String),
}

/// Time for which an unused connection to an upstream is kept.
const IDLE: Duration = Duration::from_secs(60);

/// Connection pool to all upstreams.
#[derive(Clone)]
pub struct Pool {
    client: Client<HttpsConnector<Dial>, Full<Bytes>>,
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

impl Pool {
    /// Creates a pool that follows no redirects and reads no proxy variables: only configured addresses are called.
    pub fn new() -> Pool {
        Pool::of(Ways::default(), None, IDLE)
    }

    /// Creates a pool that keeps an unused connection for `idle`. A connection that the server closes while a
    /// request is written to it leaves that request in doubt.
    pub fn keeping(idle: Duration) -> Pool {
        Pool::of(Ways::default(), None, idle)
    }

    /// Creates a pool that connects by `ways` and verifies servers as `tls` says.
    pub fn through(ways: Ways, tls: ClientConfig) -> Pool {
        Pool::of(ways, Some(tls), IDLE)
    }

    fn of(ways: Ways, tls: Option<ClientConfig>, idle: Duration) -> Pool {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(Duration::from_secs(30)));
        tcp.set_connect_timeout(Some(Duration::from_secs(10)));
        tcp.enforce_http(false);
        let https = match tls {
            Some(config) => hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(config),
            None => hyper_rustls::HttpsConnectorBuilder::new().with_webpki_roots(),
        };
        let connector = https.https_or_http().enable_http1().wrap_connector(Dial { tcp, ways });
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(idle)
            // hyper only resends a request whose pooled connection was closed before a byte was written.
            // Any other failure leaves the call in doubt, and the journal records that.
            .retry_canceled_requests(true)
            .build(connector);
        Pool { client }
    }

    /// Sends a request, and returns when the head of the response has arrived.
    pub async fn send(
        &self,
        method: Method,
        url: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, SendFailed> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() =
            url.parse().map_err(|e: http::uri::InvalidUri| SendFailed::Unsendable(e.to_string()))?;
        *request.headers_mut() = headers;
        self.client.request(request).await.map_err(|e| {
            let text = chain(&e);
            if e.is_connect() { SendFailed::Unreachable(text, cause(&e)) } else { SendFailed::Lost(text) }
        })
    }
}

/// Connector to upstreams, either direct or through the proxy that stands before this machine.
#[derive(Clone)]
struct Dial {
    tcp: HttpConnector,
    ways: Ways,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let host = bare(uri.host().unwrap_or_default()).to_owned();
        if self.ways.are_straight(&host) {
            let connecting = self.tcp.call(uri);
            return Box::pin(async move { Ok(connecting.await?) });
        }
        let ways = self.ways.clone();
        let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("http") { 80 } else { 443 });
        Box::pin(async move {
            let stream =
                ways.dial(&host, port).await.map_err(|e| format!("tcp connect through a proxy: {e}"))?;
            Ok(TokioIo::new(stream))
        })
    }
}

/// Returns why no connection was made. The connector names the step that failed, except for TLS, which comes last.
fn cause(e: &(dyn std::error::Error + 'static)) -> Cause {
    let mut steps = std::iter::successors(Some(e), |e| e.source()).map(ToString::to_string);
    steps
        .find_map(|step| match step.as_str() {
            "dns error" => Some(Cause::NoName),
            step if step.starts_with("tcp ") => Some(Cause::NoConnection),
            _ => None,
        })
        .unwrap_or(Cause::NoTls)
}

/// Returns an error's text with its causes. hyper's own text names none of them.
fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(e) = source {
        text.push_str(": ");
        text.push_str(&e.to_string());
        source = e.source();
    }
    text
}
