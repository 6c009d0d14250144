//! Verbs on approvals: request one, decide one.

use crate::{
    engine::prelude::*,
    journal::{
        ApprovalId,
        approval::{Answer, ApprovalDetail, Decision, MOST_ARGUMENTS, MOST_PENDING, Status, key_of},
    },
    run::{Claims, rules::Rules},
};

/// Scope of all approval entries in the journal. The approval itself names its iteration.
pub const SCOPE: &str = "approvals";

/// Actor in whose name an approval is requested.
#[derive(Clone, Copy, Debug)]
pub enum Asker {
    Attempt {
        actor: Actor,
        slot: Slot,
    },
    /// A process that holds a run's token and is no instance. The token's signature was checked.
    Token(Claims),
}

/// Requests a decision, or finds the one requested before. The run is `waiting` while an approval is pending.
///
/// Synced: an approval that a person may decide survives every crash. Idempotent on `key` within an iteration, over
/// all its attempts; without a key, on tool and arguments. A call that the run's policy allows is answered
/// `required: false`; a tool that the policy does not have is `Blocked`, which is recorded without asking anyone.
///
/// Errors: `LeaseLost`; `RunHalted` and `NotRunning` for a new request; `OtherArguments` where `key` named another
/// call; `BadApproval`; `TooManyApprovals`.
#[derive(Clone, Debug)]
pub struct RequestApproval {
    pub asker: Asker,
    /// The caller's own key of this request; `None` if it names none.
    pub key: Option<String>,
    pub tool: String,
    pub side_effect: Option<String>,
    /// Arguments in canonical JSON: a decision is bound to their SHA-256.
    pub arguments: Payload,
    /// Time until the request expires, in milliseconds from now.
    pub expires_ms: i64,
}

impl Asker {
    pub fn run(&self) -> RunNo {
        match self {
            Asker::Attempt { actor, .. } => actor.run,
            Asker::Token(claims) => claims.run,
        }
    }

    fn attempt(&self) -> AttemptNo {
        match self {
            Asker::Attempt { actor, .. } => actor.attempt,
            Asker::Token(claims) => claims.attempt,
        }
    }

    fn needs(&self) -> Vec<Need> {
        match self {
            Asker::Attempt { actor, slot } => guard::needs(actor, *slot, []),
            Asker::Token(Claims { run, attempt, slot, .. }) => {
                vec![Need::Run(*run), Need::Attempt(*run, *attempt), Need::Lease(*run, *slot)]
            }
        }
    }

    fn may_open(&self, l: &Loaded) -> Result<(), Error> {
        match self {
            Asker::Attempt { actor, .. } => guard::is_driven(l, actor).map(drop),
            Asker::Token(claims) => guard::bears(l, claims),
        }
    }
}

impl RequestApproval {
    /// Returns the SHA-256 of the arguments, to which a decision is bound.
    pub fn digest(&self) -> Digest {
        Digest(self.arguments.sha256)
    }

    fn key(&self) -> String {
        self.key.clone().unwrap_or_else(|| key_of(&self.tool, &self.digest()))
    }

