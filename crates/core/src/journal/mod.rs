//! The journal: one kind of row for everything a run does.

pub mod approval;
pub mod divergence;
pub mod job;
pub mod payload;
pub mod scope;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    envelope::unit::Amounts,
    journal::{approval::ApprovalDetail, job::ItemDetail},
    words::{
        digest::{Digest, MatchKey},
        id::{AttemptNo, EnvelopeNo, InstanceNo, Micros, RunNo, Seq},
        usage::{ServiceTier, Usage},
    },
};

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

/// One correction of an entry whose outcome had been unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correction {
    pub at: Micros,
    /// What was posted: its own bill where that came late; else its retry's cost or the headroom left,
    /// whichever is less.
    pub posted: Amounts,
    /// What the retry cost beyond that: unbacked doubt.
    pub unbacked_nano_usd: i64,
    pub why: String,
}

/// What only a call has; most of it for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallDetail {
    pub upstream: String,
    pub path: String,
    pub model: String,
    pub stream: bool,
    /// The digest in hex.
    pub digest: Option<Digest>,
    pub idempotency_key: Option<String>,
    /// The output cap put into the request, when the client's did not fit.
    pub clamped_to: Option<u64>,
    /// The lost call this one repeats.
    pub retry_of: Option<Seq>,
    /// What it reserved: its charge when no usage arrives, also when its hold was passed on.
    pub reserved: Amounts,
    /// What it took over from that call's reservation.
    pub inherited: Amounts,
    /// How many inheritances lie behind it.
    pub inheritances: u8,
    pub http_status: Option<u16>,
    pub usage: Option<Usage>,
    pub tier: ServiceTier,
    pub price_hash: Option<String>,
    /// No usage arrived: charged at the reservation.
    pub estimated: bool,
    /// Billed beyond its bound, recorded in full.
    pub overrun_nano_usd: i64,
    pub upstream_request_id: Option<String>,
    /// The counted loop it brought with it (a run without loops of its own).
    pub implicit_loop: bool,
    pub correction: Option<Correction>,
    pub error: Option<String>,
    /// The tries before its last one, the oldest first: the upstream's status, `None` where it was not reached. While
    /// it rests, all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<Option<u16>>,
    /// It waits for its next try: nothing of it is on its way.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resting: bool,
    /// The item or step it was made in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<Seq>,
    /// The windows of named budgets it was admitted under: whenever its outcome comes, it is charged to these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<EnvelopeNo>,
}

/// What only a step has, and most steps have not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepDetail {
    /// The item or step it was begun in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<Seq>,
    /// Each of its tries is a scope of its own.
    pub retries: bool,
    /// From 1; 0 in a step without retries.
    pub try_no: i64,
    /// Its try before which an earlier one was its last, or 1; 0 in a step without retries.
    #[serde(skip_serializing_if = "is_zero")]
    pub first_try: i64,
    /// It raised, and its next try was to follow: that is no new beginning.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// A person said what came of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resolved: bool,
    /// It never runs again by itself while its outcome is unknown.
    pub at_most_once: bool,
    /// Answers of its iteration's scope that were made in it, and how many of them the attempt that runs it
    /// has not taken. Once it is done, nobody asks for them again.
    pub answers: i64,
    pub untaken: i64,
}

impl StepDetail {
    /// Tries since it was begun, or since it was given up last: this one counts. 1 in a step without retries.
    pub fn tries(&self) -> i64 {
        (self.try_no - self.first_try).max(0) + 1
    }
}

fn is_zero(n: &i64) -> bool {
    *n == 0
}

/// One entry of a run's journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub run: RunNo,
    pub seq: Seq,
    pub kind: Kind,
    pub state: State,
    pub attempt: AttemptNo,
    /// Who opened it, and alone may close it.
    pub instance: Option<InstanceNo>,
    /// What its replay never crosses.
    pub scope: Arc<str>,
    /// A step's, loop's or checkpoint's name.
    pub key: Option<String>,
    /// Digest, scope and credential in one: what a repeated call is found by.
    pub match_key: Option<MatchKey>,
    pub opened_at: Micros,
    pub closed_at: Option<Micros>,
    /// What it holds in its run's envelopes now.
    pub held: Amounts,
    /// What it was posted at.
    pub spent: Amounts,
    /// The attempt it was last delivered to whole.
    pub delivered_to: Option<AttemptNo>,
    /// The retry count of the connection it was delivered to.
    pub delivered_count: u32,
    /// The retry of this lost or failed call.
    pub retried_by: Option<Seq>,
    /// Whether its answer can be replayed (2xx and its terminal event seen, and kept).
    pub replayable: bool,
    pub call: Option<Box<CallDetail>>,
    pub step: Option<Box<StepDetail>>,
    pub item: Option<Box<ItemDetail>>,
    pub approval: Option<Box<ApprovalDetail>>,
}

impl Entry {
    /// The item or step it was made in.
    pub fn within(&self) -> Option<Seq> {
        match self.kind {
            Kind::Call => self.call.as_ref()?.within,
            _ => self.step.as_ref()?.within,
        }
    }

    /// The windows of named budgets it is charged to.
    pub fn windows(&self) -> &[EnvelopeNo] {
        self.call.as_ref().map_or(&[], |call| &call.windows)
    }

    /// What it is told from: the lost call that it repeats, and what it was made in.
    pub fn linked(&self) -> impl Iterator<Item = Seq> + use<> {
        let repeats = self.call.as_ref().and_then(|c| c.retry_of);
        repeats.into_iter().chain(self.within())
    }

    pub fn is_lost(&self) -> bool {
        self.kind == Kind::Call && self.state == State::Unknown
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

/// The scope of calls outside items and steps with retries: the iteration.
pub fn iteration_scope(iteration: i64) -> Arc<str> {
    format!("i{iteration}").into()
}
