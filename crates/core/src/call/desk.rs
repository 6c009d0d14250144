//! The desk: the call machines of one process, and all that they share.
//!
//! Every request is a [`Connection`], every call that this process opened an [`Exchange`]. The desk takes what happens
//! to them, does at once whatever concerns several of them (turns, answers that are taken, queues, delivery marks,
//! rates), and returns what is left to do outside, as [`Deed`]s. It waits for nothing, sends nothing and looks at no
//! clock. The proxy and the simulator drive the same desk.
//!
//! Three rules bind the host:
//! - The deeds of one connection, and those of one exchange, are carried out in the order in which they were returned.
//!   Deeds of different ones may overtake each other.
//! - A client's end ([`connection::Event::ClientGone`], [`connection::Event::Delivered`]) is fed before anything that
//!   the same client asks afterwards. A client that leaves gives its answer back in that very call, so that it finds
//!   the answer when it asks again at once.
//! - A store decides operations in the order in which they were submitted.

mod client;
mod deed;
mod live;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

pub use self::deed::{Admitting, Deed, ForClient, ForExchange};
use self::{client::Client, live::Live};
use crate::{
    call::{
        ConnectionId, Patience, Taken, Waiters, connection, exchange,
        marks::Marks,
        rate::Levels,
        rates::{Rates, Wants},
        taken::Place,
        unrecorded::Unrecorded,
    },
    words::id::{AttemptNo, InstanceNo, RunNo, Seq},
};

/// An entry, as exchanges are named.
pub type Key = (RunNo, Seq);

/// When something happens, and as whom the process acts then.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// From a clock that never goes back.
    pub now_ms: u64,
    pub instance: InstanceNo,
}

/// A request that was read whole.
#[derive(Clone, Debug)]
pub struct Request {
    pub place: Place,
    pub retry_count: u32,
    pub has_idempotency_key: bool,
    /// How often its call is tried.
    pub patience: Patience,
    /// Its call's part of the upstream's minute.
    pub wants: Arc<Wants>,
}

/// What the host reports.
#[derive(Clone, Debug)]
pub enum Event {
    Arrived(ConnectionId, Request),
    /// `Arrived`, `Turn`, `Progress` and `NotHere` are for the desk alone to feed.
    Client(ConnectionId, connection::Event),
    /// The mark of [`ForClient::Mark`] is submitted.
    Marked(ConnectionId),
    Exchange(Key, exchange::Event),
    /// A try of the call is about to leave.
    Leaves(Key),
    /// The tokens of the answer, once its usage is known.
    Used(Key, u64),
    /// The upstream's answer to the call says so much of its limits.
    Told(Key, Levels),
    /// A limit was raised, a run cancelled, a process swept: room may have come back.
    Moved,
    /// Time passed: room may have come back in another process, which tells nobody here.
    Look,
}

/// What the machines of a process share.
#[derive(Debug)]
pub struct Shared {
    pub taken: Taken,
    pub waiters: Waiters,
    pub marks: Marks,
    pub rates: Rates,
    pub unrecorded: Unrecorded,
}

/// The desk of one process. See the module.
#[derive(Debug)]
pub struct Desk {
    clients: HashMap<ConnectionId, Client>,
    exchanges: HashMap<Key, Live>,
    shared: Shared,
}

/// A machine's event that is fed once the machine at hand is through.
#[derive(Debug)]
enum Next {
    Client(ConnectionId, connection::Event),
    Exchange(Key, exchange::Event),
}

/// One call of [`Desk::on`].
struct Round {
    at: At,
    next: VecDeque<Next>,
    deeds: Vec<Deed>,
}

impl Desk {
    /// An empty desk, which keeps up to `max_unrecorded` bytes of answers that cannot be recorded.
    pub fn new(max_unrecorded: u64) -> Desk {
        let shared = Shared {
            taken: Taken::default(),
            waiters: Waiters::default(),
            marks: Marks::default(),
            rates: Rates::default(),
            unrecorded: Unrecorded::new(max_unrecorded),
        };
        Desk { clients: HashMap::new(), exchanges: HashMap::new(), shared }
    }

    /// The one way in. What comes too late, for a machine that is over, changes nothing.
    pub fn on(&mut self, event: Event, at: At) -> Vec<Deed> {
        let mut round = Round { at, next: VecDeque::new(), deeds: Vec::new() };
        match event {
            Event::Arrived(id, request) => self.arrived(id, request, &mut round),
            Event::Client(id, event) => self.reported(id, event, &mut round),
            Event::Marked(id) => self.marked(id, &mut round),
            Event::Exchange(key, event) => round.next.push_back(Next::Exchange(key, event)),
            Event::Leaves(key) => self.leaves(key, at),
            Event::Used(key, tokens) => self.used(key, tokens),
            Event::Told(key, levels) => self.told(key, levels, at),
            Event::Moved => round.may_retry(self.shared.waiters.wake()),
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

    /// The attempt is over: nobody retries its errors.
    pub fn forget(&mut self, run: RunNo, attempt: AttemptNo) {
        self.shared.taken.forget(run, attempt);
    }

    /// Whether answers wait to be recorded: until they are, new calls are refused.
    pub fn is_stuck(&self) -> bool {
        self.shared.unrecorded.any()
    }

    /// Requests whose clients are served, and calls on their way.
    pub fn len(&self) -> (usize, usize) {
        (self.clients.len(), self.exchanges.len())
    }

    /// Nobody is served and nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    /// For simulators that plant defects in what the machines share.
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
