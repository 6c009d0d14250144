//! The engine: verbs, in one file where they tell one story. Each verb names the rows it needs and decides on them as a pure function.

mod error;

pub mod act;
pub mod actor;
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

pub use error::Error;
