//! Details of entries, by their kind: calls, tool calls, steps, items.

use serde::{Deserialize, Serialize};

use crate::{
    envelope::Amounts,
    journal::{ActDetail, State},
    named,
    words::{AttemptNo, Digest, EnvelopeNo, InstanceNo, Micros, Seq, ServiceTier, Usage, is_default},
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
    #[serde(default, skip_serializing_if = "is_default")]
    pub unbacked_tokens: i64,
    pub why: String,
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
    /// Name of the API token by which the call was let in; `None` for other callers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// Output cap put into the request in tokens, when the client's own did not fit; `None` if it was not changed.
    pub clamped_to: Option<u64>,
    /// Part of the call whose price is not known, and which is in no charge of it: a feature of the request, or all of the
    /// model's tokens, by the model's name. `None` if all of it is charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unpriced: Option<String>,
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
    #[serde(skip_serializing_if = "is_default")]
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
    #[serde(skip_serializing_if = "is_default")]
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

/// Connection that receives a call's answer. While its process lives, no other request of its attempt has that answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taker {
    pub attempt: AttemptNo,
    /// Process of the connection.
    pub instance: InstanceNo,
    /// Number of the connection. No two connections to the servers of a store have one number.
    pub connection: u64,
    /// Whether the attempt counts it among the recorded answers that it is receiving.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counted: bool,
}

/// Details of a tool call that goes through Outlast, for example over MCP. Calls that only a hook saw have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolDetail {
    /// Name of the server or library that has the tool.
    pub server: String,
    pub tool: String,
    /// The client's own id of the call; `None` from a client that gives none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Other ids under which later lives asked for the same call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub later_ids: Vec<String>,
    /// Number of times that the call may have been sent. At 0 the call is only reserved: on disk, and certainly not
    /// sent.
    pub sends: i64,
    /// Whether the call may be sent again while its outcome is unknown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub repeatable: bool,
    /// Whether a person decided the outcome.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resolved: bool,
}

impl ToolDetail {
    /// Returns the name by which people and policies know the tool: `SERVER/TOOL`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.server, self.tool)
    }

    /// Returns whether a client knows the call by this id.
    pub fn is_named(&self, id: &str) -> bool {
        self.id.as_deref() == Some(id) || self.later_ids.iter().any(|later| later == id)
    }

    /// Returns whether the call may have been sent, and so may have had its effect.
    pub fn is_sent(&self) -> bool {
        self.sends > 0
    }
}

/// Details of a step entry. Most steps have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepDetail {
    /// Item or step in which the step was begun; `None` outside of both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<Seq>,
    /// Whether the step was declared with retries: each try then has a scope of its own.
    pub retries: bool,
    /// Number of the current try, from 1; 0 in a step without retries.
    pub try_no: i64,
    /// Number of the first try since the step was begun anew after it was given up, else 1; 0 in a step without
    /// retries.
    #[serde(skip_serializing_if = "is_default")]
    pub first_try: i64,
    /// Whether the step raised an error and was to be tried again. The next `BeginStep` then continues the count of
    /// tries.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// Whether a person decided the outcome.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resolved: bool,
    /// Whether the step never runs again by itself while its outcome is unknown.
    pub at_most_once: bool,
    /// Number of answers in the iteration's scope that were made in this step. Once the step is done, nobody
    /// asks for them again.
    pub answers: i64,
    /// Part of `answers` that the attempt running the step has not taken yet.
    pub untaken: i64,
    /// Order that was given, and by whom, in the entry of an act.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub act: Option<ActDetail>,
}

impl StepDetail {
    /// Returns the number of tries since the step was begun, or begun anew after it was given up, this one
    /// included. Always 1 in a step without retries.
    pub fn tries(&self) -> i64 {
        (self.try_no - self.first_try).max(0) + 1
    }
}

named! {
    /// Standing of a batch item.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Standing {
        /// Claimed, or given back and pending.
        #[default]
        Open "open",
        Done "done",
        /// Failed. The item runs again at the job's next start.
        Failed "failed",
        /// Dead. The item runs again only when a person resets it.
        Dead "dead",
        /// Refused by the function with a reason. Kept as a tombstone, so that no resume pays for the item again.
        Skipped "skipped",
    }
}

impl Standing {
    /// Returns the state of the item's entry.
    pub fn state(self) -> State {
        match self {
            Standing::Open => State::Open,
            Standing::Done | Standing::Skipped => State::Done,
            Standing::Failed | Standing::Dead => State::Failed,
        }
    }
}

/// Details of an item entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ItemDetail {
    /// Position in the input of the start that claimed the item, from 0.
    pub index: i64,
    /// Digest of the item's content, which shows if the key now names other content; `None` if not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Digest>,
    /// Digest of the code that ran the item; `None` if not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<Digest>,
    pub standing: Standing,
    /// Number of the current try, counted over all entries of the key. The number is part of the scope of the try's
    /// calls.
    pub try_no: i64,
    /// Number of this entry's first try.
    pub first_try: i64,
    /// Number of starts of the job in which the item failed, this entry's own included.
    #[serde(skip_serializing_if = "is_default")]
    pub failed_starts: i64,
    /// Number of process deaths while the item was open.
    #[serde(skip_serializing_if = "is_default")]
    pub deaths: i64,
    /// Generation of the item's steps. Grows when finished steps no longer count, because the item runs anew.
    #[serde(skip_serializing_if = "is_default")]
    pub generation: i64,
    /// Generation whose paid answers are replayed to the item's steps with retries.
    #[serde(skip_serializing_if = "is_default")]
    pub root: i64,
    /// Reason why the item was skipped or is dead; `None` in any other standing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Name of who made the item run again, with this entry: see [`crate::journal::act::ActDetail::by`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_by: Option<String>,
    /// Charges of the item's earlier entries.
    #[serde(skip_serializing_if = "Amounts::is_zero")]
    pub earlier: Amounts,
}

impl ItemDetail {
    /// Returns the number of tries of this entry. A try that was cut off or given back and then continued
    /// counts once.
    pub fn tries(&self) -> i64 {
        self.try_no - self.first_try + 1
    }
}
