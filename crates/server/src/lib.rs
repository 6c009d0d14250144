//! The faces over Outlast's engine: the LLM proxy, with the fake provider it is tested and measured
//! against, the state over gRPC and REST, and what clients of other systems know.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod compat;
pub mod dialect;
pub mod door;
pub mod grpc;
pub mod http;
pub mod node;
pub mod proxy;
pub mod state;
pub mod version;
pub mod wire;
