//! Approvals: a person's word on a tool call, before the agent makes it.
//!
//! An approval is an entry of its run's journal: open while it is pending, `done` once it is approved, `failed` once
//! it is denied. It is bound to the SHA-256 of the call's arguments, in canonical JSON.

use std::{collections::BTreeMap, fmt, str::FromStr};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    journal::{Entry, Kind, Role, State},
    run::status,
    store::{self, Store},
    words::{
        digest::Digest,
        id::{Micros, RunId, RunNo, Seq},
    },
};

/// How long one waits for a decision where nobody says: a day.
pub const EXPIRES_MS: i64 = 24 * 60 * 60 * 1000;

/// At most this many of a run are pending at once: its row names each.
pub const MOST_PENDING: usize = 100;

/// Arguments of a tool call are at most this long, as canonical JSON.
pub const MOST_ARGUMENTS: usize = 256 << 10;

/// What an approval is called, over all runs of a store: `apr_<run's number>_<entry's number>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApprovalId {
    pub run: RunNo,
    pub seq: Seq,
}

/// A text that names no approval.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an approval: {text:?} (wanted apr_<number>_<number>, as `outlast approvals` prints it)")]
pub struct BadApprovalId {
    pub text: String,
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

/// The approvals that a run waits for, and for how long it has waited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Awaited {
    pending: Vec<Pending>,
    /// Since when one of `pending` is there without a break; what came before is in `waited_us`.
    since: Option<Micros>,
    waited_us: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pending {
    seq: Seq,
    expires_at: Micros,
}

impl Awaited {
    /// How many may still be decided.
    pub fn pending(&self, now: Micros) -> usize {
        self.pending.iter().filter(|p| now < p.expires_at).count()
    }

    /// Whether one is open, as far as anybody looked: it may have expired since.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// For how long one of them was pending, in milliseconds.
    pub fn waited_ms(&self, now: Micros) -> i64 {
        (self.waited_us + self.waiting_us(now)) / 1000
    }

    /// Since `since`, until the last of them expires.
    fn waiting_us(&self, now: Micros) -> i64 {
        let end = self.pending.iter().map(|p| p.expires_at.min(now)).max();
        self.since.zip(end).map_or(0, |(since, end)| (end.0 - since.0).max(0))
    }

    pub fn opened(&mut self, seq: Seq, expires_at: Micros, now: Micros) {
        self.let_go(now);
        self.pending.push(Pending { seq, expires_at });
        self.since.get_or_insert(now);
    }

    /// Decided, or seen to have expired.
    pub fn closed(&mut self, seq: Seq, now: Micros) {
        self.let_go(now);
        self.pending.retain(|p| p.seq != seq);
        if self.pending.is_empty() {
            self.since = None;
        }
    }

    /// What was waited so far is kept, and what has expired is let go.
    pub fn let_go(&mut self, now: Micros) {
        self.waited_us += self.waiting_us(now);
        self.pending.retain(|p| now < p.expires_at);
        self.since = (!self.pending.is_empty()).then_some(now);
    }
}

/// Which approvals to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    pub run: Option<RunNo>,
    /// Only those whose entry is open: pending ones, and such as expired with nobody asking again.
    pub open: bool,
    pub limit: usize,
}

/// An approval with what a person needs to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub id: ApprovalId,
    pub run: RunId,
    /// The caller's own name of it, or one made of tool and arguments.
    pub key: String,
    pub status: Status,
    pub asked_at: Micros,
    pub detail: ApprovalDetail,
    /// Canonical JSON.
    pub arguments: Bytes,
}

/// One approval. `None` where there is none of this id.
pub fn find(store: &dyn Store, id: ApprovalId) -> Result<Option<View>, store::Error> {
    let Some(entry) = store.entry(id.run, id.seq)?.filter(|e| e.kind == Kind::Approval) else {
        return Ok(None);
    };
    let now = store.now()?;
    Runs::default().view(store, entry, now)
}

/// Approvals, newest first; with `status` only those that stand there.
pub fn list(store: &dyn Store, filter: &Filter, status: Option<Status>) -> Result<Vec<View>, store::Error> {
    let (now, mut runs) = (store.now()?, Runs::default());
    let mut found = Vec::new();
    for entry in store.approvals(filter)? {
        let view = runs.view(store, entry, now)?;
        found.extend(view.filter(|v| status.is_none_or(|wanted| v.status == wanted)));
    }
    Ok(found)
}

/// The runs that were looked up: many approvals are of few runs.
#[derive(Default)]
struct Runs(BTreeMap<RunNo, Option<(RunId, status::Status)>>);

impl Runs {
    fn view(&mut self, store: &dyn Store, entry: Entry, now: Micros) -> Result<Option<View>, store::Error> {
        let id = ApprovalId { run: entry.run, seq: entry.seq };
        let (Some(detail), Some((run, standing))) = (entry.approval, self.run(store, entry.run)?) else {
            return Ok(None);
        };
        let over = matches!(standing, status::Status::Completed | status::Status::Cancelled);
        let status = match detail.status(entry.state, now) {
            Status::Pending if over => Status::Void,
            status => status,
        };
        let arguments = match store.payload(id.run, id.seq, Role::About)? {
            Some(payload) => payload
                .decode()
                .map_err(|e| store::Error::Corrupt { what: format!("the arguments of {id}: {e}") })?,
            None => Bytes::new(),
        };
        let key = entry.key.unwrap_or_default();
        Ok(Some(View { id, run, key, status, asked_at: entry.opened_at, detail: *detail, arguments }))
    }

    fn run(&mut self, store: &dyn Store, no: RunNo) -> Result<Option<(RunId, status::Status)>, store::Error> {
        if let Some(known) = self.0.get(&no) {
            return Ok(known.clone());
        }
        let found = store.run(no)?.map(|v| (v.run.id, v.run.status));
        self.0.insert(no, found.clone());
        Ok(found)
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

    #[test]
    fn waiting_is_counted_once_while_several_are_pending_and_not_beyond_their_end() {
        let at = |ms: i64| Micros(ms * 1000);
        let mut a = Awaited::default();
        a.opened(Seq(1), at(100), at(10));
        a.opened(Seq(2), at(40), at(20));
        assert_eq!((a.pending(at(30)), a.waited_ms(at(30))), (2, 20));
        assert_eq!((a.pending(at(50)), a.waited_ms(at(50))), (1, 40), "one has expired");
        a.closed(Seq(1), at(60));
        assert_eq!((a.pending(at(60)), a.waited_ms(at(90))), (0, 50));
        a.opened(Seq(3), at(200), at(150));
        assert_eq!(a.waited_ms(at(500)), 100, "nobody closed it, and it expired");
        a.opened(Seq(4), at(900), at(600));
        a.closed(Seq(4), at(610));
        assert_eq!(a.waited_ms(at(1000)), 110);
    }
}
