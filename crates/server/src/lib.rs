//! The faces over the engine: the LLM proxy, REST, and what they share.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod dialect;
