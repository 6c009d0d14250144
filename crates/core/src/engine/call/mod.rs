//! Verbs on LLM calls: admission, settlement, retries, delivery.

pub mod admit;
pub mod delivered;
pub mod give_back;
pub(crate) mod plan;
pub mod retry;
pub mod settle;
pub mod store_part;
