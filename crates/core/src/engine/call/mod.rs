//! Verbs on LLM calls: admission, settlement, retries, delivery.

pub mod admit;
pub mod delivered;
pub(crate) mod plan;
pub mod settle;
