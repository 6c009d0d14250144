//! MCP servers at `/mcp/NAME`, over streamable HTTP: each client's lines go to a recorder, and the recorder's to the
//! client.
//!
//! Until 2025-11-25 a client opens a session, which belongs to the attempt that its credential names. From 2026-07-28 on
//! each request stands alone, and has a recorder of its own for as long as it lasts; to hang up is to cancel it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};
use outlast_core::words::clock::{self, Entropy};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time,
};

use super::{
    era::{self, Era, MISMATCH, UNSPOKEN, WITH_SESSIONS},
    message::{self, INVALID, Message, PARAMS},
    mirror::{Mirror, VERSION_HEADER},
    recorder::{Caller, Recorders},
    remote::SESSION,
    session::{Asked, Form, Head, Session},
    stream,
};
use crate::wire::{
    body::{AnswerBody, JSON, response},
    socket::Wire,
};

/// HTTP methods of the routes `/mcp/NAME`, as the OpenAPI file lists them.
pub const ROUTES: [(&str, &str); 3] =
    [("DELETE", "/mcp/{name}"), ("GET", "/mcp/{name}"), ("POST", "/mcp/{name}")];

/// Prefix of the paths of MCP servers.
const PREFIX: &str = "/mcp/";

/// Code of the error that no such session is known.
const NO_SESSION: i64 = -32001;

/// Time between two comments on a stream that nothing else comes on.
const QUIET: Duration = Duration::from_secs(15);

/// MCP servers at `/mcp/NAME`, with the sessions of their clients.
pub struct Front {
    recorders: Arc<dyn Recorders>,
    entropy: Arc<dyn Entropy>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    /// Sender whose news ends the requests that stand alone.
    closing: watch::Sender<()>,
}

/// Returns the server's name in a path; `None` for any other path.
pub fn name(path: &str) -> Option<&str> {
    path.strip_prefix(PREFIX).filter(|name| !name.is_empty() && !name.contains('/'))
}

impl Front {
    pub fn new(recorders: Arc<dyn Recorders>, entropy: Arc<dyn Entropy>) -> Front {
        Front { recorders, entropy, sessions: Mutex::default(), closing: watch::Sender::default() }
    }

    /// Ends all sessions, and all requests that stand alone. The recorder of each then ends by itself.
    pub fn close(&self) {
        self.sessions.lock().clear();
        self.closing.send_replace(());
    }

    /// Answers a request of a client that may act in the attempt of `caller`.
    pub async fn answer(
        &self,
        name: &str,
        caller: Caller,
        parts: &Parts,
        body: Bytes,
        wire: Wire,
    ) -> Response<AnswerBody> {
        let Some(stands_alone) = self.recorders.stands_alone(name) else {
            return refused(404, None, INVALID, &format!("no MCP server is named {name:?} here"));
        };
        let session = parts.headers.get(SESSION).and_then(|id| id.to_str().ok());
        let known = || {
            let session = self.sessions.lock().get(session?).cloned()?;
            (session.name == name && session.caller == caller && !session.is_over()).then_some(session)
        };
        match parts.method {
            Method::POST => {}
            Method::GET => {
                return match known() {
                    Some(session) => {
                        let (to, pieces) = mpsc::unbounded_channel();
                        session.listen(to);
                        streamed(pieces, wire, (200, Form::Events), None)
                    }
                    None => no_session(None, session),
                };
            }
            Method::DELETE => {
                return match known() {
                    Some(_) => {
                        session.and_then(|id| self.sessions.lock().remove(id));
                        empty(StatusCode::OK)
                    }
                    None => no_session(None, session),
                };
            }
            _ => {
                let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
                response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
                return response;
            }
        }
        let line = stream::one_line(body.into());
        let message = match message::read(&line) {
            Ok(message) => message,
            Err((code, text)) => return refused(400, None, code, &text),
        };
        let id = message.id.map(|id| id.get().to_owned()).filter(|id| id != "null");
        let form = form(&parts.headers);
        match (message.method.as_deref(), id) {
            (None, None) => refused(400, None, INVALID, "neither a request nor an answer"),
            (Some(method), Some(id)) => {
                if session.is_none() && is_alone(&message, &parts.headers) {
                    return match agrees(method, &message, &parts.headers) {
                        Err((code, why)) => refused(400, Some(&id), code, &why),
                        Ok(version) if !stands_alone => unsupported(&id, &version),
                        Ok(_) => self.alone(name, caller, id, line, (form, wire)).await,
                    };
                }
                let (session, new) = match known() {
                    Some(session) => (session, None),
                    None if method == "initialize" && session.is_none() => match self.open(name, caller) {
                        Some((key, session)) => (session, Some(key)),
                        None => return refused(404, Some(&id), INVALID, "the server is gone"),
                    },
                    None => return no_session(Some(&id), session),
                };
                let (to, pieces) = mpsc::unbounded_channel();
                let asked = Asked { id: id.clone(), era: Era::Session, form, to, head: None };
                if !session.ask(asked, &message, line.clone()) {
                    let text = "this id is of a request that is not answered yet";
                    return refused(400, Some(&id), INVALID, text);
                }
                streamed(pieces, wire, (200, form), new.as_deref())
            }
            _ => match known() {
                Some(session) => {
                    session.tell(&message, line.clone());
                    empty(StatusCode::ACCEPTED)
                }
                // Nobody waits for what stands alone and has no answer.
                None if session.is_none() && message.method.is_some() => empty(StatusCode::ACCEPTED),
                None => no_session(None, session),
            },
        }
    }

