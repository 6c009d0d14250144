//! The journal of a run: one kind of row for everything the run does.

pub mod act;
pub mod approval;
mod detail;
pub mod divergence;
pub mod job;
pub mod ledger;
pub mod payload;
pub mod scope;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use act::ActDetail;
pub use approval::ApprovalId;
pub use detail::{CallDetail, Correction, ItemDetail, Standing, StepDetail, Taker, ToolDetail};
pub use job::{Counts, ItemClaim, ItemEnded, ItemRow, ItemRun, Job, OnChange};
pub use ledger::LedgerLine;
pub use payload::{Payload, PayloadError};

use crate::{
    envelope::Amounts,
    named,
    words::{AttemptNo, EnvelopeNo, InstanceNo, MatchKey, Micros, OpNo, RunNo, Seq},
};
use approval::ApprovalDetail;

/// One entry of a run's journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub run: RunNo,
    pub seq: Seq,
    pub kind: Kind,
    pub state: State,
    pub attempt: AttemptNo,
    /// Instance (process) that opened the entry or took it over. No other may close it.
    pub instance: Option<InstanceNo>,
    /// Operation that opened the entry or took it over; 0 in entries from before format 4.
    pub opened_by: OpNo,
    /// Scope of the entry. Replay never crosses it.
    pub scope: Arc<str>,
    /// Name of the step, loop or checkpoint; key of the item; `None` for an entry without a name, such as a call.
    pub key: Option<String>,
    /// Key by which a repeated call is found: request digest, scope and credential in one; of a tool call its server,
    /// tool, arguments and scope. `None` in entries of other kinds.
    pub match_key: Option<MatchKey>,
    pub opened_at: Micros,
    pub closed_at: Option<Micros>,
    /// Amounts reserved for the entry now, in the envelopes that its run is charged to.
    pub held: Amounts,
    /// Amounts posted for the entry. Items and steps repeat the charges of the calls made in them.
    pub spent: Amounts,
    /// Last attempt to which the answer was delivered whole; `None` if it reached none.
    pub delivered_to: Option<AttemptNo>,
    /// `x-stainless-retry-count` of the request to which the answer was delivered; 0 for a first request.
    pub delivered_count: u32,
    /// Connection that receives the answer, until it was delivered whole or given back; `None` if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<Taker>,
    /// Entry of the call that retries this lost or failed one, or newer entry of this item; `None` if there is none.
    pub retried_by: Option<Seq>,
    /// Whether the answer can be replayed: 2xx, terminal event seen, body kept.
    pub replayable: bool,
    pub call: Option<Box<CallDetail>>,
    pub step: Option<Box<StepDetail>>,
    pub item: Option<Box<ItemDetail>>,
    pub approval: Option<Box<ApprovalDetail>>,
    pub tool: Option<Box<ToolDetail>>,
}

impl Entry {
    /// Returns an entry of no instance, without details and amounts. It is closed at once unless its state is `Open`.
    pub fn new(
        run: RunNo,
        seq: Seq,
        kind: Kind,
        state: State,
        attempt: AttemptNo,
        scope: Arc<str>,
        at: Micros,
    ) -> Entry {
        Entry {
            run,
            seq,
            kind,
            state,
            attempt,
            scope,
            opened_at: at,
            closed_at: (state != State::Open).then_some(at),
            ..Entry::default()
        }
    }

    /// Returns the item or step in which the entry was made; `None` outside of both.
    pub fn within(&self) -> Option<Seq> {
        match self.kind {
            Kind::Call => self.call.as_ref()?.within,
            _ => self.step.as_ref()?.within,
        }
    }

    /// Returns the attempt to which the answer was replayed; `None` if no attempt but the one that paid for it got it.
    pub fn replayed_to(&self) -> Option<AttemptNo> {
        let is_answered = matches!(self.state, State::Done | State::Failed);
        self.delivered_to.filter(|to| *to != self.attempt && is_answered)
    }

