//! The operations: what can be asked of the engine, and what it answers.
//!
//! Each verb has its own file in `engine/`. `Op` is their sum, so that a store handles one type.

use crate::{
    engine::{
        approval::{decide_approval::DecideApproval, request_approval::RequestApproval},
        budget::{
            apply_budget::ApplyBudget, raise_budget::RaiseBudget, remove_budget::RemoveBudget,
            set_budget::SetBudget,
        },
        call::{admit::Admit, delivered::Delivered, keep::Keep, retry::Retry, settle::Settle},
        item::{
            claim_item::ClaimItem, record_item::RecordItem, reset_item::ResetItem, return_item::ReturnItem,
        },
        loaded::Need,
        run::{
            adopt::Adopt,
            begin_iteration::BeginIteration,
            claim::Claim,
            declare_dead::DeclareDead,
            end_attempt::EndAttempt,
            enter::Enter,
            forget::{Forget, Forgot},
            fork::Fork,
            hold::Hold,
            judge_iteration::JudgeIteration,
            raise::Raise,
            recount::Recount,
            register::Register,
            renew::Renew,
            reopen::Reopen,
            reprice::Reprice,
            snapshot::Snapshot,
            start::Start,
            tell::Tell,
        },
        state::{
            compact::{Compact, Compacted},
            put::Put,
            put_by_token::PutByToken,
            retain::Retain,
        },
        step::{
            checkpoint::Checkpoint, count_loop::CountLoop, next_try::NextTry, record::Record,
            resolve_step::ResolveStep, step::BeginStep, tool::BeginTool,
        },
    },
    envelope::{Refusal, unit::Limits},
    journal::{
        State, approval,
        job::{ItemClaim, ItemEnded},
    },
    run::{looping::Verdict, status::Status},
    state::Committed,
    words::id::{AttemptNo, BudgetNo, Fence, InstanceNo, Micros, RunId, RunNo, Seq, Slot},
};

/// When an operation's ticket may resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// No ticket waits for it; rides with the next commit. Only delivery marks.
    Lazy,
    /// Committed: survives kill -9, reaches the disk with the next synced group.
    Committed,
    /// On disk.
    Synced,
}

/// Who acts: checked before anything is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor {
    pub run: RunNo,
    pub attempt: AttemptNo,
    /// The process that opens the entry and alone may close it.
    pub instance: InstanceNo,
}

macro_rules! ops {
    ($($verb:ident => $outcome:ident($answer:ty)),* $(,)?) => {
        /// Any operation.
        #[derive(Clone, Debug)]
        pub enum Op { $($verb(Box<$verb>)),* }

        /// What an operation answered.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Outcome { $($outcome($answer)),* }

        impl Op {
            /// What the store has to load before the decision.
            pub fn needs(&self) -> Vec<Need> {
                match self { $(Op::$verb(v) => v.needs()),* }
            }
            pub fn name(&self) -> &'static str {
                match self { $(Op::$verb(_) => stringify!($verb)),* }
            }
        }

        $(
            impl From<$verb> for Op {
                fn from(v: $verb) -> Op { Op::$verb(Box::new(v)) }
            }
            impl Verb for $verb {
                type Answer = $answer;
                fn answer(outcome: Outcome) -> Option<$answer> {
                    match outcome { Outcome::$outcome(a) => Some(a), _ => None }
                }
            }
        )*

        /// Decides `op` on what was loaded for it. Pure: `now` is the store's.
        pub fn decide(
            op: &Op,
            loaded: &mut crate::engine::loaded::Loaded,
            now: crate::words::id::Micros,
        ) -> Result<Outcome, crate::engine::Error> {
            match op { $(Op::$verb(v) => v.decide(loaded, now).map(Outcome::$outcome)),* }
        }
    };
}

/// A verb with the type of its answer.
pub trait Verb: Into<Op> {
    type Answer;
    /// Unwraps the answer; `None` when `outcome` is another verb's.
    fn answer(outcome: Outcome) -> Option<Self::Answer>;
}

