//! Deeds: what the desk leaves to its host.

use crate::{
    call::{Broken, ConnectionId, Refused, Visible, desk::Key, exchange::Ending, rates::Later},
    words::id::{InstanceNo, Seq},
};

/// One thing for the host to do, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    Client(ConnectionId, ForClient),
    Exchange(Key, ForExchange),
}

/// What a request is admitted with: the registries' word at the moment of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitting {
    pub instance: InstanceNo,
    pub taken: Vec<Seq>,
    pub in_hand: Vec<Seq>,
    pub answered_with_error: bool,
    /// It waits behind another call of its run, or has no turn at its upstream.
    pub behind: bool,
    /// It has no turn at its upstream: feed `MayRetry` after that, or earlier, until it is admitted.
    pub later: Option<Later>,
}

/// What to do for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForClient {
    /// Submit `Admit`, `Synced`; feed `Admitted`.
    Admit(Admitting),
    /// Arm the admit-wait; feed `WaitOver`.
    Wait,
    /// Disarm it.
    WaitNoMore,
    /// Carry a new exchange: send the request upstream, its output cap lowered to `cap`. Answers come from it.
    Open { seq: Seq, cap: Option<u64>, instance: InstanceNo },
    /// Carry a new exchange that is never sent: its settlement is all there is to do.
    Drop { seq: Seq, instance: InstanceNo },
    /// Answers come from this process's exchange of the entry.
    Attach(Seq),
    /// Look at the entry after a pause; feed `Polled`.
    Poll(Seq),
    /// Read the recorded answer; feed `Loaded`.
    Load(Seq),
    /// Forward what became visible: the head first, swallowed frames left out.
    Send(Visible),
    /// End the answer cleanly; feed `Delivered` once it is flushed.
    Finish,
    /// Answer with this; no byte was sent.
    Refuse(Refused),
    /// End the begun answer with an error frame in its dialect, and never cleanly.
    BreakOff(Broken),
    /// Submit `Delivered`, `Lazy`; feed `Marked`.
    Mark { seq: Seq, count: u32, replayed: bool },
    /// Nothing more will come.
    Over,
}

/// What to do for an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForExchange {
    /// Submit the settlement, `Synced`; feed `Settled`, and `SettleSlow` if that takes longer than the settle-wait.
    Settle { ending: Ending, error: Option<&'static str> },
    /// The store failed: submit the same again after a pause.
    SettleAgain { ending: Ending, error: Option<&'static str> },
    /// Too much waits to be recorded: drop the answer, keep its usage.
    DropAnswer,
    /// Drop the upstream's connection.
    Abort,
    /// Submit `Retry { resting: true }`, `Committed`; feed `Rested` after the pause. What came is kept: it may be the
    /// answer.
    Rest { tries: Vec<Option<u16>>, pause_ms: u64 },
    /// Submit `Retry { resting: false }`, `Synced`; feed `MayLeave`.
    AskAgain { tries: Vec<Option<u16>> },
    /// Forget what came, and send the request again.
    SendAgain,
    /// Nothing more will come.
    Over,
}
