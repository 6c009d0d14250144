//! State of the task that carries an exchange.

use std::sync::Arc;

use outlast_core::words::{id::Micros, outage::Cause};
use tokio::time::Instant;

use super::settling::Settling;
use crate::{
    dialect::Outcome,
    proxy::{call::Call, host::Host, log::Live},
};

/// The task of an exchange.
pub(super) struct Carry {
    pub host: Arc<Host>,
    pub live: Arc<Live>,
    pub call: Arc<Call>,
    /// Lowered output cap that the request is sent with.
    pub cap: Option<u64>,
    pub answer: Answered,
    pub tries: Tries,
    pub settling: Settling,
}

/// Outcome of the current try.
#[derive(Default)]
pub(super) struct Answered {
    pub status: Option<u16>,
    pub head_at: Option<Instant>,
    pub request_id: Option<String>,
    pub outcome: Outcome,
    /// Time until which the upstream refuses all calls, if it said so.
    pub limited: Option<Micros>,
    /// Cause of an outage that the failure may belong to.
    pub cause: Option<Cause>,
}

/// Times at which the call was sent.
#[derive(Default)]
pub(super) struct Tries {
    pub first_at: Option<Instant>,
    pub last_at: Option<Instant>,
    /// Number of retries.
    pub again: u32,
}
