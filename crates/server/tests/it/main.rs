//! The proxy and the state as a whole: over real sockets, a real store and the fake provider, in this process.
#![allow(clippy::unwrap_used)]

mod access;
mod approvals;
mod bad_input;
mod budget;
mod chaos;
mod client;
mod failing;
mod faithful;
mod faults;
mod fleet;
mod gemini;
mod intercept;
mod masks;
mod named;
mod page;
mod probes;
mod rates;
mod reads;
mod reattach;
mod replay;
mod responses;
mod restart;
mod resume_tax;
mod rig;
mod riskkernel;
mod riskkernel_approvals;
mod riskkernel_memory;
mod scope;
mod scripted;
mod server_tools;
mod state_grpc;
mod state_rest;
mod stream;
mod tricks;
mod tries;
