//! What only a call has.

use serde::{Deserialize, Serialize};

use crate::{
    envelope::unit::Amounts,
    words::{
        digest::Digest,
        id::{EnvelopeNo, Micros, Seq},
        usage::{ServiceTier, Usage},
    },
};

/// One correction of an entry whose outcome had been unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correction {
    pub at: Micros,
    /// What was posted: its own bill where that came late; else its retry's cost or the headroom left,
    /// whichever is less.
    pub posted: Amounts,
    /// What the retry cost beyond that: unbacked doubt.
    pub unbacked_nano_usd: i64,
    pub why: String,
}

/// What only a call has; most of it for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallDetail {
    pub upstream: String,
    pub path: String,
    pub model: String,
    pub stream: bool,
    /// The digest in hex.
    pub digest: Option<Digest>,
    pub idempotency_key: Option<String>,
    /// The output cap put into the request, when the client's did not fit.
    pub clamped_to: Option<u64>,
    /// The lost call this one repeats.
    pub retry_of: Option<Seq>,
    /// What it reserved: its charge when no usage arrives, also when its hold was passed on.
    pub reserved: Amounts,
    /// What it took over from that call's reservation.
    pub inherited: Amounts,
    /// How many inheritances lie behind it.
    pub inheritances: u8,
    pub http_status: Option<u16>,
    pub usage: Option<Usage>,
    pub tier: ServiceTier,
    pub price_hash: Option<String>,
    /// No usage arrived: charged at the reservation.
    pub estimated: bool,
    /// Billed beyond its bound, recorded in full.
    pub overrun_nano_usd: i64,
    pub upstream_request_id: Option<String>,
    /// The counted loop it brought with it (a run without loops of its own).
    pub implicit_loop: bool,
    pub correction: Option<Correction>,
    pub error: Option<String>,
    /// The tries before its last one, the oldest first: the upstream's status, `None` where it was not reached. While
    /// it rests, all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<Option<u16>>,
    /// It waits for its next try: nothing of it is on its way.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resting: bool,
    /// The item or step it was made in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<Seq>,
    /// The windows of named budgets it was admitted under: whenever its outcome comes, it is charged to these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<EnvelopeNo>,
}
