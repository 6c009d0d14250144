//! Deeds: the actions that the desk leaves to its host.

use crate::{
    call::{Broken, ConnectionId, Refused, Visible, desk::Key, exchange::Ending, rates::Later},
    journal::Opening,
    words::{Cause, InstanceNo, Seq},
};

/// Action for the host, with the machine it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    Client(ConnectionId, ForClient),
    Exchange(Key, ForExchange),
}

/// Parameters of an admission, taken from the registries at the time of the request for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitting {
    pub instance: InstanceNo,
    pub taken: Vec<Seq>,
    pub answered_with_error: bool,
    /// Whether the call waits behind another call of its run, or has no turn at its upstream.
    pub behind: bool,
    /// Time to ask again for a turn at the upstream; `None` if the call has its turn. Feed `MayRetry` at that time, or
    /// earlier, until the call is admitted.
    pub later: Option<Later>,
}

/// Action for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForClient {
    /// Submit `Admit` with durability `Synced`; feed `Admitted`.
    Admit(Admitting),
    /// Start the timer of `--admit-wait`; feed `WaitOver` when it is over.
    Wait,
    /// Stop the timer of `--admit-wait`.
    WaitNoMore,
    /// Run a new exchange: send the request upstream, with its output cap lowered to `cap` if that is set. The client's
    /// answer comes from this exchange.
    Open { opening: Opening, cap: Option<u64> },
    /// Run a new exchange that is never sent: only its settlement is left to do.
    Drop(Opening),
    /// Take answers from this process's exchange of the entry.
    Attach(Seq),
    /// Read the entry's state after a pause; feed `Polled`.
    Poll(Seq),
    /// Read the recorded answer; feed `Loaded`.
    Load(Seq),
    /// Forward the newly visible part of the answer to the client: the head first, swallowed frames left out.
    Send(Visible),
    /// End the answer cleanly; feed `Delivered` once it is flushed.
    Finish,
    /// Answer with this refusal; no byte was sent.
    Refuse(Refused),
    /// End the begun answer with an error frame in its dialect, and never cleanly.
    BreakOff(Broken),
    /// Submit `GiveBack` with durability `Committed`.
    GiveBack(Seq),
    /// Submit `Delivered` with durability `Lazy`; feed `Marked`.
    Mark { seq: Seq, count: u32, replayed: bool },
    /// Forget the connection: no deed follows.
    Over,
}

/// Action for an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForExchange {
    /// Submit the settlement with durability `Synced`; feed `Settled`, and `SettleSlow` if that takes longer than the
    /// settle-wait.
    Settle { ending: Ending, error: Option<&'static str> },
    /// The store failed: submit the same settlement again after a pause.
    SettleAgain { ending: Ending, error: Option<&'static str> },
    /// Too many bytes wait to be recorded: drop the answer, keep its usage.
    DropAnswer,
    /// Drop the upstream's connection.
    Abort,
    /// Submit `Retry { resting: true }` with durability `Committed`; feed `Rested` after the pause. Keep what the
    /// upstream sent: it may be the final answer.
    Rest { tries: Vec<Option<u16>>, pause_ms: u64 },
    /// Records in the run that its upstream has an outage: submits the operation `AwaitProvider` with durability
    /// `Committed`. The deed that ends the try, `Rest` or `Settle`, follows it.
    Outage(Cause),
    /// Another call probes the upstream: feed `Rested` after the pause.
    RestOn { pause_ms: u64 },
    /// Submit `Retry { resting: false }` with durability `Synced`; feed `MayLeave`.
    AskAgain { tries: Vec<Option<u16>> },
    /// Drop what the upstream sent, and send the request again.
    SendAgain,
    /// Forget the exchange: no deed follows.
    Over,
}
