//! Approvals: a person's word on a tool call, before the agent makes it.
//!
//! An approval is an entry of its run's journal: open while it is pending, `done` once it is approved, `failed` once
//! it is denied. It is bound to the SHA-256 of the call's arguments, in canonical JSON.

use crate::{journal::Entry, words::id::Micros};
pub use crate::{
    journal::asked::{ApprovalDetail, ApprovalId, BadApprovalId, Decision, Status, key_of},
    run::awaited::Awaited,
};

/// How long one waits for a decision where nobody says: a day.
pub const EXPIRES_MS: i64 = 24 * 60 * 60 * 1000;

/// At most this many of a run are pending at once: its row names each.
pub const MOST_PENDING: usize = 100;

/// Arguments of a tool call are at most this long, as canonical JSON.
pub const MOST_ARGUMENTS: usize = 256 << 10;

/// What an asker, or who decides, is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// None where nobody has to be asked.
    pub id: Option<ApprovalId>,
    pub status: Status,
    /// False where the run's policy lets the tool be called without a word.
    pub required: bool,
    pub expires_at: Option<Micros>,
    pub decision: Option<Decision>,
}

impl Answer {
    /// The run's policy wants nobody asked.
    pub fn not_required() -> Answer {
        Answer { id: None, status: Status::Approved, required: false, expires_at: None, decision: None }
    }

    /// Of an entry that is an approval.
    pub fn of(entry: &Entry, now: Micros) -> Option<Answer> {
        let detail = entry.approval.as_deref()?;
        Some(Answer {
            id: Some(ApprovalId { run: entry.run, seq: entry.seq }),
            status: detail.status(entry.state, now),
            required: true,
            expires_at: (!detail.blocked).then_some(detail.expires_at),
            decision: detail.decision.clone(),
        })
    }
}
