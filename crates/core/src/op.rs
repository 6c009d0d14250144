//! The operations: what can be asked of the engine, and what it answers.
//!
//! Each verb has its own file in `engine/`. `Op` is their sum, so that a store handles one type.

use crate::{
    approval,
    engine::{
        admit::Admit,
        adopt::Adopt,
        apply_budget::ApplyBudget,
        begin_iteration::BeginIteration,
        checkpoint::Checkpoint,
        claim::Claim,
        claim_item::ClaimItem,
        compact::{Compact, Compacted},
        count_loop::CountLoop,
        decide_approval::DecideApproval,
        declare_dead::DeclareDead,
        delivered::Delivered,
        end_attempt::EndAttempt,
        enter::Enter,
        forget::{Forget, Forgot},
        fork::Fork,
        hold::Hold,
        judge_iteration::JudgeIteration,
        keep::Keep,
        next_try::NextTry,
        put::Put,
        put_by_token::PutByToken,
        raise::Raise,
        raise_budget::RaiseBudget,
        record::Record,
        record_item::RecordItem,
        recount::Recount,
        register::Register,
        remove_budget::RemoveBudget,
        renew::Renew,
        reopen::Reopen,
        reprice::Reprice,
        request_approval::RequestApproval,
        reset_item::ResetItem,
        resolve_step::ResolveStep,
        retain::Retain,
        retry::Retry,
        return_item::ReturnItem,
        set_budget::SetBudget,
        settle::Settle,
        snapshot::Snapshot,
        start::Start,
        step::BeginStep,
        tell::Tell,
        tool::BeginTool,
    },
    id::{InstanceNo, Micros, Seq},
    job::{ItemClaim, ItemEnded},
    loaded::Need,
    looping::Verdict,
    state::Committed,
    status::Status,
    unit::Limits,
};

// A verb's answer stands beside the verb; whoever asks through `Op` finds it here, too.
pub use crate::{
    engine::{
        actor::Actor,
        admit::{Admission, Divergence},
        claim::Claimed,
        count_loop::Turn,
        declare_dead::Swept,
        end_attempt::Then,
        enter::Entered,
        renew::Pulse,
        set_budget::BudgetSet,
        settle::Settled,
        start::Started,
        step::Step,
        tool::Tool,
    },
    store::Durability,
};

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
            loaded: &mut crate::loaded::Loaded,
            now: crate::id::Micros,
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
