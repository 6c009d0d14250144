//! The recorder between one client and one server: events in, deeds out. Without I/O, so that each order of deaths and
//! answers is a test.
//!
//! Only `tools/call` is recorded. Its life: reserved (on disk) → approved, where a policy wants it → marked as sent →
//! out → answered → recorded → shown. Everything else passes both ways as it came. A server that dies is started again:
//! its session is opened as the client opened it, requests that only read are sent again, and each tool call is sent
//! again if it may be repeated, else its client is told that nobody knows.

mod upstream;

use std::collections::{HashMap, HashSet, VecDeque};

use outlast_core::{
    journal::Opening,
    words::{Digest, Seq},
};
use outlast_server::mcp::message::{self, INTERNAL, INVALID, Named, PARAMS, ToolCall};
use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::{
    configured::{Manner, Tools},
    ledger::{Approval, Verdict},
};

/// Starts of a server without an answer between them, after which it is given up.
const MOST_STARTS: u32 = 5;

/// Longest wait for a decision, in milliseconds, before a client that takes no progress notices is told to call again.
pub const PATIENCE_MS: u64 = 45_000;

/// Time between two progress notices to a client that waits for a person's decision, in milliseconds.
pub const PROGRESS_MS: u64 = 5_000;

/// Reason for which a call that is marked as sent was not sent: its client gave it up between the mark and the sending.
const WITHDRAWN: &str = "its client cancelled it";

#[derive(Default)]
pub struct Session {
    /// Facts about the server's tools, from the settings and from the server.
    tools: Tools,
    server: Server,
    calls: HashMap<No, Call>,
    next: No,
    plain: HashMap<String, Plain>,
    /// Ids of the server's requests that the client has not answered.
    asked: HashSet<String>,
    /// Lines and calls that wait until the server is up.
    queue: VecDeque<Queued>,
    /// The client's `initialize`, once it was answered; `None` before. It is repeated to a server that is
    /// started again, as are the settings after it that the client has made since.
    greeting: Option<Vec<u8>>,
    initialized: Option<Vec<u8>>,
    level: Option<Vec<u8>>,
    subscriptions: Vec<(String, Vec<u8>)>,
    /// Ids of requests that Outlast itself made to the server, whose answers are not passed on.
    own: HashSet<String>,
    own_ids: u64,
    /// Number of times that the server was started since it last answered the client.
    starts: u32,
    /// Calls that were reserved, and that the client gave up before a person decided.
    released: HashMap<Digest, Vec<Open>>,
    /// Number of recorded answers that were given to calls without an id.
    replayed: usize,
    /// Whether the calls of this attempt differ from those of the attempt before.
    diverged: bool,
    closing: bool,
    deeds: Vec<Deed>,
}

impl Session {
    pub fn new(tools: Tools) -> (Session, Vec<Deed>) {
        (Session { tools, ..Session::default() }, vec![Deed::Start { pause_ms: 0 }])
    }

    pub fn on(&mut self, event: Event) -> Vec<Deed> {
        match event {
            Event::Client(line) => self.client(line),
            Event::ClientClosed => self.closing = true,
            Event::Server(line) => self.server(line),
            Event::ServerEnded(how) => self.server_ended(&how),
            Event::Lost { line, why, taken } => self.lost(&line, &why, taken),
            Event::Forgotten(line) => self.forgotten(line),
            Event::Reserved(no, verdict) => self.reserved(no, verdict),
            Event::Approved(no, approval) => self.approved(no, approval),
            Event::Left(no, left) => self.left(no, left),
            Event::Recorded(no, recorded) => self.recorded(no, recorded),
            Event::GivenUp(no, Ok(told)) => self.reserved(no, Ok(told)),
            Event::GivenUp(no, Err(why)) => {
                let text = format!(
                    "it is not known whether the tool was called, and that could not be recorded: {why}"
                );
                self.fail(no, &text);
            }
        }
        if self.closing && self.calls.values().all(|call| !call.phase.may_be_answered()) {
            self.deeds.push(Deed::Quit { why: None });
        }
        std::mem::take(&mut self.deeds)
    }

