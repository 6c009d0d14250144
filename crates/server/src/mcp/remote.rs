//! Client of one MCP server at a URL, over streamable HTTP: lines in, lines out, in both eras of the protocol.
//!
//! Each line is a POST. Requests are under way side by side; anything else is sent before the next line is. Until
//! 2025-11-25 `initialize` opens a session, the server speaks on a stream of its own, and a stream that broke off is
//! resumed where the server gave its events ids. From 2026-07-28 on each request stands alone, and to hang up is to
//! cancel. No redirect is followed: a header could go elsewhere.
//!
//! `Target` is the address of a server, with the headers that it wants.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, value::RawValue};
use tokio::{sync::mpsc, task::AbortHandle};

use super::{
    era,
    message::{self, Message, Named},
    mirror::{self, Mirror, VERSION_HEADER},
    stream::{self, LONGEST, ResumePoint},
};
use crate::{
    proxy::upstream::{Key, Pool, SendFailed},
    wire::network::{Network, is_loopback},
};

pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

/// Time for which an unused connection is kept. It is shorter than servers keep theirs: a connection that the
/// server closes while a call is written to it leaves that call in doubt.
const IDLE: Duration = Duration::from_secs(2);

/// Number of tries in a row that may fail to reach a server or to resume a stream before it is given up.
const MOST_TRIES: u32 = 5;

/// Time by which the pause grows from one try to the next.
const PAUSE: Duration = Duration::from_millis(300);

/// Longest wait for a server to accept a message that has no answer.
const TAKEN: Duration = Duration::from_secs(30);

/// Longest wait for a server to end a session.
const GOODBYE: Duration = Duration::from_secs(2);

/// Longest pause before the server's own stream is asked for again.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Number of bytes of a refusal that are read; `TOLD` characters of them are put into the error.
const REFUSAL: usize = 1 << 20;
const TOLD: usize = 200;

/// Places where a person gives the login of a server at a URL.
const LOGIN: &str = "--header-env Authorization=VARIABLE, or header_env in [mcp.NAME]";

/// Message or event from an MCP server.
#[derive(Debug)]
pub enum Heard {
    /// A message of the server, in one line.
    Line(Vec<u8>),
    /// The answer to this line will never come. `taken`: the server may have acted on the line.
    Lost { line: Vec<u8>, why: String, taken: bool },
    /// The server no longer knows the session, and did not process this line.
    Forgotten(Vec<u8>),
}

/// Connection to an MCP server. Ended by [`Remote::close`].
pub struct Remote {
    wire: Arc<Wire>,
    lines: mpsc::UnboundedSender<Vec<u8>>,
    sending: AbortHandle,
}

struct Wire {
    target: Target,
    pool: Pool,
    heard: Box<dyn Fn(Heard) + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    session: Option<HeaderValue>,
    /// Protocol version that `initialize` agreed on; `None` before.
    version: Option<HeaderValue>,
    /// Requests that have no answer yet, by their ids.
    requests: HashMap<String, Request>,
    listening: Option<AbortHandle>,
}

struct Request {
    line: Vec<u8>,
    task: AbortHandle,
    /// Whether the request names its protocol version itself and belongs to no session: hanging up cancels
    /// it.
    stands_alone: bool,
}

/// Continuation after a response.
enum Next {
    Over,
    /// The line is to be sent again: another request has opened a new session meanwhile.
    Again,
}

impl Remote {
    /// Starts to send to a server. `heard` is called from the runtime's threads, and must not wait.
    pub fn start(target: Target, network: &Network, heard: impl Fn(Heard) + Send + Sync + 'static) -> Remote {
        let pool = Pool::new(network, IDLE);
        let wire = Arc::new(Wire { target, pool, heard: Box::new(heard), state: Mutex::default() });
        let (lines, queue) = mpsc::unbounded_channel();
        let sending = tokio::spawn(send(wire.clone(), queue)).abort_handle();
        Remote { wire, lines, sending }
    }

