//! Verbs on runs, their attempts and their processes.

pub mod claim;
pub mod end_attempt;
pub mod forget;
pub mod import;
pub mod iteration;
pub mod leave;
pub mod limits;
pub mod pause;
pub mod process;
pub mod start;
pub mod tell;
