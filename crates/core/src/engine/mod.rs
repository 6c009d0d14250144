//! The engine: one verb, one file. Each verb names what it needs and decides on it, purely.

mod error;

pub mod admit;
pub mod adopt;
pub mod checkpoint;
pub mod claim;
pub mod count_loop;
pub mod declare_dead;
pub mod delivered;
pub mod doubt;
pub mod end_attempt;
pub mod enter;
pub mod guard;
pub mod put;
pub mod raise;
pub mod record;
pub mod register;
pub mod renew;
pub mod replay;
pub mod settle;
pub mod start;
pub mod step;
pub mod tell;

pub use error::Error;

#[cfg(test)]
mod bench;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod regressions;
