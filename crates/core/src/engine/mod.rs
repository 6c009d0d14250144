//! The engine: one verb, one file. Each verb names what it needs and decides on it, purely.

pub mod approval;
pub mod budget;
pub mod call;
mod error;
pub mod item;
pub mod loaded;
pub mod op;
pub mod rule;
pub mod run;
pub mod state;
pub mod step;
#[cfg(test)]
pub(crate) mod tests;

pub use error::Error;
