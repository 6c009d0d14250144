//! Verbs on runs, their attempts and their processes.

pub mod adopt;
pub mod amend;
pub mod await_provider;
pub mod begin_iteration;
pub mod claim;
pub mod declare_dead;
pub mod end_attempt;
pub mod enter;
pub mod forget;
pub mod fork;
pub mod halt;
pub mod hold;
pub mod judge_iteration;
pub mod raise;
pub mod recount;
pub mod register;
pub mod renew;
pub mod reopen;
pub mod snapshot;
pub mod start;
pub mod tell;