    /// Takes note that the server was started. Returns the deeds that begin its session and send what has waited.
    pub fn started(&mut self) -> Vec<Deed> {
        self.starts += 1;
        self.greet();
        std::mem::take(&mut self.deeds)
    }

    fn client(&mut self, line: Vec<u8>) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let message = match message::read(&line) {
            Ok(message) => message,
            Err((code, text)) => return self.refuse("null", code, &text),
        };
        let id = message.id.map(|id| id.get().to_owned());
        match (message.method.as_deref(), id) {
            (Some("tools/call"), Some(id)) => {
                let call = ToolCall::read(message.params);
                self.call(id, call, line);
            }
            // Nobody could be told of its outcome, and a server that took it would do what is recorded nowhere.
            (Some("tools/call"), None) => {}
            (Some(method), Some(id)) => {
                let method = method.to_owned();
                self.remember(&method, message.params, &line);
                self.plain.insert(id, Plain { method, line: line.clone(), lost: 0 });
                self.pass(line);
            }
            (Some("notifications/cancelled"), None) => self.cancelled(message.params, line.clone()),
            (Some(method), None) => {
                if method == "notifications/initialized" {
                    self.initialized = Some(line.clone());
                }
                self.pass(line);
            }
            // An answer to a question of a server that is gone is nobody's.
            (None, Some(id)) => {
                if self.asked.remove(&id) {
                    self.pass(line);
                }
            }
            (None, None) => self.refuse("null", INVALID, "neither a request nor an answer"),
        }
    }

    /// Keeps a line that has to be repeated to a server which is started again.
    fn remember(&mut self, method: &str, params: Option<&RawValue>, line: &[u8]) {
        #[derive(Deserialize)]
        struct Subscription {
            uri: String,
        }
        let uri = || params.and_then(|p| serde_json::from_str::<Subscription>(p.get()).ok()).map(|s| s.uri);
        match method {
            "logging/setLevel" => self.level = Some(line.to_vec()),
            "resources/subscribe" => self.subscriptions.extend(uri().map(|uri| (uri, line.to_vec()))),
            "resources/unsubscribe" => {
                let gone = uri();
                self.subscriptions.retain(|(uri, _)| Some(uri) != gone.as_ref());
            }
            _ => {}
        }
    }

    fn call(&mut self, id: String, call: Result<ToolCall, String>, line: Vec<u8>) {
        let call = match call {
            Ok(call) => call,
            Err(why) => return self.refuse(&id, PARAMS, &why),
        };
        if self.calls.values().any(|c| c.id == id && !c.withdrawn) {
            return self.refuse(&id, INVALID, "this id is of a request that is not answered yet");
        }
        let manner = self.tools.manner(&call.tool);
        let no = self.next;
        self.next += 1;
        // A call that waited for a person and is made again waits on, under the same entry.
        let waiting = self.released.get_mut(&call.digest).and_then(Vec::pop);
        let phase = match waiting {
            Some(open) => Phase::Approving(open),
            None => Phase::Reserving,
        };
        let made = Call { id, line, call, manner, phase, withdrawn: false, notices: 0, lost: 0 };
        self.calls.insert(no, made);
        match &self.calls[&no].phase {
            Phase::Approving(_) => self.approve(no),
            _ => {
                let call = self.calls[&no].call.clone();
                let (leaves, anew) = (self.server == Server::Up, self.diverged && call.id.is_none());
                self.deeds.push(Deed::Reserve { no, call, manner, leaves, anew });
            }
        }
    }

    fn cancelled(&mut self, params: Option<&RawValue>, line: Vec<u8>) {
        let id = Named::read(params).request_id.map(|id| id.get().to_owned());
        let found = id.as_ref().and_then(|id| {
            self.calls.iter().find(|(_, call)| call.id == *id && !call.withdrawn).map(|(no, _)| *no)
        });
        let Some(no) = found else {
            id.iter().for_each(|id| drop(self.plain.remove(id)));
            return self.pass(line);
        };
        let Some(call) = self.calls.get_mut(&no) else { return };
        call.withdrawn = true;
        match call.phase.clone() {
            // The server may have finished all the same: its answer is recorded if it comes.
            Phase::Out(_) => self.pass(line),
            // Not with the server now, and it will not be.
            Phase::Reserved(open) | Phase::Ready(open) => {
                self.unqueue(no);
                self.give_up(no, open, None);
            }
            _ => {}
        }
    }

    /// Continues a call whose reservation is on disk, or whose answer is known.
    fn reserved(&mut self, no: No, verdict: Result<Verdict, String>) {
        let Some(call) = self.calls.get_mut(&no) else { return };
        match verdict {
            Ok(Verdict::Send { opening, key, new, sent, asks, earlier }) => {
                let open = Open { opening, key };
                self.diverged |= new && call.call.id.is_none() && earlier > self.replayed;
                if call.withdrawn {
                    return self.give_up(no, open, Some(WITHDRAWN.into()));
                }
                call.phase = match (sent, asks) {
                    (_, true) => Phase::Approving(open),
                    (true, false) => Phase::Ready(open),
                    (false, false) => Phase::Reserved(open),
                };
                if asks { self.approve(no) } else { self.go(no) }
            }
            Ok(Verdict::Answer { seq, body }) => {
                self.replayed +=
                    usize::from(call.call.id.is_none() && matches!(call.phase, Phase::Reserving));
                self.answer(no, &body, seq);
            }
            Err(why) => self.fail(no, &format!("the tool was not called: {why}")),
        }
    }

    fn approve(&mut self, no: No) {
        let Some(call) = self.calls.get(&no) else { return };
        let Phase::Approving(open) = &call.phase else { return };
        let patience_ms = if call.call.progress.is_some() { PROGRESS_MS } else { PATIENCE_MS };
        let (opening, manner) = (open.opening, call.manner);
        self.deeds.push(Deed::Approve { no, call: call.call.clone(), manner, opening, patience_ms });
    }

    fn approved(&mut self, no: No, approval: Result<Approval, String>) {
        let Some(call) = self.calls.get_mut(&no) else { return };
        let Phase::Approving(open) = call.phase.clone() else { return };
        if call.withdrawn && !matches!(approval, Ok(Approval::Refused(_))) {
            // The next equal call waits on.
            self.released.entry(call.call.digest).or_default().push(open);
            self.calls.remove(&no);
            return;
        }
        match approval {
            Ok(Approval::Given) => {
                call.phase = Phase::Reserved(open);
                self.go(no);
            }
            Ok(Approval::Pending(body)) => match call.call.progress.clone() {
                Some(token) => {
                    call.notices += 1;
                    let line = message::progress(&token, call.notices, "waits for a person's approval");
                    self.show(line);
                    self.approve(no);
                }
                None => {
                    self.released.entry(call.call.digest).or_default().push(open);
                    self.answer(no, &body, None);
                }
            },
            Ok(Approval::Refused(text)) => {
                let body = message::told(&text, json!({"outlast/outcome": "refused"}));
                let line = call.answer(&body);
                let opening = open.opening;
                call.phase = Phase::Recording(open, line);
                self.deeds.push(Deed::Record { no, opening, body, failed: true });
            }
            Err(why) => self.fail(no, &format!("the tool was not called: {why}")),
        }
    }

    /// Takes the next step of sending a call, or queues the call until the server is up.
    fn go(&mut self, no: No) {
        let Some(call) = self.calls.get_mut(&no) else { return };
        if self.server != Server::Up {
            self.queue.push_back(Queued::Call(no));
            return;
        }
        match call.phase.clone() {
            Phase::Reserved(open) => {
                let opening = open.opening;
                call.phase = Phase::Leaving(open);
                self.deeds.push(Deed::Leave { no, opening });
            }
            Phase::Ready(open) => {
                self.deeds.push(Deed::ToServer(message::with_key(&call.line, &open.key)));
                call.phase = Phase::Out(open);
            }
            _ => {}
        }
    }

    fn left(&mut self, no: No, left: Result<(), String>) {
        let Some(call) = self.calls.get_mut(&no) else { return };
        let Phase::Leaving(open) = call.phase.clone() else { return };
        match left {
            Ok(()) if call.withdrawn => self.give_up(no, open, Some(WITHDRAWN.into())),
            Ok(()) => {
                call.phase = Phase::Ready(open);
                self.go(no);
            }
            Err(why) => self.fail(no, &format!("the tool was not called: {why}")),
        }
    }

    fn recorded(&mut self, no: No, recorded: Result<(), String>) {
        let Some(call) = self.calls.get(&no) else { return };
        let Phase::Recording(open, line) = call.phase.clone() else { return };
        match recorded {
            Ok(()) if call.withdrawn => drop(self.calls.remove(&no)),
            Ok(()) => {
                self.calls.remove(&no);
                self.deeds.push(Deed::ToClient { line, mark: Some(open.opening.seq) });
            }
            Err(why) => {
                self.fail(no, &format!("the tool was called, and its answer could not be recorded: {why}"));
            }
        }
    }

    /// Closes a call that gets no answer. `refused`: reason why the server certainly did not process the
    /// call; `None` if it may have.
    fn give_up(&mut self, no: No, open: Open, refused: Option<String>) {
        let Some(call) = self.calls.get_mut(&no) else { return };
        call.phase = Phase::Closing;
        let tool = call.call.tool.clone();
        self.deeds.push(Deed::GiveUp { no, opening: open.opening, tool, refused });
    }

    /// Sends a line to the server, or keeps it until the server is up.
    fn pass(&mut self, line: Vec<u8>) {
        match self.server {
            Server::Up => self.deeds.push(Deed::ToServer(line)),
            _ => self.queue.push_back(Queued::Line(line)),
        }
    }

    fn show(&mut self, line: Vec<u8>) {
        self.deeds.push(Deed::ToClient { line, mark: None });
    }

    fn refuse(&mut self, id: &str, code: i64, text: &str) {
        self.show(message::answer(id, &message::error(code, text)));
    }

    /// Answers a call with an error of the recorder.
    fn fail(&mut self, no: No, text: &str) {
        self.answer(no, &message::error(INTERNAL, text), None);
    }

    /// Removes a call that is over, and gives its answer to the client unless the client has cancelled it.
    /// `mark`: entry that is then delivered.
    fn answer(&mut self, no: No, body: &str, mark: Option<Seq>) {
        let Some(call) = self.calls.remove(&no) else { return };
        if !call.withdrawn {
            self.deeds.push(Deed::ToClient { line: call.answer(body), mark });
        }
    }

    fn unqueue(&mut self, no: No) {
        self.queue.retain(|q| !matches!(q, Queued::Call(queued) if *queued == no));
    }

    fn own_id(&mut self) -> String {
        self.own_ids += 1;
        let id = json!(format!("outlast-{}", self.own_ids)).to_string();
        self.own.insert(id.clone());
        id
    }
}

