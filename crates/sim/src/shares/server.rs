//! Server with limited calls: its handle of the store, its share by compare-and-set, and its calls under the real lane, as
//! the proxy has them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use outlast_core::{
    call::{
        ConnectionId,
        rates::{Rates, Turn, Wants},
        shares::{Held, Pace, Part, Server as Settler, Shares},
    },
    engine::{
        self,
        op::{Op, Outcome},
        run::register::Register,
    },
    memory::MemoryStore,
    reads::shares,
    run::instance::{Identity, Life},
    store::{Durability, Error, Store as _, Ticket},
    words::{
        digest::Digest,
        id::{InstanceNo, Micros},
    },
};
use outlast_store::group::Step;

use crate::{
    bug::Bug,
    outside::draw_fault,
    rng::Rng,
    store::{FaultStore, resolved},
};

pub const UPSTREAM: &str = "openai";

/// Time without contact to the store after which a server lets no call leave.
const TRUST_MS: u64 = 8_000;

/// Call of a client.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub no: u64,
    pub tokens: u64,
    /// Time for which the provider works on it, in milliseconds.
    pub takes_ms: u64,
}

/// Surroundings of a step.
pub struct Around<'a> {
    pub now_ms: u64,
    pub now: Micros,
    pub rng: &'a Rng,
    pub bug: Option<Bug>,
    pub limit: Pace,
    /// Probability that a group meets a fault, in percent.
    pub faults: u64,
}

enum Then {
    Registered,
    Settled(Part, InstanceNo),
}

/// One life of a server.
pub struct Server {
    pub index: usize,
    pub life: u64,
    pub is_up: bool,
    pub instance: Option<InstanceNo>,
    pub store: FaultStore,
    pub part: Part,
    /// Calls that have no turn yet, the next one first.
    pub waiting: VecDeque<Call>,
    held_as: Option<InstanceNo>,
    contact_ms: u64,
    rates: Rates,
    /// Calls with a turn that wait for a place among those in flight.
    admitted: VecDeque<(Call, Turn)>,
    in_flight: BTreeMap<u64, (Call, Turn)>,
    pending: Vec<(Ticket, Then)>,
}

impl Server {
    pub fn new(index: usize, life: u64, disk: Arc<MemoryStore>, waiting: VecDeque<Call>) -> Server {
        let mut rates = Rates::default();
        rates.share(Arc::default());
        Server {
            index,
            life,
            is_up: false,
            instance: None,
            store: FaultStore::new(disk, None),
            part: Part::default(),
            waiting,
            held_as: None,
            contact_ms: 0,
            rates,
            admitted: VecDeque::new(),
            in_flight: BTreeMap::new(),
            pending: Vec::new(),
        }
    }

    pub fn register(&mut self, now_ms: u64) {
        (self.is_up, self.instance, self.contact_ms) = (true, None, now_ms);
        let (pid, start_time) = (self.index as u32, self.life);
        let identity = Identity { host: "sim".into(), pid, start_time, ..Identity::default() };
        self.queue(Register { identity }, Then::Registered, now_ms);
    }

    /// Opens the store anew, under a new instance. What was queued is lost.
    pub fn reopen(&mut self, now_ms: u64) {
        self.store.reopen();
        self.pending.clear();
        self.register(now_ms);
    }

    /// Returns the calls that have not left, for the server's next life.
    pub fn unsent(&mut self) -> VecDeque<Call> {
        self.admitted.drain(..).map(|(call, _)| call).chain(self.waiting.drain(..)).collect()
    }

    /// Settles the share, as the proxy does each second. Returns the shares that it wrote, or found as they should be.
    pub fn settle(&mut self, around: &Around<'_>) -> Option<Shares> {
        let read = self.store.read(|disk| Ok((shares::find(disk, UPSTREAM)?, disk.live_instances()?)));
        let Ok((kept, live)) = read else {
            if around.now_ms.saturating_sub(self.contact_ms) >= TRUST_MS {
                self.takes(Part::default());
            }
            return None;
        };
        self.contact_ms = around.now_ms;
        if !self.pending.is_empty() {
            return None;
        }
        let no = self.instance?;
        let is_live = |no: InstanceNo| live.iter().any(|i| i.no == no && i.life == Life::Live);
        if !is_live(no) {
            self.takes(Part::default());
            self.register(around.now_ms);
            return None;
        }
        let former = self.held_as.filter(|former| *former != no);
        let settler = Settler { no, former, limit: around.limit, now: around.now };
        let mut shares = kept.shares.clone();
        if around.bug == Some(Bug::DeadShareFreed) {
            shares.held.retain(|h| is_live(h.server) || Some(h.server) == former);
        }
        shares.bury(is_live, around.now);
        let mut aside = Vec::new();
        if around.bug == Some(Bug::SharesOfOthersIgnored) {
            aside = set_aside(&mut shares, no);
        }
        let part = shares.settle(&settler, |part| {
            self.takes(part);
            match around.bug {
                Some(Bug::ShareLoweredEarly) => Pace::default(),
                _ => self.used(around.now_ms),
            }
        });
        put_back(&mut shares, aside);
        if shares == kept.shares {
            self.settled(part, no);
            return None;
        }
        let put = shares::put(UPSTREAM, &shares, kept.version).ok()?;
        self.queue(put, Then::Settled(part, no), around.now_ms);
        Some(shares)
    }

