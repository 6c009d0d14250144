//! The network interfaces of Outlast's engine: the LLM proxy, the state over gRPC and REST, and the routes of other
//! systems' clients. `door` accepts each request and hands it to one of them.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod api;
pub mod dialect;
pub mod door;
#[cfg_attr(not(feature = "grpc"), path = "without_grpc.rs")]
pub mod grpc;
pub mod hints;
pub mod intercept;
pub mod mcp;
pub mod node;
pub mod notify;
pub mod page;
pub mod proxy;
pub mod remote;
pub mod reservation;
pub mod state;
mod trouble;
pub mod version;
pub mod wire;
pub mod work;
