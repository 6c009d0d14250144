//! The engine's operations and their outcomes.
//!
//! Each verb is a struct in `engine/`. `Op` is the sum of all verbs, so that a store handles one type.

use crate::{
    engine::{prelude::*, *},
    journal::{ItemClaim, ItemEnded, Standing, approval},
    run::Verdict,
    state::Committed,
    words::OutSince,
};

macro_rules! ops {
    (orders { $($orders:tt)* } others { $($verb:ident => $outcome:ident($answer:ty),)* }) => {
        ops! { $($orders)* $(#[serde(skip)] $verb => $outcome($answer),)* }
    };
    ($($(#[$serde:meta])? $verb:ident => $outcome:ident($answer:ty),)*) => {
        /// Operation on the engine: one variant per verb.
        ///
        /// Only what a person orders has a text, and so can come from another machine.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Op {
            $($(#[$serde])? $verb(Box<$verb>),)*
            /// Another operation, with the name of who ordered it.
            #[serde(skip)]
            InName(Box<Named>),
        }

        /// Answer of an operation.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Outcome { $($(#[$serde])? $outcome($answer)),* }

        impl Op {
            /// Lists the rows that the store has to load before the decision.
            pub fn needs(&self) -> Vec<Need> {
                match self {
                    $(Op::$verb(v) => v.needs(),)*
                    Op::InName(named) => named.op.needs(),
                }
            }
            pub fn name(&self) -> &'static str {
                match self {
                    $(Op::$verb(_) => stringify!($verb),)*
                    Op::InName(named) => named.op.name(),
                }
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

        /// Decides `op` on the rows that were loaded for it, and derives its events and what it adds to the ledger. Pure: `now` is the store's clock.
        pub fn decide(
            op: &Op,
            loaded: &mut crate::engine::loaded::Loaded,
            now: crate::words::id::Micros,
        ) -> Result<Outcome, crate::engine::Error> {
            let before = crate::events::Before::of(loaded);
            let lines = crate::journal::ledger::LinesBefore::of(&loaded.entries);
            let outcome = decide_alone(op, loaded, now)?;
            loaded.events = before.derive(loaded, now);
            loaded.posted = lines.changes(&loaded.entries);
            Ok(outcome)
        }

        fn decide_alone(
            op: &Op,
            loaded: &mut crate::engine::loaded::Loaded,
            now: crate::words::id::Micros,
        ) -> Result<Outcome, crate::engine::Error> {
            match op {
                $(Op::$verb(v) => v.decide(loaded, now).map(Outcome::$outcome),)*
                Op::InName(named) => {
                    let outcome = decide_alone(&named.op, loaded, now)?;
                    act::record(named, &outcome, loaded, now)?;
                    Ok(outcome)
                }
            }
        }
    };
}

/// A verb of the engine, with the type of its answer.
pub trait Verb: Into<Op> {
    type Answer;
    /// Unwraps the answer; `None` when `outcome` belongs to another verb.
    fn answer(outcome: Outcome) -> Option<Self::Answer>;
}

ops! {
    orders {
        ResetItem => Reset(Seq),
        Raise => Raised(Status),
        Tell => Told(Status),
        Fork => Forked(Started),
        SetBudget => BudgetSet(BudgetSet),
        RaiseBudget => BudgetRaised(Limits),
        RemoveBudget => BudgetRemoved(()),
        DecideApproval => ApprovalDecided(approval::Answer),
        Forget => Forgotten(Forgot),
    }
    others {
        Register => Registered(InstanceNo),
        Renew => Renewed(Vec<Pulse>),
        DeclareDead => Declared(Swept),
        Start => Started(Started),
        Claim => Claimed(Claimed),
        Enter => Entered(Entered),
        Adopt => Adopted(()),
        EndAttempt => Ended(Status),
        AwaitProvider => AwaitsProvider(OutSince),
        ProviderAnswered => GoesOn(Status),
        Admit => Admitted(Admission),
        Settle => Settled(Settled),
        Retry => MayLeave(bool),
        Delivered => Marked(()),
        GiveBack => GivenBack(()),
        BeginStep => Begun(Step),
        BeginTool => ToolBegun(Tool),
        ReserveTool => ToolReserved(Reserved),
        SendTool => ToolSent(i64),
        GiveUpTool => ToolGivenUp(State),
        GiveBackTool => ToolGivenBack(State),
        ResolveTool => ToolResolved(Seq),
        Record => Recorded(Seq),
        ResolveStep => StepResolved(Seq),
        ExpectItems => Expected(()),
        ClaimItem => ItemClaimed(ItemClaim),
        NextTry => Tried(i64),
        RecordItem => ItemEnded(ItemEnded),
        ReturnItem => Returned(()),
        SpareItem => ItemSpared(Standing),
        StorePart => Kept(()),
        Checkpoint => Saved(Seq),
        CountLoop => Turned(Turn),
        Put => Put(Committed),
        PutByToken => PutByToken(Committed),
        PutRow => RowPut(Committed),
        Retain => Retained(()),
        Compact => Compacted(Compacted),
        Recount => Recounted(bool),
        Snapshot => Named(Seq),
        Reopen => Reopened(Status),
        Hold => Held(Option<Micros>),
        BeginIteration => Iterating(Seq),
        JudgeIteration => Judged(Verdict),
        Amend => Amended(Status),
        Halt => Halted(Status),
        ApplyBudget => BudgetApplied(usize),
        RequestApproval => ApprovalAsked(approval::Answer),
        PutDelivery => DeliveryPut(bool),
        Move => Fenced(bool),
        Import => Imported(Imported),
    }
}

/// The run, attempt and instance for which an operation acts; checked before an entry is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Actor {
    pub run: RunNo,
    pub attempt: AttemptNo,
    /// The process that opens the entry. Only this instance may close it.
    pub instance: InstanceNo,
}
