//! A small client: what it sends is what a test says, and it can leave at any time.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
};

use crate::rig::{ANTHROPIC_KEY, GEMINI_KEY, HOUSE_KEY, OPENAI_KEY, Server, within};

/// API that a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Chat,
    Responses,
    Messages,
    Gemini,
    /// Chat at an upstream that a person has named `house`.
    Named,
    /// No stream, no output.
    Embeddings,
}

/// APIs that generate answers, whole and in streams.
pub const ALL: [Api; 5] = [Api::Chat, Api::Responses, Api::Messages, Api::Gemini, Api::Named];

/// Returns the APIs in which the output cap is a member of the body.
pub fn capped() -> impl Iterator<Item = Api> {
    ALL.into_iter().filter(|api| *api != Api::Gemini)
}

/// Every metered API.
pub fn every() -> impl Iterator<Item = Api> {
    ALL.into_iter().chain([Api::Embeddings])
}

/// Every way to ask: each API, and whether it streams.
pub fn ways() -> impl Iterator<Item = (Api, bool)> {
    ALL.into_iter().flat_map(|api| [(api, false), (api, true)]).chain([(Api::Embeddings, false)])
}

impl Api {
    pub fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Responses => "/v1/responses",
            Api::Messages => "/v1/messages",
            Api::Gemini => "/v1beta/models/gemini-2.5-flash:generateContent",
            Api::Named => "/u/house/v1/chat/completions",
            Api::Embeddings => "/v1/embeddings",
        }
    }

    pub fn model(self) -> &'static str {
        match self {
            Api::Chat | Api::Responses => "gpt-4o-mini",
            Api::Named => "gpt-4.1-mini",
            Api::Messages => "claude-haiku-4-5",
            Api::Gemini => "gemini-2.5-flash",
            Api::Embeddings => "text-embedding-3-small",
        }
    }

    /// A body that says `text`, capped at 64 tokens.
    pub fn body(self, text: &str) -> Value {
        if self == Api::Embeddings {
            return json!({"model": self.model(), "input": text});
        }
        if self == Api::Gemini {
            let contents = json!([{"role": "user", "parts": [{"text": text}]}]);
            return json!({"contents": contents, "generationConfig": {"maxOutputTokens": 64}});
        }
        json!({"model": self.model(), self.cap(): 64, self.input(): [{"role": "user", "content": text}]})
    }

    /// The member that caps the output.
    pub fn cap(self) -> &'static str {
        match self {
            Api::Chat | Api::Messages | Api::Named => "max_tokens",
            Api::Responses => "max_output_tokens",
            Api::Gemini => unreachable!("it is in generationConfig"),
            Api::Embeddings => unreachable!("it has no output"),
        }
    }

    /// The member that holds the conversation.
    pub fn input(self) -> &'static str {
        match self {
            Api::Chat | Api::Messages | Api::Named => "messages",
            Api::Responses | Api::Embeddings => "input",
            Api::Gemini => "contents",
        }
    }

    /// The target as the provider gets it.
    pub fn upstream_target(self, target: &str) -> String {
        target.replace("/u/house/v1", "/openai/v1")
    }

    /// The header and the value of the provider's own credential.
    pub fn credential(self) -> (&'static str, String) {
        match self {
            Api::Chat | Api::Responses | Api::Embeddings => ("authorization", format!("Bearer {OPENAI_KEY}")),
            Api::Messages => ("x-api-key", ANTHROPIC_KEY.to_owned()),
            Api::Gemini => ("x-goog-api-key", GEMINI_KEY.to_owned()),
            Api::Named => ("api-key", HOUSE_KEY.to_owned()),
        }
    }

    /// Returns a usage of `input` and `output` tokens as this API reports it.
    pub fn used(self, input: u64, output: u64) -> (u64, u64) {
        (input, if self == Api::Embeddings { 0 } else { output })
    }

    /// A request for an answer to `text`, for the run `r`.
    pub fn says(self, text: &str) -> Ask {
        self.sends(&self.body(text))
    }

    pub fn streams(self, text: &str) -> Ask {
        if self == Api::Gemini {
            let target = self.path().replace(":generateContent", ":streamGenerateContent?alt=sse");
            return self.says(text).target(&target);
        }
        self.sends(&with(self.body(text), json!({"stream": true})))
    }

    /// A request to another model.
    pub fn says_to(self, model: &str, text: &str) -> Ask {
        if self == Api::Gemini {
            return self.says(text).target(&self.path().replace(self.model(), model));
        }
        self.sends(&with(self.body(text), json!({"model": model})))
    }

    pub fn sends(self, body: &Value) -> Ask {
        let mut ask = Ask::new("POST", self.path()).bytes(body.to_string()).run("r");
        if self == Api::Messages {
            ask = ask.header("anthropic-version", "2023-06-01");
        }
        ask
    }
}

