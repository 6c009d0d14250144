//! Events that a session hears, and deeds that it wants done.

use outlast_core::{journal::Opening, words::id::Seq};
use outlast_server::mcp::message::ToolCall;

use crate::mcp::{
    ledger::{Approval, Verdict},
    tools::Manner,
};

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
