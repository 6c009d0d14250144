//! State of the task that carries an exchange.

use std::sync::Arc;

use outlast_core::words::{id::Micros, outage::Cause};
use tokio::time::Instant;

use super::settling::Settling;
use crate::{
    dialect::Outcome,
    proxy::{call::Call, host::Host, log::Live},
};

/// State of the task that carries one exchange to its settlement.
pub(super) struct Carry {
    pub host: Arc<Host>,
    pub live: Arc<Live>,
    pub call: Arc<Call>,
    /// Tokens to which the request's output cap is lowered; `None`: the cap stays.
    pub cap: Option<u64>,
    pub answer: Answered,
    pub tries: Tries,
    pub settling: Settling,
}

/// Result of the current try.
#[derive(Default)]
pub(super) struct Answered {
    pub status: Option<u16>,
    pub head_at: Option<Instant>,
    pub request_id: Option<String>,
    pub outcome: Outcome,
    /// Reason why the answer's text cannot be read; `None` if it can be.
    pub unreadable: Option<String>,
    /// Time at which the upstream's usage limit ends; `None` if it reported none.
    pub limited: Option<Micros>,
    /// Cause of the outage that the failure may belong to; `None` if there is none.
    pub cause: Option<Cause>,
}

/// Times at which the call's first and last try were sent.
#[derive(Default)]
pub(super) struct Tries {
    pub first_at: Option<Instant>,
    pub last_at: Option<Instant>,
    /// Number of retries so far, without the first try.
    pub again: u32,
}
