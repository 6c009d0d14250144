//! Desk: the call machines of one process, and the registries that they share.
//!
//! Every request is a [`connection::Connection`], every call that this process opened an [`exchange::Exchange`]. The
//! desk takes their events, does at once whatever concerns several of them (turns, taken answers, queues, delivery
//! marks, rates), and returns the rest as [`Deed`]s for its host. It never waits, sends or reads a clock. The proxy and
//! the simulator drive the same desk.
//!
//! Three rules bind the host:
//! - The deeds of one connection, and those of one exchange, are carried out in the order in which they were returned.
//!   Deeds of different ones may overtake each other.
//! - A client's end ([`connection::Event::ClientGone`], [`connection::Event::Delivered`]) is fed before anything that
//!   the same client asks afterwards. A client that leaves gives its answer back in that very call, so that it finds
//!   the answer when it asks again at once.
//! - A store decides operations in the order in which they were submitted.

mod client;
mod live;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, sync::Arc};

use self::{client::Client, live::Live};
pub use crate::call::Key;
use crate::{
    call::{
        Broken, ConnectionId, Levels, Outages, Patience, Refused, RequestKey, Taken, Visible, Waiters,
        connection,
        exchange::{self, Ending},
        rates::{Later, Parts, Rates, Wants},
        taken::Marks,
        unrecorded::Unrecorded,
    },
    engine::Received,
    journal::Opening,
    words::{AttemptNo, Cause, InstanceNo, Map, RunNo, Seq},
};

/// Time of an event, and the instance under which the process acts at that time.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// Monotonic time, in milliseconds.
    pub now_ms: u64,
    pub instance: InstanceNo,
}

/// Client's request, read whole.
#[derive(Clone, Debug)]
pub struct Request {
    pub place: RequestKey,
    pub retry_count: u32,
    pub has_idempotency_key: bool,
    /// Limits on the tries of the call that the request may open.
    pub patience: Patience,
    /// Share of the upstream's requests and tokens per minute that the call needs.
    pub wants: Arc<Wants>,
}

/// Event that the host reports to the desk.
#[derive(Clone, Debug)]
pub enum Event {
    Arrived(ConnectionId, Request),
    /// Event of a connection. Only the desk itself feeds `Arrived`, `Turn`, `Progress` and `NotHere`.
    Client(ConnectionId, connection::Event),
    /// The operation of [`ForClient::Mark`], which marks the answer as delivered, is submitted.
    Marked(ConnectionId),
    Exchange(Key, exchange::Event),
    /// A try of the call is about to be sent upstream.
    Leaves(Key),
    /// A new connection to the upstream was made for the call.
    Connected(Key),
    /// The call used this many tokens. Fed once the answer's usage is known.
    Used(Key, u64),
    /// The upstream's answer to the call reports these levels of its rate limits.
    Told(Key, Levels),
    /// The process may use these parts of the upstreams' limits, and no more, from now on. Before the first such event it
    /// may use the limits whole.
    Shares(Arc<Parts>),
    /// Room in a budget may have come back: a limit was raised, a run was cancelled, or a dead process was swept.
    Moved,
    /// A person wants upstreams with an outage to be probed now.
    Probe,
    /// Time passed: room in a budget may have come back through another process, which reports nothing here.
    Look,
}

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

impl ForClient {
    /// Returns the phase into which the deed brings its call, for the log; `None` if the call stays in its phase.
    pub fn phase(&self) -> Option<&'static str> {
        match self {
            ForClient::Admit(_) => Some("admission"),
            ForClient::Wait => Some("waiting"),
            ForClient::Open { .. } | ForClient::Drop(_) => Some("sent"),
            ForClient::Attach(_) | ForClient::Poll(_) | ForClient::Load(_) => Some("joined"),
            ForClient::Send(_) | ForClient::Finish => Some("answering"),
            ForClient::Refuse(_) => Some("refused"),
            ForClient::BreakOff(_) => Some("broken off"),
            ForClient::WaitNoMore | ForClient::GiveBack(_) | ForClient::Mark { .. } | ForClient::Over => None,
        }
    }
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
    /// The failure is the request's own: the upstream answers others.
    FailsAlone,
    /// Another call probes the upstream: feed `Rested` after the pause.
    RestOn { pause_ms: u64 },
    /// Submit `Retry { resting: false }` with durability `Synced`; feed `MayLeave`.
    AskAgain { tries: Vec<Option<u16>> },
    /// Drop what the upstream sent, and send the request again.
    SendAgain,
    /// Forget the exchange: no deed follows.
    Over,
}

/// Registries that the machines of a process share.
#[derive(Debug)]
pub struct Shared {
    pub taken: Taken,
    pub waiters: Waiters,
    pub marks: Marks,
    pub rates: Rates,
    pub unrecorded: Unrecorded,
    pub outages: Outages,
}

