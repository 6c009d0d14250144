//! What a task keeps of the exchange that it carries.

use std::sync::Arc;

use outlast_core::words::id::Micros;
use tokio::time::Instant;

use super::settling::Settling;
use crate::{
    dialect::Outcome,
    proxy::{call::Call, host::Host, log::Live},
};

/// An exchange and its task.
pub(super) struct Carry {
    pub host: Arc<Host>,
    pub live: Arc<Live>,
    pub call: Arc<Call>,
    /// The output cap that it is sent with.
    pub cap: Option<u64>,
    pub answer: Answered,
    pub tries: Tries,
    pub settling: Settling,
}

/// What came of the try at hand.
#[derive(Default)]
pub(super) struct Answered {
    pub status: Option<u16>,
    pub head_at: Option<Instant>,
    pub request_id: Option<String>,
    pub outcome: Outcome,
    /// Until when the upstream refuses everything, if it said so.
    pub limited: Option<Micros>,
}

/// How often and when the call was sent.
#[derive(Default)]
pub(super) struct Tries {
    pub first_at: Option<Instant>,
    pub last_at: Option<Instant>,
    /// How often it was sent again.
    pub again: u32,
}