    /// Queues a message to the server, after those queued before.
    pub fn send(&self, line: Vec<u8>) {
        let _ = self.lines.send(line);
    }

    /// Gives up all requests, and tells the server to end the session.
    pub async fn close(self) {
        self.sending.abort();
        let session = {
            let mut state = self.wire.state.lock();
            state.requests.drain().for_each(|(_, request)| request.task.abort());
            state.listening.take().inspect(AbortHandle::abort);
            state.session.take()
        };
        if let Some(session) = session {
            let headers = self.wire.headers(Some(&session));
            let goodbye = self.wire.pool.send(Method::DELETE, &self.wire.target.url, headers, Bytes::new());
            let _ = tokio::time::timeout(GOODBYE, goodbye).await;
        }
    }
}

/// Sends queued lines in order. A request is not kept waiting for the answer to another one.
async fn send(wire: Arc<Wire>, mut queue: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(line) = queue.recv().await {
        let Ok(message) = message::read(&line) else { continue };
        match (message.method.as_deref(), message.id) {
            (Some(method), Some(id)) => {
                let (id, method) = (id.get().to_owned(), method.to_owned());
                let stands_alone = era::version(message.params).is_some();
                let (asking, asked, sent) = (wire.clone(), id.clone(), line.clone());
                // Registered before it runs, so that its end finds it.
                let mut state = wire.state.lock();
                let task = tokio::spawn(async move {
                    asking.request(&asked, &method, sent).await;
                    asking.state.lock().requests.remove(&asked);
                });
                state.requests.insert(id, Request { line, task: task.abort_handle(), stands_alone });
            }
            (Some("notifications/cancelled"), None) if wire.hang_up(&message) => {}
            (method, _) => {
                let is_ready = method == Some("notifications/initialized");
                let told = tokio::time::timeout(TAKEN, wire.tell(&line)).await;
                if is_ready && told == Ok(true) {
                    let listening = tokio::spawn(listen(wire.clone())).abort_handle();
                    let before = wire.state.lock().listening.replace(listening);
                    before.inspect(AbortHandle::abort);
                }
            }
        }
    }
}

/// Hears what the server says unasked, for as long as it offers a stream for that.
async fn listen(wire: Arc<Wire>) {
    let (mut place, mut failed) = (ResumePoint::default(), 0);
    loop {
        match wire.get(place.last.as_deref()).await {
            Some(response) if is_stream(&response) => {
                let came = stream::read(response.into_body(), &mut place, |line| wire.hear(line)).await;
                failed = if came > 0 { 0 } else { failed + 1 };
            }
            // It offers none, or the session is over, which the next line will tell.
            Some(_) => return,
            None => failed += 1,
        }
        tokio::time::sleep((place.pause * failed.max(1)).min(LONGEST_PAUSE)).await;
    }
}

impl Wire {
    fn hear(&self, line: Vec<u8>) {
        (self.heard)(Heard::Line(line));
    }

    fn lost(&self, line: Vec<u8>, why: &str, taken: bool) {
        (self.heard)(Heard::Lost { line, why: self.target.masked(why), taken });
    }

