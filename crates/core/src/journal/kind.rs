//! Kinds, states and payload roles of journal entries.

use serde::{Deserialize, Serialize};

use crate::named;

named! {
    /// Kind of thing an entry records.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Kind {
        /// An LLM request.
        Call "call",
        Step "step",
        Item "item",
        Tool "tool",
        Checkpoint "checkpoint",
        Context "context",
        Loop "loop",
        Approval "approval",
        /// One turn of `outlast run --loop`, with the standard input it began with.
        Iteration "iteration",
    }
}

impl Kind {
    /// Returns the stored number; numbers are never reused.
    pub fn code(self) -> i64 {
        self as i64
    }

    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }
}

named! {
    /// State of an entry. `open → done | failed | void | unknown`; `unknown → done | failed` once.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum State {
        Open "open",
        Done "done",
        Failed "failed",
        /// The call was never sent.
        Void "void",
        /// The call may have happened, and its outcome is not known.
        Unknown "unknown",
    }
}

impl State {
    pub fn code(self) -> i64 {
        self as i64
    }

    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
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
