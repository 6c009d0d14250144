//! State of a session: its server, and the requests that are not answered yet; events that it hears, and deeds that it wants
//! done.

use outlast_core::{journal::Opening, words::Seq};
use outlast_server::mcp::message::{self, ToolCall};

use crate::mcp::{
    configured::Manner,
    ledger::{Approval, Verdict},
};

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
