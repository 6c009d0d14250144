//! Approvals: a person's decision on a tool call, before the agent makes it.
//!
//! An approval is an entry of its run's journal: open while it is pending, `done` once it is approved, `failed`
//! once it is denied. It is bound to the SHA-256 of the call's arguments, in canonical JSON.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::State;
use crate::{
    journal::Entry,
    named,
    words::{BadText, Digest, Micros, RunNo, Seq},
};

/// Id of an approval, unique in its store: `apr_<run's number>_<entry's number>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ApprovalId {
    pub run: RunNo,
    pub seq: Seq,
}

impl fmt::Display for ApprovalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "apr_{}_{}", self.run, self.seq)
    }
}

impl FromStr for ApprovalId {
    type Err = BadText;
    fn from_str(text: &str) -> Result<Self, BadText> {
        let number = |s: &str| {
            let plain = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
            s.parse::<i64>().ok().filter(|_| plain)
        };
        text.strip_prefix("apr_")
            .and_then(|rest| rest.split_once('_'))
            .and_then(|(run, seq)| Some(Self { run: RunNo(number(run)?), seq: Seq(number(seq)?) }))
            .ok_or_else(|| {
                BadText::new("an approval", text, "apr_<number>_<number>, as `outlast approvals` prints it")
            })
    }
}

/// Returns the default key of an approval that was requested without one.
pub fn key_of(tool: &str, arguments: &Digest) -> String {
    format!("{tool}#{arguments}")
}

named! {
    /// Status of an approval.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Status {
        /// Nobody has decided yet.
        Pending "pending",
        Approved "approved",
        Denied "denied",
        /// Nobody decided in time. Counts as denied.
        Timeout "timeout",
        /// The run's policy does not allow the tool: nobody was asked.
        Blocked "blocked",
        /// The run ended before anybody decided.
        Void "void",
    }
}

/// Decision of a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub approve: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Name of the person, as given with the decision.
    pub by: String,
    /// Name of who decided, and through what, in the format of [`super::act::ActDetail::by`]; `None` if it was not
    /// recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<String>,
    pub at: Micros,
}

/// Details of an approval entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalDetail {
    pub tool: String,
    /// Side effect of the tool call, in the agent's words: `write`, `external`, …; `None` if it states none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side_effect: Option<String>,
    /// SHA-256 of the arguments, in canonical JSON.
    pub digest: Digest,
    /// Iteration in which the approval was requested. A decision holds for that iteration only.
    #[serde(default)]
    pub iteration: i64,
    /// Run's count of loops when the approval was requested.
    pub at_loop: i64,
    pub expires_at: Micros,
    /// Whether the run's policy forbids the tool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blocked: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
}

impl ApprovalDetail {
    /// Returns the status at `now`, for a run that has not ended.
    pub fn status(&self, state: State, now: Micros) -> Status {
        match &self.decision {
            _ if self.blocked => Status::Blocked,
            Some(d) if d.approve => Status::Approved,
            Some(_) => Status::Denied,
            None if state == State::Open && now < self.expires_at => Status::Pending,
            None => Status::Timeout,
        }
    }
}

pub use crate::run::Awaited;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_approvals_name_is_read_back_and_nothing_else_is() {
        let id = ApprovalId { run: RunNo(3), seq: Seq(12) };
        assert_eq!(id.to_string(), "apr_3_12");
        assert_eq!("apr_3_12".parse(), Ok(id));
        for bad in
            ["", "apr_", "apr_3", "apr_3_", "apr__1", "apr_-3_1", "apr_+3_1", "apr_3_1_2", "3_12", "run_1"]
        {
            assert!(bad.parse::<ApprovalId>().is_err(), "{bad}");
        }
    }
}