    /// Returns the headers of each request: those that the person configured, and the session's.
    fn headers(&self, session: Option<&HeaderValue>) -> HeaderMap {
        let mut headers = self.target.headers.clone();
        headers.insert(header::USER_AGENT, HeaderValue::from_static("outlast"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        if let Some(session) = session {
            headers.insert(SESSION, session.clone());
        }
        if let Some(version) = &self.state.lock().version {
            headers.insert(VERSION_HEADER, version.clone());
        }
        headers
    }

    async fn post(&self, line: &[u8], mut headers: HeaderMap) -> Result<Response<Incoming>, SendFailed> {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut tries = 0;
        loop {
            tries += 1;
            let body = Bytes::copy_from_slice(line);
            match self.pool.send(Method::POST, &self.target.url, headers.clone(), body).await {
                Err(SendFailed::Unreachable(..)) if tries < MOST_TRIES => {
                    tokio::time::sleep(PAUSE * tries).await;
                }
                sent => return sent,
            }
        }
    }

    /// Asks for the server's own stream, or for the rest of one that broke off.
    async fn get(&self, last: Option<&str>) -> Option<Response<Incoming>> {
        let session = self.state.lock().session.clone();
        let mut headers = self.headers(session.as_ref());
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(last) = last.and_then(|last| HeaderValue::from_str(last).ok()) {
            headers.insert(LAST_EVENT, last);
        }
        self.pool.send(Method::GET, &self.target.url, headers, Bytes::new()).await.ok()
    }

    /// Sends a message that has no answer. Returns whether the server accepted it.
    async fn tell(&self, line: &[u8]) -> bool {
        let session = self.state.lock().session.clone();
        let sent = self.post(line, self.headers(session.as_ref())).await;
        let why = match sent {
            Ok(response) if response.status().is_success() => return true,
            Ok(response) => response.status().to_string(),
            Err(e) => e.to_string(),
        };
        tracing::warn!("the MCP server {:?} did not take a message: {why}", self.target);
        false
    }

    /// Cancels the request that `message` names by hanging up. Returns false if the server has to be told
    /// instead.
    fn hang_up(&self, message: &Message<'_>) -> bool {
        let request = {
            let mut state = self.state.lock();
            let Some(id) = Named::read(message.params).request_id.map(RawValue::get) else { return false };
            if !state.requests.get(id).is_some_and(|request| request.stands_alone) {
                return false;
            }
            state.requests.remove(id)
        };
        if let Some(request) = request {
            request.task.abort();
            self.lost(request.line, "the client cancelled it", true);
        }
        true
    }

    /// Sends a request, and returns when its answer has come or is known to be lost.
    async fn request(&self, id: &str, method: &str, line: Vec<u8>) {
        loop {
            let session = {
                let mut state = self.state.lock();
                if method == "initialize" {
                    state.listening.take().inspect(AbortHandle::abort);
                    (state.session, state.version) = (None, None);
                }
                state.session.clone()
            };
            let mut headers = self.headers(session.as_ref());
            let params = message::read(&line).ok().and_then(|m| m.params);
            if let Some(version) = era::version(params) {
                self.target.mirror.lock().add(&version, method, params, &mut headers);
            }
            let response = match self.post(&line, headers).await {
                Ok(response) => response,
                Err(SendFailed::Unsendable(e)) => return self.lost(line, &e, false),
                Err(SendFailed::Unreachable(e, _)) => {
                    return self.lost(line, &format!("it cannot be reached: {e}"), false);
                }
                Err(SendFailed::Lost(e)) => return self.lost(line, &e, true),
            };
            let next = match response.status() {
                status if status.is_success() => self.answered(id, method, &line, response).await,
                _ => self.refused(id, &line, session.as_ref(), response).await,
            };
            if let Next::Over = next {
                return;
            }
        }
    }

    async fn answered(&self, id: &str, method: &str, line: &[u8], response: Response<Incoming>) -> Next {
        if method == "initialize" {
            self.state.lock().session = response.headers().get(SESSION).cloned();
        }
        let answered = AtomicBool::new(false);
        let stands_alone = era::version(message::read(line).ok().and_then(|m| m.params)).is_some();
        let mut take = |one: Vec<u8>| {
            let is_answer = self.is_answer(id, method, &one);
            answered.fetch_or(is_answer, Relaxed);
            let is_list = is_answer && stands_alone && method == "tools/list";
            self.hear(is_list.then(|| self.sound_tools(id, &one)).flatten().unwrap_or(one));
        };
        if is_stream(&response) {
            let (mut place, mut failed) = (ResumePoint::default(), 0);
            let mut response = Some(response);
            loop {
                let came = match response.take() {
                    Some(response) => stream::read(response.into_body(), &mut place, &mut take).await,
                    None => 0,
                };
                failed = if came > 0 { 0 } else { failed + 1 };
                let gives_up = stands_alone || place.last.is_none() || failed >= MOST_TRIES;
                if answered.load(Relaxed) || gives_up {
                    break;
                }
                tokio::time::sleep(place.pause).await;
                response = self.get(place.last.as_deref()).await;
                if response.as_ref().is_some_and(|response| !is_stream(response)) {
                    break;
                }
            }
        } else {
            let whole = Limited::new(response.into_body(), LONGEST).collect().await;
            let body = whole.map(|whole| whole.to_bytes()).unwrap_or_default();
            if !body.iter().all(u8::is_ascii_whitespace) {
                take(stream::one_line(body.into()));
            }
        }
        if !answered.load(Relaxed) {
            self.lost(line.to_vec(), "its answer broke off", true);
        }
        Next::Over
    }

    /// Returns whether a message is the answer to the request `id`. Keeps what the answer says about the
    /// tools or the protocol's version.
    fn is_answer(&self, id: &str, method: &str, line: &[u8]) -> bool {
        let Ok(message) = message::read(line) else { return false };
        if message.method.is_some() || message.id.map(RawValue::get) != Some(id) {
            return false;
        }
        match (method, message.result) {
            ("tools/list", Some(result)) => self.target.mirror.lock().learn(result),
            ("initialize", Some(result)) => {
                let result: Value = serde_json::from_str(result.get()).unwrap_or_default();
                let version = result["protocolVersion"].as_str();
                self.state.lock().version = version.and_then(|v| HeaderValue::from_str(v).ok());
            }
            _ => {}
        }
        true
    }

    /// Returns the answer to a `tools/list` without the tools that a client over HTTP has to leave out, each of which is
    /// logged; `None` if there are none.
    fn sound_tools(&self, id: &str, line: &[u8]) -> Option<Vec<u8>> {
        let (result, left_out) = mirror::sound_tools(message::read(line).ok()?.result?)?;
        for (tool, why) in left_out {
            tracing::warn!(
                "the MCP server {:?} lists the tool {tool:?}, which is left out: {why}",
                self.target
            );
        }
        Some(message::answer(id, &format!("\"result\":{result}")))
    }

    /// Decides how to go on after a response whose status is no success.
    async fn refused(
        &self,
        id: &str,
        line: &[u8],
        session: Option<&HeaderValue>,
        response: Response<Incoming>,
    ) -> Next {
        let status = response.status();
        let whole = Limited::new(response.into_body(), REFUSAL).collect().await;
        let body = whole.map(|whole| whole.to_bytes()).unwrap_or_default();
        let text = self.target.masked(&String::from_utf8_lossy(&body));
        // By the protocol it is 404; servers made from the SDK's examples answer 400.
        let has_forgotten = status == StatusCode::NOT_FOUND
            || status == StatusCode::BAD_REQUEST && text.to_lowercase().contains("session");
        if let Some(session) = session.filter(|_| has_forgotten) {
            let mut state = self.state.lock();
            match &state.session {
                Some(other) if other != session => return Next::Again,
                _ => {
                    state.session = None;
                    state.listening.take().inspect(AbortHandle::abort);
                }
            }
            drop(state);
            (self.heard)(Heard::Forgotten(line.to_vec()));
            return Next::Over;
        }
        let message = message::read(text.as_bytes()).ok();
        if let Some(body) = message.as_ref().filter(|m| m.method.is_none()).and_then(message::recorded) {
            self.hear(stream::one_line(message::answer(id, &body)));
            return Next::Over;
        }
        let told: String = text.chars().filter(|c| !c.is_control()).take(TOLD).collect();
        let why = match status {
            _ if status.is_redirection() => {
                format!("it answered {status}, and redirects are not followed")
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                format!("it answered {status}, it wants a login ({LOGIN}): {told}")
            }
            _ => format!("it answered {status}: {told}"),
        };
        // A server that fails, and whatever stands before it, may have acted.
        let taken = status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT;
        self.lost(line.to_vec(), why.trim_end_matches([':', ' ']), taken);
        Next::Over
    }
}

fn is_stream(response: &Response<Incoming>) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    response.status().is_success()
        && kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream"))
}

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