    /// Opens a session. Sessions of the run's earlier attempts, and unused ones, end.
    fn open(&self, name: &str, caller: Caller) -> Option<(String, Arc<Session>)> {
        self.sessions.lock().retain(|_, other| {
            let is_earlier = other.caller.run == caller.run
                && other.caller.slot == caller.slot
                && other.caller.attempt < caller.attempt;
            !is_earlier && !other.is_over()
        });
        let (told, hears) = mpsc::unbounded_channel();
        let lines = self.recorders.start(name, caller.clone(), told)?;
        let key: [u8; 16] = clock::random(self.entropy.as_ref());
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let session = Arc::new(Session::begin(name.to_owned(), caller, lines, hears));
        self.sessions.lock().insert(key.clone(), session.clone());
        Some((key, session))
    }

    /// Answers a request that belongs to no session. The recorder of the request ends with the answer, or some time after
    /// the client hung up.
    async fn alone(
        &self,
        name: &str,
        caller: Caller,
        id: String,
        line: Vec<u8>,
        (form, wire): (Form, Wire),
    ) -> Response<AnswerBody> {
        let ((told, hears), (to, pieces)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let Some(lines) = self.recorders.start(name, caller.clone(), told) else {
            return refused(404, Some(&id), INVALID, "the server is gone");
        };
        let session = Session::begin(name.to_owned(), caller, lines, hears);
        let (decided, head) = oneshot::channel();
        if let Ok(message) = message::read(&line) {
            let asked = Asked { id, era: Era::Alone, form, to: to.clone(), head: Some(decided) };
            session.ask(asked, &message, line.clone());
        }
        let mut closing = self.closing.subscribe();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    // Closed by the response's end, and by a client that hangs up, also before its response has begun.
                    () = to.closed() => return session.hung_up(),
                    _ = closing.changed() => return,
                    () = time::sleep(QUIET) => session.keep_open(),
                }
            }
        });
        // A session answers all that it was asked before it ends.
        let head = head.await.unwrap_or((500, Form::Json));
        streamed(pieces, wire, head, None)
    }
}

fn form(headers: &HeaderMap) -> Form {
    let mut accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let takes_events = accepted.any(|accept| accept.contains("text/event-stream") || accept.contains("*/*"));
    if takes_events { Form::Events } else { Form::Json }
}

/// Returns whether a request without a session is of the era that has none: its body or its header names such a version.
fn is_alone(message: &Message<'_>, headers: &HeaderMap) -> bool {
    let named = headers.get(VERSION_HEADER).and_then(|version| version.to_str().ok());
    era::version(message.params).is_some() || named.is_some_and(|version| version > WITH_SESSIONS)
}

/// Checks that a request which stands alone names its version, and that the headers which repeat its members agree with
/// its body. Returns the version. Errors: code and text of a JSON-RPC error.
fn agrees(method: &str, message: &Message<'_>, headers: &HeaderMap) -> Result<String, (i64, String)> {
    let Some(version) = era::version(message.params) else {
        return Err((PARAMS, format!("params._meta has no {}", era::VERSION)));
    };
    let mut wanted = HeaderMap::new();
    Mirror::default().add(&version, method, message.params, &mut wanted);
    for (name, value) in &wanted {
        if headers.get(name) != Some(value) {
            let had = headers.get(name).map(|had| String::from_utf8_lossy(had.as_bytes()).into_owned());
            let wanted = String::from_utf8_lossy(value.as_bytes());
            let why = format!("Header mismatch: {name} is {had:?}, and the body says {wanted:?}");
            return Err((MISMATCH, why));
        }
    }
    Ok(version)
}

fn streamed(
    pieces: mpsc::UnboundedReceiver<crate::wire::body::Piece>,
    wire: Wire,
    (status, form): Head,
    session: Option<&str>,
) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::marked(pieces, wire));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = match form {
        Form::Events => "text/event-stream",
        Form::Json => JSON,
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(key) = session.and_then(|key| HeaderValue::from_str(key).ok()) {
        headers.insert(SESSION, key);
    }
    response
}

fn empty(status: StatusCode) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::plain(Bytes::new()));
    *response.status_mut() = status;
    response
}

fn no_session(id: Option<&str>, named: Option<&str>) -> Response<AnswerBody> {
    match named {
        Some(_) => refused(404, id, NO_SESSION, "Session not found"),
        None => refused(400, id, INVALID, "a session is wanted: initialize opens one"),
    }
}

/// Returns the refusal of a protocol version that has no sessions, by which a client that speaks older
/// versions too knows that it has to open a session.
fn unsupported(id: &str, version: &str) -> Response<AnswerBody> {
    let error = json!({
        "code": UNSPOKEN,
        "message": "Unsupported protocol version",
        "data": {"supported": [WITH_SESSIONS], "requested": version},
    });
    response(400, JSON, message::answer(id, &format!("\"error\":{error}")))
}

fn refused(status: u16, id: Option<&str>, code: i64, text: &str) -> Response<AnswerBody> {
    response(status, JSON, message::answer(id.unwrap_or("null"), &message::error(code, text)))
}
