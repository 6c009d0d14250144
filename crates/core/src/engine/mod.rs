//! The engine: one verb, one file. Each verb names what it needs and decides on it, purely.

mod error;

pub mod actor;
pub mod admit;
pub mod adopt;
pub mod apply_budget;
pub mod begin_iteration;
pub mod checkpoint;
pub mod claim;
pub mod claim_item;
pub mod compact;
pub mod count_loop;
pub mod decide_approval;
pub mod declare_dead;
pub mod delivered;
pub mod doubt;
pub mod end_attempt;
pub mod enter;
pub mod forget;
pub mod fork;
pub mod guard;
pub mod hold;
pub mod judge_iteration;
pub mod keep;
pub mod next_try;
pub mod put;
pub mod put_by_token;
pub mod raise;
pub mod raise_budget;
pub mod record;
pub mod record_item;
pub mod recount;
pub mod register;
pub mod remove_budget;
pub mod renew;
pub mod reopen;
pub mod replay;
pub mod reprice;
pub mod request_approval;
pub mod reset_item;
pub mod resolve_step;
pub mod retain;
pub mod retry;
pub mod return_item;
pub mod set_budget;
pub mod settle;
pub mod snapshot;
pub mod start;
pub mod step;
pub mod tell;
pub mod tool;
pub mod windows;
pub mod within;

pub use error::Error;

#[cfg(test)]
pub(crate) mod bench;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod regressions;