    /// Returns what the server uses of the limits now.
    pub fn used(&self, now_ms: u64) -> Pace {
        let (requests, tokens) = self.rates.spent(UPSTREAM, now_ms);
        Pace { calls: Some(self.in_flight.len() as u64), requests: Some(requests), tokens: Some(tokens) }
    }

    /// Lets the calls leave that may. Returns them.
    pub fn leaving(&mut self, around: &Around<'_>) -> Vec<Call> {
        while let Some(call) = self.waiting.front() {
            let (turn, _) = self.rates.turn(ConnectionId(call.no), &wants(call, around), around.now_ms);
            let Ok(turn) = turn else { break };
            self.admitted.extend(self.waiting.pop_front().map(|call| (call, turn)));
        }
        let most = around.limit.calls.map_or(u64::MAX, |_| self.part.now.calls.unwrap_or(0));
        let mut left = Vec::new();
        while (self.in_flight.len() as u64) < most {
            let Some((call, mut turn)) = self.admitted.pop_front() else { break };
            self.rates.leaves(&mut turn, around.now_ms);
            self.in_flight.insert(call.no, (call, turn));
            left.push(call);
        }
        left
    }

    pub fn ended(&mut self, no: u64) {
        if let Some((call, turn)) = self.in_flight.remove(&no) {
            self.rates.over(turn, Some(call.tokens));
        }
    }

    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Runs the next group. Returns whether the share has to be settled at once, and whether the store has to be opened
    /// anew.
    pub fn commit(&mut self, around: &Around<'_>) -> (bool, bool) {
        let faulty = around.rng.chance(around.faults);
        self.store.plan(if faulty { draw_fault(around.rng, 0) } else { Vec::new() });
        while self.store.step(around.now_ms).0 == Step::Ran {}
        let (mut again, mut reopens) = (false, false);
        if self.store.has_crashed() {
            return (again, reopens);
        }
        for (mut ticket, then) in std::mem::take(&mut self.pending) {
            match (then, resolved(&mut ticket)) {
                (then, None) => self.pending.push((ticket, then)),
                (Then::Registered, Some(Ok(Outcome::Registered(no)))) => {
                    (self.instance, again) = (Some(no), true);
                }
                (Then::Registered, Some(_)) => reopens = true,
                (Then::Settled(part, no), Some(Ok(_))) => self.settled(part, no),
                (Then::Settled(..), Some(Err(Error::Engine(engine::Error::Conflict { .. })))) => again = true,
                (Then::Settled(..), Some(Err(e))) => {
                    reopens |= matches!(e, Error::CommitUnknown { .. } | Error::Refused { .. });
                }
            }
        }
        (again, reopens)
    }

    fn settled(&mut self, part: Part, no: InstanceNo) {
        self.takes(part);
        self.held_as = Some(no);
    }

    fn takes(&mut self, part: Part) {
        self.part = part;
        self.rates.share(Arc::new([(UPSTREAM.to_owned(), part)].into()));
    }

    fn queue(&mut self, op: impl Into<Op>, then: Then, now_ms: u64) {
        let ticket = self.store.submit(op.into(), Durability::Synced, now_ms);
        self.pending.push((ticket, then));
    }
}

fn wants(call: &Call, around: &Around<'_>) -> Arc<Wants> {
    Arc::new(Wants {
        upstream: UPSTREAM.into(),
        way: Digest([0; 32]),
        account: (None, "m".into()),
        rate: around.limit.rate(),
        bound: call.tokens,
        input_bound: call.tokens,
        patience_ms: u64::MAX,
    })
}

/// Plants a defect: takes the holds of the other servers out of the shares. Returns them.
fn set_aside(shares: &mut Shares, no: InstanceNo) -> Vec<Held> {
    let others = shares.held.iter_mut().filter(|h| h.server != no);
    others
        .map(|held| std::mem::replace(held, Held { hold: held.hold.at_most(&Pace::default()), ..*held }))
        .collect()
}

fn put_back(shares: &mut Shares, aside: Vec<Held>) {
    for before in aside {
        shares.held.iter_mut().filter(|h| h.server == before.server).for_each(|h| *h = before);
    }
}