    /// Returns the windows of named budgets to which the entry is charged.
    pub fn windows(&self) -> &[EnvelopeNo] {
        self.call.as_ref().map_or(&[], |call| &call.windows)
    }

    /// Returns the related entries: the lost call that this one repeats, and the item or step it was made in.
    pub fn linked(&self) -> impl Iterator<Item = Seq> + use<> {
        let repeats = self.call.as_ref().and_then(|c| c.retry_of);
        repeats.into_iter().chain(self.within())
    }

    /// Returns whether the entry is a call whose outcome is unknown.
    pub fn is_lost(&self) -> bool {
        self.kind == Kind::Call && self.state == State::Unknown
    }

    /// Returns whether the entry is a call that may be paid and that left no answer to give again: lost, or cut off.
    pub fn is_paid_in_vain(&self) -> bool {
        let is_charged = self.spent.cost() > 0 || self.spent.tokens() > 0;
        self.is_lost() || self.kind == Kind::Call && self.state == State::Failed && is_charged
    }

    /// Returns whether the entry is a call that failed and cost nothing, such as one that its provider refused.
    pub fn is_unpaid(&self) -> bool {
        self.kind == Kind::Call && self.state == State::Failed && self.spent.cost() == 0
    }

    /// Returns the unbacked doubt: cost and tokens that may be billed for a lost call, and that no envelope has
    /// reserved or spent.
    ///
    /// While the outcome is unknown, the call's bound less what is still reserved for it; once its retry has settled,
    /// the part of the estimate for which the limits left no room.
    pub fn unbacked(&self) -> Amounts {
        let Some(call) = &self.call else { return Amounts::default() };
        let missing = |bound: i64, held: i64| (bound - held).max(0);
        match &call.correction {
            Some(c) => Amounts::of(c.unbacked_nano_usd, c.unbacked_tokens),
            None if self.is_lost() => Amounts::of(
                missing(call.reserved.cost(), self.held.cost()),
                missing(call.reserved.tokens(), self.held.tokens()),
            ),
            None => Amounts::default(),
        }
    }
}

/// Proof that a process holds an entry, which it opened or took over from a dead process. It is required to close the
/// entry.
///
/// A database that is restored without its last commits can give out a journal number a second time. The operation's
/// number tells the two entries apart, so that no result is stored in the wrong one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Opening {
    pub run: RunNo,
    pub seq: Seq,
    pub instance: InstanceNo,
    /// Number of the operation that opened the entry, or took it over last.
    pub op: OpNo,
}

impl Opening {
    /// Returns the opening that has `entry` now; `None` for an item that was given back.
    pub fn of(entry: &Entry) -> Option<Opening> {
        let (run, seq, op) = (entry.run, entry.seq, entry.opened_by);
        entry.instance.map(|instance| Opening { run, seq, instance, op })
    }
}

named! {
    /// Kind of thing an entry records.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Kind {
        /// An LLM request.
        #[default]
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

named! {
    /// State of an entry. `open → done | failed | void | unknown`; `unknown → done | failed` once.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum State {
        #[default]
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
    /// Returns the word for people.
    pub fn word(self) -> &'static str {
        match self {
            State::Unknown => "in doubt",
            State::Open | State::Done | State::Failed | State::Void => self.name(),
        }
    }
}

named! {
    /// Role of a payload stored for an entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Role {
        /// Request body of a call, stored against a base.
        Request "request",
        /// Answer of a call.
        Answer "answer",
        /// Result of a step, or value of a checkpoint.
        Value "value",
        /// Standard input of a run, or of one iteration.
        Stdin "stdin",
        /// Description of a tool call, written before it begins; the tool call's arguments of an approval; or the
        /// run's usage when a checkpoint was saved.
        About "about",
    }
}

/// Returns the scope of calls made outside items and outside steps with retries: the iteration.
pub fn iteration_scope(iteration: i64) -> Arc<str> {
    format!("i{iteration}").into()
}
