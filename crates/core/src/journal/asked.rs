//! What a journal keeps of an approval: the question, where it stands, and what a person said.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::State;
use crate::words::{
    digest::Digest,
    id::{Micros, RunNo, Seq},
};

/// What an approval is called, over all runs of a store: `apr_<run's number>_<entry's number>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    type Err = BadApprovalId;
    fn from_str(text: &str) -> Result<Self, BadApprovalId> {
        let number = |s: &str| {
            let plain = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
            s.parse::<i64>().ok().filter(|_| plain)
        };
        text.strip_prefix("apr_")
            .and_then(|rest| rest.split_once('_'))
            .and_then(|(run, seq)| Some(Self { run: RunNo(number(run)?), seq: Seq(number(seq)?) }))
            .ok_or_else(|| BadApprovalId { text: text.chars().take(80).collect() })
    }
}

/// A text that names no approval.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an approval: {text:?} (wanted apr_<number>_<number>, as `outlast approvals` prints it)")]
pub struct BadApprovalId {
    pub text: String,
}

/// The name of a question that has none of its own.
pub fn key_of(tool: &str, arguments: &Digest) -> String {
    format!("{tool}#{arguments}")
}

/// Where an approval stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Nobody has decided yet.
    Pending,
    Approved,
    Denied,
    /// Nobody decided in time: as good as denied.
    Timeout,
    /// The run's policy has no such tool: nobody was asked.
    Blocked,
    /// Its run ended before anybody decided.
    Void,
}

impl Status {
    pub const ALL: [Status; 6] =
        [Status::Pending, Status::Approved, Status::Denied, Status::Timeout, Status::Blocked, Status::Void];

    pub fn name(self) -> &'static str {
        match self {
            Status::Pending => "pending",
            Status::Approved => "approved",
            Status::Denied => "denied",
            Status::Timeout => "timeout",
            Status::Blocked => "blocked",
            Status::Void => "void",
        }
    }

    pub fn parse(text: &str) -> Option<Status> {
        Status::ALL.into_iter().find(|s| s.name() == text)
    }
}

/// What a person said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub approve: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who said it, in their own words.
    pub by: String,
    pub at: Micros,
}

/// What only an approval has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalDetail {
    pub tool: String,
    /// What the call does to the world, in the agent's words: `write`, `external`, ….
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side_effect: Option<String>,
    /// The SHA-256 of the arguments, in canonical JSON.
    pub digest: Digest,
    /// The iteration it was asked in: it is said for that one only.
    #[serde(default)]
    pub iteration: i64,
    /// The run's count of loops when it was asked.
    pub at_loop: i64,
    pub expires_at: Micros,
    /// The run's policy has no such tool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blocked: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
}

impl ApprovalDetail {
    /// Where it stands at `now`, as long as its run goes on.
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