/// Call machines of one process. See the module.
#[derive(Debug)]
pub struct Desk {
    clients: Map<ConnectionId, Client>,
    exchanges: Map<Key, Live>,
    shared: Shared,
}

/// Event for a machine, fed after the current machine is done.
#[derive(Debug)]
enum Next {
    Client(ConnectionId, connection::Event),
    Exchange(Key, exchange::Event),
}

/// State of one call of [`Desk::on`].
struct Round {
    at: At,
    next: VecDeque<Next>,
    deeds: Vec<Deed>,
}

impl Desk {
    /// Creates an empty desk that keeps up to `max_unrecorded` bytes of answers that cannot be recorded, and probes an
    /// upstream with an outage every `longest_pause_ms` at the latest.
    pub fn new(max_unrecorded: u64, longest_pause_ms: u64) -> Desk {
        let shared = Shared {
            taken: Taken::default(),
            waiters: Waiters::default(),
            marks: Marks::default(),
            rates: Rates::default(),
            unrecorded: Unrecorded::new(max_unrecorded),
            outages: Outages::new(longest_pause_ms),
        };
        Desk { clients: Map::default(), exchanges: Map::default(), shared }
    }

    /// Feeds an event: the only entry point. Late events, for a machine that is over, change nothing.
    pub fn on(&mut self, event: Event, at: At) -> Vec<Deed> {
        let mut round = Round { at, next: VecDeque::new(), deeds: Vec::new() };
        match event {
            Event::Arrived(id, request) => self.arrived(id, request, &mut round),
            Event::Client(id, event) => self.reported(id, event, &mut round),
            Event::Marked(id) => self.marked(id, &mut round),
            Event::Exchange(key, event) => round.next.push_back(Next::Exchange(key, event)),
            Event::Leaves(key) => self.leaves(key, at),
            Event::Connected(key) => self.connected(key, &mut round),
            Event::Used(key, tokens) => self.used(key, tokens),
            Event::Told(key, levels) => self.told(key, levels, at),
            Event::Shares(parts) => self.shared.rates.share(parts),
            Event::Moved => round.may_retry(self.shared.waiters.wake()),
            Event::Probe => self.probe(&mut round),
            Event::Look => round.may_retry(self.shared.waiters.firsts()),
        }
        while let Some(next) = round.next.pop_front() {
            match next {
                Next::Client(id, event) => self.feed(id, event, &mut round),
                Next::Exchange(key, event) => self.feed_exchange(key, event, &mut round),
            }
        }
        round.deeds
    }

    /// Forgets the errors noted for an attempt that has ended: no client retries its requests.
    pub fn forget(&mut self, run: RunNo, attempt: AttemptNo) {
        self.shared.taken.forget(run, attempt);
    }

    /// Returns the answers that connections of this process are receiving.
    pub fn received(&self) -> Vec<Received> {
        self.shared.taken.received()
    }

    /// Returns whether a call waits for room.
    pub fn is_waiting(&self) -> bool {
        self.shared.waiters.firsts().next().is_some()
    }

    /// Returns whether answers wait to be recorded. Until they are, new calls are refused.
    pub fn is_stuck(&self) -> bool {
        self.shared.unrecorded.any()
    }

    /// Returns the part of an answer under way that its clients may see; `None` for a call that is not under way here.
    pub fn visible(&self, key: Key) -> Option<Visible> {
        self.exchanges.get(&key).map(|live| live.machine.progress().visible)
    }

    /// Returns the requests and tokens that count against the rate of an upstream at a monotonic time in milliseconds.
    pub fn spent(&self, upstream: &str, now_ms: u64) -> (u64, u64) {
        self.shared.rates.spent(upstream, now_ms)
    }

    /// Returns the numbers of requests being served and of calls under way.
    pub fn len(&self) -> (usize, usize) {
        (self.clients.len(), self.exchanges.len())
    }

    /// Returns whether no request is served and no call is under way.
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    /// Changes the shared registries: for simulators that plant a defect.
    pub fn tamper(&mut self, with: impl FnOnce(&mut Shared)) {
        with(&mut self.shared);
    }
}

impl Round {
    fn may_retry(&mut self, who: impl IntoIterator<Item = ConnectionId>) {
        let told = who.into_iter().map(|id| Next::Client(id, connection::Event::MayRetry));
        self.next.extend(told);
    }

    fn client(&mut self, id: ConnectionId, deed: ForClient) {
        self.deeds.push(Deed::Client(id, deed));
    }

    fn exchange(&mut self, key: Key, deed: ForExchange) {
        self.deeds.push(Deed::Exchange(key, deed));
    }
}
