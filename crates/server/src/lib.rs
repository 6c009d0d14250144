//! The faces over Outlast's engine: the LLM proxy, and the fake provider it is tested and measured against.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod dialect;
pub mod mock;
pub mod node;
pub mod proxy;