/// `body` with `more` members.
pub fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A request.
#[derive(Clone, Debug)]
pub struct Ask {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
}

/// An answer, read to its end.
#[derive(Debug, PartialEq)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Whether the body ended early.
    pub broken: bool,
}

/// An answer that has begun. Dropping it hangs up.
pub struct Opened {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    pub read: Vec<u8>,
    connection: Connection,
}

struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Ask {
    pub fn new(method: &str, target: &str) -> Ask {
        let (method, target) = (method.to_owned(), target.to_owned());
        Ask { method, target, headers: Vec::new(), body: Bytes::new() }
    }

    pub fn bytes(self, body: impl Into<Bytes>) -> Ask {
        Ask { body: body.into(), ..self }
    }

    pub fn target(self, target: &str) -> Ask {
        Ask { target: target.to_owned(), ..self }
    }

    /// Sets the header, in place of one of this name.
    pub fn header(self, name: &str, value: &str) -> Ask {
        let mut ask = self.without(name);
        ask.headers.push((name.into(), value.into()));
        ask
    }

    pub fn without(mut self, name: &str) -> Ask {
        self.headers.retain(|(n, _)| n != name);
        self
    }

    pub fn run(self, id: &str) -> Ask {
        self.header("x-outlast-run", id)
    }

    pub fn label(self, label: &str) -> Ask {
        self.header("x-outlast-attempt", label)
    }

    /// By its run token alone, as an agent under a supervisor.
    pub fn token(self, token: &str) -> Ask {
        self.without("x-outlast-run").without("x-outlast-attempt").header("x-api-key", token)
    }

    /// As the SDKs mark their `n`th retry.
    pub fn retry(self, n: u32) -> Ask {
        self.header("x-stainless-retry-count", &n.to_string())
    }

    /// Sends it and reads the whole answer.
    pub async fn to(&self, server: &Server) -> Answer {
        within(&self.target, async { self.open(server.addr).await.rest().await }).await
    }

    /// Sends it and waits for the head of the answer.
    pub async fn open(&self, addr: SocketAddr) -> Opened {
        let (response, connection) = self.send(addr).await;
        let (head, body) = within("an answer's head", response).await.unwrap().into_parts();
        Opened { status: head.status, headers: head.headers, body, read: Vec::new(), connection }
    }

    /// As `open`, from a server that may not be there; `None` when no head comes.
    pub async fn try_open(&self, addr: SocketAddr) -> Option<Opened> {
        let stream = TcpStream::connect(addr).await.ok()?;
        let (response, connection) = self.send_on(stream, addr).await;
        let (head, body) = within("an answer's head", response).await.ok()?.into_parts();
        Some(Opened { status: head.status, headers: head.headers, body, read: Vec::new(), connection })
    }

    /// Sends it and does not wait; dropping what is returned hangs up.
    pub async fn throw(&self, addr: SocketAddr) -> impl Drop + use<> {
        let (response, connection) = self.send(addr).await;
        let waiting = tokio::spawn(async move { drop((response.await, connection)) });
        Connection(waiting)
    }

    async fn send(
        &self,
        addr: SocketAddr,
    ) -> (impl Future<Output = hyper::Result<Response<Incoming>>> + use<>, Connection) {
        self.send_on(TcpStream::connect(addr).await.unwrap(), addr).await
    }

    async fn send_on(
        &self,
        stream: TcpStream,
        addr: SocketAddr,
    ) -> (impl Future<Output = hyper::Result<Response<Incoming>>> + use<>, Connection) {
        stream.set_nodelay(true).unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        // An error of the connection is the answer's error, too.
        let connection = Connection(tokio::spawn(async move { drop(connection.await) }));
        let mut request = Request::builder().method(&*self.method).uri(&self.target);
        if !self.headers.iter().any(|(n, _)| n == "host") {
            request = request.header("host", addr.to_string());
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(self.body.clone())).unwrap();
        let answer = async move {
            let response = sender.send_request(request).await;
            drop(sender);
            response
        };
        (answer, connection)
    }
}