// --- State of a session: its server, and the requests that are not answered yet; events that it hears, and deeds that it wants
// done.

/// Tool call of the client in this session, not answered yet.
pub struct Call {
    /// Id of the request, as raw JSON.
    pub id: String,
    pub line: Vec<u8>,
    pub call: ToolCall,
    pub manner: Manner,
    pub phase: Phase,
    /// Whether the client has cancelled the request and gets no answer.
    pub withdrawn: bool,
    /// Number of progress notices sent while the call waits for a person's decision.
    pub notices: u32,
    /// Number of times that the call was sent to the server and its answer was lost.
    pub lost: u32,
}

impl Call {
    /// Returns the line of an answer that does not come from the server now, as the era of the request wants it. `body`:
    /// its member `"result":…` or `"error":…`.
    pub fn answer(&self, body: &str) -> Vec<u8> {
        message::answer(&self.id, &self.call.era.completed(body))
    }
}

#[derive(Clone, Debug)]
pub enum Phase {
    Reserving,
    Approving(Open),
    /// The call is on disk, but not marked as sent.
    Reserved(Open),
    /// The call is being marked as sent.
    Leaving(Open),
    /// The journal marks the call as sent; its request has not been written to the server yet.
    Ready(Open),
    Out(Open),
    /// The server has answered, and the answer is being recorded.
    Recording(Open, Vec<u8>),
    /// The call's entry is being closed without an answer of the server.
    Closing,
}