ops! {
    Register => Registered(InstanceNo),
    Renew => Renewed(Vec<Pulse>),
    DeclareDead => Declared(Swept),
    Start => Started(Started),
    Claim => Claimed(Claimed),
    Enter => Entered(Entered),
    Adopt => Adopted(()),
    EndAttempt => Ended(Status),
    Admit => Admitted(Admission),
    Settle => Settled(Settled),
    Retry => MayLeave(bool),
    Delivered => Marked(()),
    BeginStep => Begun(Step),
    BeginTool => ToolBegun(Tool),
    Record => Recorded(Seq),
    ResolveStep => StepResolved(Seq),
    ClaimItem => ItemClaimed(ItemClaim),
    NextTry => Tried(i64),
    RecordItem => ItemEnded(ItemEnded),
    ReturnItem => Returned(()),
    ResetItem => Reset(Seq),
    Keep => Kept(()),
    Checkpoint => Saved(Seq),
    CountLoop => Turned(Turn),
    Put => Put(Committed),
    PutByToken => PutByToken(Committed),
    Retain => Retained(()),
    Compact => Compacted(Compacted),
    Raise => Raised(Status),
    Tell => Told(Status),
    Forget => Forgotten(Forgot),
    Recount => Recounted(bool),
    Fork => Forked(Started),
    Snapshot => Named(Seq),
    Reopen => Reopened(Status),
    Hold => Held(Option<Micros>),
    BeginIteration => Iterating(Seq),
    JudgeIteration => Judged(Verdict),
    Reprice => Repriced(Status),
    SetBudget => BudgetSet(BudgetSet),
    RaiseBudget => BudgetRaised(Limits),
    RemoveBudget => BudgetRemoved(()),
    ApplyBudget => BudgetApplied(usize),
    RequestApproval => ApprovalAsked(approval::Answer),
    DecideApproval => ApprovalDecided(approval::Answer),
}

/// What a renewal tells a driver of one of its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulse {
    pub run: RunNo,
    pub status: Status,
    pub stop_requested: bool,
    pub halt: Option<Refusal>,
}

/// What a dead instance left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub unknown_calls: usize,
    pub ended_attempts: usize,
    pub interrupted: Vec<RunId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    pub run: RunNo,
    /// False when the run existed: its limits are as they were.
    pub created: bool,
    pub status: Status,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    Attempt {
        /// The one asked for, or the free one that was found.
        slot: Slot,
        attempt: AttemptNo,
        fence: Fence,
        iteration: i64,
        answers: i64,
    },
    /// `restarts` is used up, or the run's time is over: the run is halted.
    Refused(Refusal),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entered {
    pub attempt: AttemptNo,
    pub slot: Slot,
    pub iteration: i64,
}

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// A new call: reserved and on disk. `cap` is the output cap to send when the client's was too large.
    Go { seq: Seq, cap: Option<u64>, retry_of: Option<Seq>, diverged: Option<Divergence> },
    /// The recorded answer of entry `seq` serves.
    Replay { seq: Seq },
    /// Entry `seq` is in flight under `instance`: its answer will serve.
    Join { seq: Seq, instance: InstanceNo },
    /// Room may come back: decide again when something is settled, voided or raised.
    Wait { refusal: Refusal },
    /// Refused; the run is halted, or was already.
    Refused(Refusal),
}

/// A new call while recorded answers were untaken; said once per attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    pub untaken: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub cost_nano_usd: i64,
    pub overrun_nano_usd: i64,
    /// The run's own envelope, in usd: spent, and the limit if there is one.
    pub run_spent_nano_usd: i64,
    pub run_status: Status,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Opened: run it. `try_no` is 0 in a step without retries; `tries` are those since it was begun or given up,
    /// this one counted, over all processes.
    Run { seq: Seq, begun_before: bool, try_no: i64, tries: i64 },
    /// Its result is recorded.
    Done { seq: Seq },
    /// It may have happened at most once, and nobody knows whether: it does not run again by itself.
    InDoubt { seq: Seq },
}

/// What becomes of a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Opened: it may begin.
    Begun { seq: Seq },
    /// An attempt that has ended left it open. It is this attempt's now.
    Again { seq: Seq },
    /// It is open in this attempt.
    Taken { seq: Seq },
    /// It was recorded.
    Ended { seq: Seq, state: State },
}

/// What became of a loop's turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// How many are counted now.
    Counted {
        loops: i64,
    },
    Refused(Refusal),
}

/// What became of a named budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetSet {
    pub no: BudgetNo,
    /// False when it was so already.
    pub changed: bool,
    /// False while runs that were there before it are still to be charged to it: see `ApplyBudget`.
    pub applied: bool,
}

/// How a supervised attempt's end is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    /// The same driver starts another attempt: the run stays running.
    Restart,
    /// An iteration of the run's loop is over, and is judged next: the run stays running.
    Turn,
    /// At the provider's usage limit: no attempt is started before `until`.
    Sleep {
        until: Micros,
    },
    /// Its calls wait for a budget above its own: no attempt is started before there is room.
    Wait,
    /// `by_person`: `resume --all` leaves it alone.
    Interrupt {
        by_person: bool,
    },
    Complete,
    Fail(String),
}
