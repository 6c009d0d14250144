//! What an entry records, where it stands, and which bytes it has.

use serde::{Deserialize, Serialize};

/// What an entry records.
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
    /// A turn of `outlast run --loop`, with the standard input it began with.
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

    /// The stored number; never reused.
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

/// Where an entry stands. `open → done | failed | void | unknown`; `unknown → done | failed` once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Open,
    Done,
    Failed,
    /// It never left.
    Void,
    /// It may have happened.
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

/// Which stored bytes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A call's request body, stored against a base.
    Request,
    /// A call's answer.
    Answer,
    /// A step's result, a checkpoint's value.
    Value,
    /// A run's standard input, or that of one iteration.
    Stdin,
    /// What a tool call is, said before it begins; of an approval, the call's arguments; what a run had used when
    /// a checkpoint was saved.
    About,
}

impl Role {
    pub fn code(self) -> i64 {
        self as i64
    }
}
