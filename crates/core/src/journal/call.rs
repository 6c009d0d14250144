//! Details of call entries.

use serde::{Deserialize, Serialize};

use crate::{
    envelope::unit::Amounts,
    words::{
        digest::Digest,
        id::{EnvelopeNo, Micros, Seq},
        usage::{ServiceTier, Usage},
    },
};

/// Correction of an entry whose outcome had been unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correction {
    pub at: Micros,
    /// Amounts that the correction posted: the call's own bill if it arrived late, else the lesser of the
    /// estimate and the room that the limits left.
    pub posted: Amounts,
    /// Part of the estimate for which the limits left no room (unbacked doubt), in nano-USD.
    pub unbacked_nano_usd: i64,
    /// Part of the estimate for which the limits left no room, in tokens.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unbacked_tokens: i64,
    pub why: String,
}

fn is_zero(amount: &i64) -> bool {
    *amount == 0
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

/// Details of a call entry; most of them are for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallDetail {
    pub upstream: String,
    pub path: String,
    pub model: String,
    pub stream: bool,
    /// Digest of the request, stored in hex.
    pub digest: Option<Digest>,
    pub idempotency_key: Option<String>,
    /// Output cap put into the request in tokens, when the client's own did not fit; `None` if it was not changed.
    pub clamped_to: Option<u64>,
    /// Earlier call, its outcome unknown, that this call repeats; `None` if it repeats none.
    pub retry_of: Option<Seq>,
    /// Largest number of input tokens for which the request can be billed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_bound: Option<u64>,
    /// Amounts reserved for the call. They are its charge when no usage arrives, even if a retry has inherited the
    /// reservation.
    pub reserved: Amounts,
    /// Amounts taken over from the reservation of `retry_of`.
    pub inherited: Amounts,
    /// Number of lost tries whose reservation was passed on to this call, each to the next: the length of that chain.
    pub inheritances: u8,
    pub http_status: Option<u16>,
    pub usage: Option<Usage>,
    pub tier: ServiceTier,
    pub price_hash: Option<String>,
    /// Whether no usage arrived and the call was charged at its reservation.
    pub estimated: bool,
    /// Amount billed beyond what was reserved for the call, recorded in full.
    pub overrun_nano_usd: i64,
    /// Tokens billed beyond what was reserved for the call, recorded in full.
    #[serde(skip_serializing_if = "is_zero")]
    pub overrun_tokens: i64,
    pub upstream_request_id: Option<String>,
    /// Whether the call was counted as a loop, in a run that registers no loops of its own.
    pub implicit_loop: bool,
    pub correction: Option<Correction>,
    pub error: Option<String>,
    /// HTTP statuses of the tries before the last one, oldest first; `None` where the upstream was not reached.
    /// While the call rests, all of its tries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<Option<u16>>,
    /// Whether the call waits for its next try: nothing of it is on its way.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resting: bool,
    /// Whether a request at another process waits for the answer, or has waited. Its process is told of the end by a hint.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub joined: bool,
    /// Item or step in which the call was made; `None` outside of both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<Seq>,
    /// Number of calls in a row, this one included, that brought the agent nothing new; 0 if it is no busy waiting.
    #[serde(skip_serializing_if = "is_none")]
    pub waits: u32,
    /// Windows of named budgets under which the call was admitted. Its cost is charged to them, whenever the outcome
    /// comes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<EnvelopeNo>,
}

impl CallDetail {
    /// Returns the cost and tokens billed beyond what was reserved for the call.
    pub fn overrun(&self) -> Amounts {
        Amounts::of(self.overrun_nano_usd, self.overrun_tokens)
    }
}
