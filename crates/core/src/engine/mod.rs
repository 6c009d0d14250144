//! The engine: verbs, in one file where they tell one story. Each verb names the rows it needs and decides on them as a pure function.

mod error;
mod prelude;

pub mod act;
pub mod approval;
pub mod budget;
pub mod call;
pub mod checkpoint;
pub mod item;
pub mod loaded;
pub mod notify;
pub mod op;
pub mod openings;
pub mod rule;
pub mod run;
pub mod state;
pub mod step;
#[cfg(test)]
pub(crate) mod tests;
pub mod tool;

pub use self::{
    act::{InName, Named},
    approval::{Asker, DecideApproval, RequestApproval},
    budget::{ApplyBudget, BudgetSet, RaiseBudget, RemoveBudget, SetBudget, Source},
    call::{
        admit::{Admission, Admit},
        delivered::{Delivered, GiveBack, Receiver},
        settle::{Bill, Close, Retry, Settle, Settled, StorePart},
    },
    checkpoint::Checkpoint,
    error::Error,
    item::{ClaimItem, ExpectItems, ItemEnd, RecordItem, ResetItem, ReturnItem, SpareItem},
    loaded::{Loaded, Need, Numbers},
    notify::PutDelivery,
    op::{Actor, Op, Outcome, Verb},
    rule::taking::{Heir, Received},
    run::{
        claim::{Adopt, Claim, Claimed, Enter, Entered},
        // Whole where a file has nothing but verbs and their words: another verb there needs no line here.
        end_attempt::*,
        forget::*,
        import::*,
        iteration::{BeginIteration, JudgeIteration},
        leave::*,
        limits::*,
        pause::*,
        process::{Active, ActiveTime, DeclareDead, Pulse, Register, Renew, Swept},
        start::*,
        tell::*,
    },
    state::{
        put::{Change, Put, PutByToken, PutRow},
        retain::{Compact, Compacted, Retain},
    },
    step::{BeginStep, CountLoop, NextTry, Record, ResolveStep, Step, Turn},
    tool::{BeginTool, GiveBackTool, GiveUpTool, ReserveTool, Reserved, ResolveTool, Said, SendTool, Tool},
};