    pub fn needs(&self) -> Vec<Need> {
        let run = self.asker.run();
        let mut needs = self.asker.needs();
        needs.extend([Need::Spec(run), Need::Keyed(run, Kind::Approval, SCOPE.into(), self.key())]);
        needs
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Answer, Error> {
        self.asker.may_open(l)?;
        let run = self.asker.run();
        let attempt = l.attempt(run, self.asker.attempt()).ok_or(Error::NotLoaded("the attempt"))?;
        let (iteration, key) = (attempt.iteration, self.key());
        let known = l
            .keyed(Kind::Approval, SCOPE, &key)
            // A decision in one iteration of a loop does not hold for the next.
            .filter(|e| e.approval.as_ref().is_some_and(|a| a.iteration == iteration))
            .map(|e| e.seq);
        match known {
            Some(seq) => self.found(l, seq, now),
            None => self.ask(l, iteration, key, now),
        }
    }

    fn found(&self, l: &mut Loaded, seq: Seq, now: Micros) -> Result<Answer, Error> {
        let run = self.asker.run();
        let lost = Error::NotLoaded("the approval");
        let entry = l.entry(run, seq).ok_or_else(|| lost.clone())?;
        let detail = entry.approval.as_deref().ok_or_else(|| lost.clone())?;
        if detail.tool != self.tool || detail.digest != self.digest() {
            return Err(Error::OtherArguments {
                id: ApprovalId { run, seq }.to_string(),
                wanted: detail.digest.to_string(),
                had: self.digest().to_string(),
            });
        }
        match detail.status(entry.state, now) {
            Status::Pending => {
                self.set_right(l, seq, now)?;
                wait(l, run)?;
            }
            Status::Timeout if entry.state == State::Open => {
                let entry = l.entry_mut(run, seq).ok_or(lost)?;
                (entry.state, entry.closed_at) = (State::Failed, Some(now));
                close(l, run, seq, now)?;
            }
            _ => {}
        }
        answer(l, ApprovalId { run, seq }, now)
    }

    /// Sets the deadline of a pending approval right that was opened by a clock that was ahead.
    fn set_right(&self, l: &mut Loaded, seq: Seq, now: Micros) -> Result<(), Error> {
        let (run, expires_at) = (self.asker.run(), now.plus_ms(self.expires_ms));
        let entry = l.entry(run, seq).ok_or(Error::NotLoaded("the approval"))?;
        let is_ahead =
            entry.opened_at > now && entry.approval.as_ref().is_some_and(|a| a.expires_at > expires_at);
        if is_ahead {
            let detail = l.entry_mut(run, seq).and_then(|e| e.approval.as_mut());
            detail.into_iter().for_each(|detail| detail.expires_at = expires_at);
            l.run_mut(run)?.approvals.get_or_insert_default().expires(seq, expires_at);
        }
        Ok(())
    }

    fn ask(&self, l: &mut Loaded, iteration: i64, key: String, now: Micros) -> Result<Answer, Error> {
        self.check()?;
        let no = self.asker.run();
        guard::may_open(l, no)?;
        let run = l.run(no)?;
        let pending = run.approvals.as_ref().map_or(0, |a| a.pending(now));
        let rules = l.spec(no).and_then(|spec| spec.rules.as_ref());
        let blocked = rules.is_some_and(|r| !r.allows(&self.tool));
        if !blocked && !Rules::ask_for(rules, &self.tool, self.side_effect.as_deref()) {
            return Ok(Answer::not_required());
        }
        if !blocked && pending >= MOST_PENDING {
            return Err(Error::TooManyApprovals { id: run.id.to_string(), most: MOST_PENDING });
        }
        let detail = ApprovalDetail {
            tool: self.tool.clone(),
            side_effect: self.side_effect.clone().filter(|s| !s.is_empty()),
            digest: self.digest(),
            iteration,
            at_loop: l.envelope(run.envelope())?.spent[Unit::Loops],
            expires_at: now.plus_ms(self.expires_ms),
            blocked,
            decision: None,
        };
        let expires_at = detail.expires_at;
        let state = if blocked { State::Failed } else { State::Open };
        let actor = Actor { run: no, attempt: self.asker.attempt(), instance: Default::default() };
        let entry = life::append(l, &actor, Kind::Approval, state, SCOPE, Some(key), now)?;
        // Only a person may close the approval: the death of the process that requested it changes nothing.
        entry.instance = None;
        entry.approval = Some(Box::new(detail));
        let seq = entry.seq;
        l.keep_payload(no, seq, Role::About, self.arguments.clone());
        if !blocked {
            l.run_mut(no)?.approvals.get_or_insert_default().opened(seq, expires_at, now);
            wait(l, no)?;
        }
        answer(l, ApprovalId { run: no, seq }, now)
    }

    fn check(&self) -> Result<(), Error> {
        let text = |what: &str, text: &str, most: usize| match text.len() {
            1.. if text.len() <= most && !text.chars().any(char::is_control) => Ok(()),
            had => Err(Error::BadApproval(format!(
                "{what} has to be 1 to {most} bytes without control characters, and has {had}"
            ))),
        };
        text("the tool's name", &self.tool, 256)?;
        let side_effect = self.side_effect.as_deref().filter(|s| !s.is_empty());
        side_effect.map_or(Ok(()), |s| text("the side effect", s, 256))?;
        self.key.as_deref().map_or(Ok(()), |k| text("the key", k, 512))?;
        if self.arguments.len > MOST_ARGUMENTS as u64 {
            let had = self.arguments.len;
            let text = format!("the arguments may have {MOST_ARGUMENTS} bytes as JSON, and have {had}");
            return Err(Error::BadApproval(text));
        }
        if self.expires_ms <= 0 {
            let text = format!("it has to expire in 1 ms or later, and it says {}", self.expires_ms);
            return Err(Error::BadApproval(text));
        }
        Ok(())
    }
}

/// Sets a running run to waiting, for a person.
fn wait(l: &mut Loaded, run: RunNo) -> Result<(), Error> {
    if l.run(run)?.status == status::Status::Running {
        l.run_mut(run)?.status = status::Status::Waiting;
    }
    Ok(())
}

/// Closes an approval that is decided or expired. A run that waited for the last one goes on.
pub(crate) fn close(l: &mut Loaded, run: RunNo, seq: Seq, now: Micros) -> Result<(), Error> {
    if let Some(awaited) = &mut l.run_mut(run)?.approvals {
        awaited.closed(seq, now);
    }
    go_on(l, run, now)
}

/// Sets a run that waited for a person to `running`, once none of its approvals is pending. A run that waits for
/// another reason (a recorded refusal, or without approvals) goes on waiting.
pub(crate) fn go_on(l: &mut Loaded, run: RunNo, now: Micros) -> Result<(), Error> {
    let row = l.run(run)?;
    let asked = row.approvals.is_some() && !row.awaits_a_person(now);
    if asked && row.status == status::Status::Waiting && row.halt.is_none() {
        l.run_mut(run)?.status = status::Status::Running;
    }
    Ok(())
}

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
