//! Approvals: a person's decision on a tool call, before the agent makes it.
//!
//! An approval is an entry of its run's journal: open while it is pending, `done` once it is approved, `failed`
//! once it is denied. It is bound to the SHA-256 of the call's arguments, in canonical JSON.

use serde::{Deserialize, Serialize};

use crate::{journal::Entry, words::Micros};
pub use crate::{
    journal::approval_detail::{ApprovalDetail, ApprovalId, BadApprovalId, Decision, Status, key_of},
    run::awaited::Awaited,
};

/// Default time to wait for a decision, in milliseconds: a day.
pub const EXPIRES_MS: i64 = 24 * 60 * 60 * 1000;

/// Largest number of a run's approvals that may be pending at once. The run's row names each of them.
pub const MOST_PENDING: usize = 100;

/// Greatest length of a tool call's arguments as canonical JSON, in bytes.
pub const MOST_ARGUMENTS: usize = 256 << 10;

/// Answer to a request for approval or to a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Id of the approval; `None` if nobody has to be asked.
    pub id: Option<ApprovalId>,
    pub status: Status,
    /// Whether an approval is required; false if the run's policy allows the tool call without one.
    pub required: bool,
    pub expires_at: Option<Micros>,
    pub decision: Option<Decision>,
}

impl Answer {
    /// Returns the answer for a tool call that needs no approval under the run's policy.
    pub fn not_required() -> Answer {
        Answer { id: None, status: Status::Approved, required: false, expires_at: None, decision: None }
    }

    /// Returns the answer for an approval's entry; `None` for any other entry.
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
