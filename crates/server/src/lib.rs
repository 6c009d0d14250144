//! The faces over Outlast's engine, and the fake provider they are tested and measured against.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod mock;