impl Opened {
    /// Returns what was read so far.
    pub fn so_far(&self) -> &[u8] {
        &self.read
    }

    /// Reads until `text` was read, which must come.
    pub async fn read_until(&mut self, text: &str) {
        while memchr::memmem::find(&self.read, text.as_bytes()).is_none() {
            let frame = within(text, self.body.frame()).await;
            let frame = frame.unwrap_or_else(|| panic!("the answer ended before {text:?}")).unwrap();
            self.read.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    /// Reads to the end, clean or not.
    pub async fn rest(mut self) -> Answer {
        let mut broken = false;
        while let Some(frame) = self.body.frame().await {
            match frame {
                Ok(frame) => self.read.extend_from_slice(&frame.into_data().unwrap()),
                Err(_) => {
                    broken = true;
                    break;
                }
            }
        }
        drop(self.connection);
        Answer { status: self.status, headers: self.headers, body: self.read.into(), broken }
    }
}

impl Answer {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|v| v.to_str().unwrap())
    }

    pub fn is_replayed(&self) -> bool {
        self.header("x-outlast-replayed") == Some("true")
    }

    /// The code of one of our refusals, where its shape has it; an upstream's own error has none.
    pub fn code(&self) -> String {
        let body = self.json();
        // Google's `code` is a number; the reason is in a detail.
        let reason = body["error"]["details"][0]["reason"].as_str();
        let code = body["error"]["code"].as_str().or(reason).unwrap_or_else(|| panic!("no code in {body}"));
        assert_eq!(self.header("x-outlast-code"), Some(code), "{body}");
        code.to_owned()
    }

    /// Returns the body of a successful answer. Panics for any other status.
    pub fn ok(self) -> Bytes {
        assert_eq!(self.status, 200, "{:?}", self.body);
        assert!(!self.broken, "{:?}", self.body);
        self.body
    }
}

/// Sends `bytes` as they are, and reads what comes until the server closes.
pub async fn raw(addr: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    read_to_end(stream).await.unwrap()
}

/// Sends `ask`, leaves when `then` is over, and returns once the server has noticed.
pub async fn ask_and_leave(addr: SocketAddr, ask: &Ask, then: impl Future<Output = ()>) -> String {
    try_and_leave(addr, ask, then).await.unwrap()
}

/// The same, of a server that may not be there.
pub async fn try_and_leave(
    addr: SocketAddr,
    ask: &Ask,
    then: impl Future<Output = ()>,
) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(addr).await?;
    let mut text = format!("{} {} HTTP/1.1\r\nhost: {addr}\r\n", ask.method, ask.target);
    for (name, value) in &ask.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("content-length: {}\r\n\r\n", ask.body.len()));
    stream.write_all(&[text.as_bytes(), &ask.body].concat()).await?;
    then.await;
    stream.shutdown().await?;
    read_to_end(stream).await
}

async fn read_to_end(mut stream: TcpStream) -> std::io::Result<String> {
    let mut all = Vec::new();
    within("the server to close", stream.read_to_end(&mut all)).await?;
    Ok(String::from_utf8_lossy(&all).into_owned())
}

/// Sends all of them at once, and waits for all answers.
pub async fn all(server: &Server, asks: impl IntoIterator<Item = Ask>) -> Vec<Answer> {
    let addr = server.addr;
    let tasks: Vec<JoinHandle<Answer>> = asks
        .into_iter()
        .map(|ask| {
            tokio::spawn(
                async move { within("an answer", async { ask.open(addr).await.rest().await }).await },
            )
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    answers
}
