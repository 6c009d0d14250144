//! State of a session: its server, and the requests that are not answered yet.

use outlast_core::journal::Opening;
use outlast_server::mcp::message::ToolCall;

use super::deed::No;
use crate::mcp::tools::Manner;

/// Tool call of the client in this session.
pub struct Call {
    /// Id of the request, as raw JSON.
    pub id: String,
    pub line: Vec<u8>,
    pub call: ToolCall,
    pub manner: Manner,
    pub phase: Phase,
    /// Whether the client has cancelled the request: it gets no answer.
    pub withdrawn: bool,
    /// Notices of progress sent while a person is waited for.
    pub notices: u32,
    /// Times that it was with the server, and its answer was lost.
    pub lost: u32,
}

#[derive(Clone, Debug)]
pub enum Phase {
    Reserving,
    Approving(Open),
    /// On disk, and not marked as sent.
    Reserved(Open),
    /// Being marked as sent.
    Leaving(Open),
    /// Marked as sent, and not with this server yet.
    Ready(Open),
    Out(Open),
    /// The answer that came is being recorded.
    Recording(Open, Vec<u8>),
    /// Being closed without an answer of the server.
    Closing,
}

#[derive(Clone, Debug)]
pub struct Open {
    pub opening: Opening,
    pub key: String,
}

/// Request that passes unrecorded.
pub struct Plain {
    pub method: String,
    pub line: Vec<u8>,
    /// Times that its answer was lost.
    pub lost: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    Starting,
    /// Opening the session that the client had with the one before: the id of our `initialize`.
    Greeting(String),
    Up,
    /// Given up.
    Gone,
}

pub enum Queued {
    Line(Vec<u8>),
    Call(No),
}

impl Phase {
    /// Tells whether the call may still get an answer of the server that is worth waiting for.
    pub fn may_be_answered(&self) -> bool {
        matches!(
            self,
            Phase::Out(_) | Phase::Recording(..) | Phase::Leaving(_) | Phase::Ready(_) | Phase::Closing
        )
    }
}