#[derive(Clone, Debug)]
pub struct Open {
    pub opening: Opening,
    pub key: String,
}

/// Request of the client other than a tool call, which passes unrecorded.
pub struct Plain {
    pub method: String,
    pub line: Vec<u8>,
    /// Number of times that the request's answer was lost.
    pub lost: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Server {
    #[default]
    Starting,
    /// The restarted server gets the `initialize` of the client's session again; the value is that request's id.
    Greeting(String),
    Up,
    /// The server was given up, and is not started again.
    Gone,
}

pub enum Queued {
    Line(Vec<u8>),
    Call(No),
}

impl Phase {
    /// Returns whether the server may still answer the call, so that the session waits for it before it ends.
    pub fn may_be_answered(&self) -> bool {
        matches!(
            self,
            Phase::Out(_) | Phase::Recording(..) | Phase::Leaving(_) | Phase::Ready(_) | Phase::Closing
        )
    }
}

/// Number of a tool call in this session, counted from 0.
pub type No = u64;

#[derive(Debug)]
pub enum Event {
    Client(Vec<u8>),
    ClientClosed,
    Server(Vec<u8>),
    /// The server's process has ended or cannot be started; the text says how.
    ServerEnded(String),
    /// The server still runs, and the answer to this line will never come. `taken`: the server may have acted
    /// on the line.
    Lost {
        line: Vec<u8>,
        why: String,
        taken: bool,
    },
    /// The server no longer knows the session, and did not process this line.
    Forgotten(Vec<u8>),
    Reserved(No, Result<Verdict, String>),
    Approved(No, Result<Approval, String>),
    Left(No, Result<(), String>),
    Recorded(No, Result<(), String>),
    GivenUp(No, Result<Verdict, String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Write the line to the client, then mark the entry `mark` as delivered; `None`: nothing is to be marked.
    ToClient {
        line: Vec<u8>,
        mark: Option<Seq>,
    },
    ToServer(Vec<u8>),
    /// Log a line of the server that is no message, or an answer that nobody waits for.
    Stray(Vec<u8>),
    /// Start the server after a pause of `pause_ms` milliseconds.
    Start {
        pause_ms: u64,
    },
    Reserve {
        no: No,
        call: ToolCall,
        manner: Manner,
        leaves: bool,
        anew: bool,
    },
    Approve {
        no: No,
        call: ToolCall,
        manner: Manner,
        opening: Opening,
        patience_ms: u64,
    },
    Leave {
        no: No,
        opening: Opening,
    },
    Record {
        no: No,
        opening: Opening,
        body: String,
        failed: bool,
    },
    GiveUp {
        no: No,
        opening: Opening,
        tool: String,
        /// Reason why the server certainly did not process the call, though the call is marked as sent;
        /// `None` if it may have.
        refused: Option<String>,
    },
    /// End the recorder, which has nothing left to do.
    Quit {
        /// Reason why the server was given up; `None` if the client ended the session.
        why: Option<String>,
    },
}

#[cfg(test)]
mod tests;
