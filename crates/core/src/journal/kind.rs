//! Kinds, states and payload roles of journal entries.

use serde::{Deserialize, Serialize};

/// Kind of thing an entry records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An LLM request.
    Call,
    Step,
    Item,
    Tool,
    Checkpoint,
    Context,
    Loop,
    Approval,
    /// One turn of `outlast run --loop`, with the standard input it began with.
    Iteration,
}

impl Kind {
    pub const ALL: [Kind; 9] = [
        Kind::Call,
        Kind::Step,
        Kind::Item,
        Kind::Tool,
        Kind::Checkpoint,
        Kind::Context,
        Kind::Loop,
        Kind::Approval,
        Kind::Iteration,
    ];

    /// Returns the stored number; numbers are never reused.
    pub fn code(self) -> i64 {
        self as i64
    }

    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Call => "call",
            Kind::Step => "step",
            Kind::Item => "item",
            Kind::Tool => "tool",
            Kind::Checkpoint => "checkpoint",
            Kind::Context => "context",
            Kind::Loop => "loop",
            Kind::Approval => "approval",
            Kind::Iteration => "iteration",
        }
    }
}

/// State of an entry. `open → done | failed | void | unknown`; `unknown → done | failed` once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Open,
    Done,
    Failed,
    /// The call was never sent.
    Void,
    /// The call may have happened, and its outcome is not known.
    Unknown,
}

impl State {
    pub const ALL: [State; 5] = [State::Open, State::Done, State::Failed, State::Void, State::Unknown];

    pub fn code(self) -> i64 {
        self as i64
    }

    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    pub fn name(self) -> &'static str {
        match self {
            State::Open => "open",
            State::Done => "done",
            State::Failed => "failed",
            State::Void => "void",
            State::Unknown => "unknown",
        }
    }
}

/// Role of a payload stored for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Request body of a call, stored against a base.
    Request,
    /// Answer of a call.
    Answer,
    /// Result of a step, or value of a checkpoint.
    Value,
    /// Standard input of a run, or of one iteration.
    Stdin,
    /// Description of a tool call, written before it begins; the tool call's arguments of an approval; or the
    /// run's usage when a checkpoint was saved.
    About,
}

impl Role {
    pub fn code(self) -> i64 {
        self as i64
    }
}
