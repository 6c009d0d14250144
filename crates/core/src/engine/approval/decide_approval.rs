//! Decide approval: records a person's decision on a tool call.

use serde::{Deserialize, Serialize};

use crate::{
    engine::{
        Error,
        approval::request_approval::close,
        loaded::{Loaded, Need},
    },
    journal::{
        State,
        approval::{Answer, ApprovalId, Decision, Status},
    },
    run::status,
    words::{digest::Digest, id::Micros},
};

/// Approves or denies a tool call. The run goes on once its last approval is decided.
///
/// Synced. The caller checks that the decider may decide: the agent's own token never may. Idempotent: a repeated
/// decision returns the first answer. Errors: `UnknownApproval`; `OtherArguments` when `digest` is not that of the
/// requested arguments; `AlreadyDecided` if the opposite was decided; `ApprovalExpired`; `RunEnded`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DecideApproval {
    pub id: ApprovalId,
    /// SHA-256 of the arguments that the decider looked at; `None` checks nothing.
    pub digest: Option<Digest>,
    pub approve: bool,
    pub reason: Option<String>,
    /// Name of the decider, in their own words.
    pub by: String,
}

impl DecideApproval {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Run(self.id.run), Need::Entry(self.id.run, self.id.seq)]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Answer, Error> {
        let id = self.id.to_string();
        let unknown = || Error::UnknownApproval { id: id.clone() };
        let run = l.run(self.id.run).map_err(|_| unknown())?;
        let entry = l.entry(self.id.run, self.id.seq).ok_or_else(unknown)?;
        let detail = entry.approval.as_deref().ok_or_else(unknown)?;
        if let Some(had) = self.digest.filter(|had| *had != detail.digest) {
            let (wanted, had) = (detail.digest.to_string(), had.to_string());
            return Err(Error::OtherArguments { id, wanted, had });
        }
        let standing = detail.status(entry.state, now);
        match standing {
            Status::Pending => {}
            Status::Approved if self.approve => return answer(l, self.id, now),
            Status::Denied if !self.approve => return answer(l, self.id, now),
            Status::Timeout => return Err(Error::ApprovalExpired { id }),
            _ => return Err(Error::AlreadyDecided { id, status: standing.name() }),
        }
        if matches!(run.status, status::Status::Completed | status::Status::Cancelled) {
            return Err(Error::RunEnded { id: run.id.to_string(), status: run.status.name() });
        }
        let decision = Decision {
            approve: self.approve,
            reason: self.reason.clone(),
            by: self.by.clone(),
            way: None,
            at: now,
        };
        let entry = l.entry_mut(self.id.run, self.id.seq).ok_or_else(unknown)?;
        entry.state = if self.approve { State::Done } else { State::Failed };
        entry.closed_at = Some(now);
        if let Some(detail) = &mut entry.approval {
            detail.decision = Some(decision);
        }
        l.run_mut(self.id.run)?.closed += 1;
        close(l, self.id.run, self.id.seq, now)?;
        answer(l, self.id, now)
    }
}

fn answer(l: &Loaded, id: ApprovalId, now: Micros) -> Result<Answer, Error> {
    let entry = l.entry(id.run, id.seq);
    entry.and_then(|e| Answer::of(e, now)).ok_or(Error::NotLoaded("the approval"))
}
