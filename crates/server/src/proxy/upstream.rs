//! The providers: their addresses and keys, and one connection pool to all of them: how connections are made, and
//! whether an answer has come over one.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Extensions, HeaderMap, Method, Request, Response, Uri, uri::Scheme};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection, HttpConnector, capture_connection},
    },
    rt::{TokioExecutor, TokioIo},
};
use outlast_core::words::{BadText, Cause, Digest, bad::with_causes};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tower_service::Service;

use crate::wire::{
    network::{Later, Network, Ways, bare, later},
    socket::{Socket, Watch},
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

impl Provider {
    /// Builds a provider from `base` in the form in which the SDKs take it. OpenAI's ends in `/v1`,
    /// Anthropic's does not; a trailing `/v1` is removed.
    pub fn new(base: &str, key: Option<Key>) -> Result<Provider, BadText> {
        let bad = || BadText::new("a base URL", base, "for example https://api.openai.com/v1");
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

/// Failure of a request before the head of its response arrived.
#[derive(Debug, thiserror::Error)]
pub enum SendFailed {
    /// The request could not be built, because it has no key or no valid URL.
    #[error("{0}")]
    Unsendable(String),
    /// No connection was made, so no byte was sent.
    #[error("{0}")]
    Unreachable(String, Cause),
    /// The connection failed after bytes were sent, so the upstream may have seen the request.
    #[error("{0}")]
    Lost(String),
}

/// Time for which an unused connection to an upstream is kept. It is shorter than the time for which the usual servers
/// keep theirs, 5 s: a request on a connection that its server closes at that moment is lost.
pub const IDLE: Duration = Duration::from_secs(4);

/// Longest time from a call to the end of a connection that its server had closed while it was unused. Such a connection
/// ends when the call's first bytes reach the server. One that ends later may have taken the call.
const STALE: Duration = Duration::from_secs(1);

/// Connection pool to all upstreams.
#[derive(Clone)]
pub struct Pool {
    /// Made with the first call: that is when the authorities are wanted.
    client: Later<HttpClient>,
}

type HttpClient = Client<HttpsConnector<Dial>, Full<Bytes>>;

impl Pool {
    /// Creates a pool that follows no redirects, and keeps an unused connection for `idle`. A connection that the server
    /// closes while a request is written to it leaves that request in doubt.
    pub fn new(network: &Network, idle: Duration) -> Pool {
        let network = network.clone();
        Pool { client: later(move || Pool::client(&network, idle)) }
    }

    fn client(network: &Network, idle: Duration) -> HttpClient {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(Duration::from_secs(30)));
        tcp.set_connect_timeout(Some(Duration::from_secs(10)));
        tcp.enforce_http(false);
        let https =
            hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(ClientConfig::clone(&network.tls));
        let dial = Dial { tcp, ways: network.ways.clone() };
        let connector = https.https_or_http().enable_http1().wrap_connector(dial);
        Client::builder(TokioExecutor::new())
            .pool_idle_timeout(idle)
            // hyper only resends a request whose pooled connection was closed before a byte was written.
            .retry_canceled_requests(true)
            .build(connector)
    }

    /// Sends a request, and returns when the head of the response has arrived.
    pub async fn send(
        &self,
        method: Method,
        url: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, SendFailed> {
        self.try_send(method, url, headers, body, || ()).await.map_err(|(e, _)| e)
    }

    /// Posts a call as [`Pool::send`] does, over another connection if its server had closed this one while it was
    /// unused. `connected` is called when a new connection is made, which may be long before the response.
    ///
    /// A connection was closed while it was unused if an answer came over it before, it ends at once, without a byte of
    /// this one, and its server takes a new one. Any other failure leaves the call in doubt, and the journal records that:
    /// a server that takes none may have died with the call in its hands.
    pub async fn call(
        &self,
        url: &str,
        headers: HeaderMap,
        body: Bytes,
        connected: impl Fn(),
    ) -> Result<Response<Incoming>, SendFailed> {
        let mut lost = None;
        loop {
            let began = Instant::now();
            let sent = self.try_send(Method::POST, url, headers.clone(), body.clone(), &connected).await;
            match (sent, lost.take()) {
                // Each such try uses up a connection that was kept.
                (Err((SendFailed::Lost(text), true)), _) if began.elapsed() < STALE => lost = Some(text),
                (Err((SendFailed::Unreachable(..), _)), Some(text)) => return Err(SendFailed::Lost(text)),
                (sent, _) => return sent.map_err(|(e, _)| e),
            }
        }
    }

    /// Sends a request once. The error says, too, whether an earlier answer had come over the same connection.
    async fn try_send(
        &self,
        method: Method,
        url: &str,
        headers: HeaderMap,
        body: Bytes,
        connected: impl Fn(),
    ) -> Result<Response<Incoming>, (SendFailed, bool)> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        let unsendable = |e: http::uri::InvalidUri| (SendFailed::Unsendable(e.to_string()), false);
        *request.uri_mut() = url.parse().map_err(unsendable)?;
        *request.headers_mut() = headers;
        let mut captured = capture_connection(&mut request);
        let is_new = async {
            let made = captured.wait_for_connection_metadata().await;
            made.as_ref().is_some_and(|made| !Used::of(made).is_set())
        };
        let mut answer = pin!(self.client.request(request));
        let sent = tokio::select! {
            biased;
            sent = &mut answer => sent,
            is_new = is_new => {
                if is_new {
                    connected();
                }
                answer.await
            }
        };
        match sent {
            Ok(response) => {
                response.extensions().get::<Used>().into_iter().for_each(Used::set);
                Ok(response)
            }
            Err(e) => {
                let text = with_causes(&e);
                let was_used = e.connect_info().is_some_and(|made| Used::of(made).is_set());
                let failed = match e.is_connect() {
                    true => SendFailed::Unreachable(text, cause(&e)),
                    false => SendFailed::Lost(text),
                };
                Err((failed, was_used))
            }
        }
    }
}

/// Returns why no connection was made. The connector names the step that failed, except for TLS, which comes last.
fn cause(e: &(dyn std::error::Error + 'static)) -> Cause {
    let mut steps = std::iter::successors(Some(e), |e| e.source());
    steps
        .find_map(|step| match step.to_string().as_str() {
            "dns error" => Some(Cause::NoName),
            step if step.starts_with("tcp ") => Some(Cause::NoConnection),
            _ if is_untrusted(step) => Some(Cause::Untrusted),
            _ => None,
        })
        .unwrap_or(Cause::NoTls)
}

/// Returns whether an error says that a server's certificate is not taken.
fn is_untrusted(e: &(dyn std::error::Error + 'static)) -> bool {
    if let Some(tls) = e.downcast_ref::<rustls::Error>() {
        return matches!(tls, rustls::Error::InvalidCertificate(_));
    }
    // An error of I/O is no step of its own where it wraps another.
    e.downcast_ref::<std::io::Error>()
        .and_then(std::io::Error::get_ref)
        .is_some_and(|inner| is_untrusted(inner))
}

/// Connector to upstreams, either direct or through the proxy that stands before this machine. That proxy is for
/// `https://` only.
#[derive(Clone)]
pub struct Dial {
    pub tcp: HttpConnector,
    pub ways: Ways,
}

impl Service<Uri> for Dial {
    type Response = Line;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Line, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let host = bare(uri.host().unwrap_or_default()).to_owned();
        let is_plain = uri.scheme() == Some(&Scheme::HTTP);
        if is_plain || self.ways.are_straight(&host) {
            let connecting = self.tcp.call(uri);
            return Box::pin(async move { Ok(line(connecting.await?.into_inner())) });
        }
        let ways = self.ways.clone();
        let port = uri.port_u16().unwrap_or(443);
        Box::pin(async move {
            let stream =
                ways.dial(&host, port).await.map_err(|e| format!("tcp connect through a proxy: {e}"))?;
            Ok(line(stream))
        })
    }
}

/// Mark of a connection: whether an answer has come over it.
#[derive(Clone, Debug, Default)]
pub struct Used(Arc<AtomicBool>);

impl Used {
    /// Returns the mark of a connection that [`Dial`] made.
    pub fn of(connected: &Connected) -> Used {
        let mut extras = Extensions::new();
        connected.get_extras(&mut extras);
        extras.remove().unwrap_or_default()
    }

    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Connection to an upstream, with its mark.
pub type Line = TokioIo<Socket<TcpStream, Used>>;

fn line(stream: TcpStream) -> Line {
    TokioIo::new(Socket::new(stream, Used::default()))
}

impl Watch for Used {}

impl Connection for Socket<TcpStream, Used> {
    fn connected(&self) -> Connected {
        self.stream.connected().extra(self.watch.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use rustls::{AlertDescription, CertificateError, Error};

    use super::*;

    #[test]
    fn an_untrusted_certificate_is_told_apart_from_other_failures_of_tls() {
        let untrusted = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let alert = Error::AlertReceived(AlertDescription::HandshakeFailure);
        for (error, wanted) in [(untrusted, Cause::Untrusted), (alert, Cause::NoTls)] {
            let wrapped = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error.clone()));
            assert_eq!((cause(&error), cause(&wrapped)), (wanted, wanted), "{error}");
        }
    }
}
