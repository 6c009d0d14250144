//! Share of one server in its provider's limits, settled by compare-and-set, and its calls under the real lane, as the proxy
//! has them.

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
    reads::rows,
    state::Table,
    store::Store as _,
};

use super::Event;
use crate::{Server, prelude::*};

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

/// Share that a server has once it is written, and as whom.
pub struct Then(Part, InstanceNo);

/// Share and calls of one life of a server.
#[derive(Default)]
pub struct Lane {
    pub part: Part,
    /// Calls that have no turn yet, the next one first.
    pub waiting: VecDeque<Call>,
    /// Whether the share is to be settled at once.
    pub is_unsettled: bool,
    held_as: Option<InstanceNo>,
    contact_ms: u64,
    rates: Rates,
    /// Calls with a turn that wait for a place among those in flight.
    admitted: VecDeque<(Call, Turn)>,
    in_flight: BTreeMap<u64, (Call, Turn)>,
}

impl Lane {
    pub fn new(waiting: VecDeque<Call>) -> Lane {
        let mut rates = Rates::default();
        rates.share(Arc::default());
        Lane { waiting, rates, ..Lane::default() }
    }

    pub fn in_contact(&mut self, now_ms: u64) {
        self.contact_ms = now_ms;
    }

    /// Returns the calls that have not left, for the server's next life.
    pub fn unsent(&mut self) -> VecDeque<Call> {
        self.admitted.drain(..).map(|(call, _)| call).chain(self.waiting.drain(..)).collect()
    }

    /// Settles the share, as the proxy does each second. Returns the shares that it wrote.
    pub fn settle(
        &mut self,
        server: &mut Server<Then>,
        limit: Pace,
        engine: &Engine<Event>,
    ) -> Option<Shares> {
        let (now_ms, now, bug) = (engine.now_ms(), engine.now(), engine.bug);
        let read = server.store.read(|disk| Ok((kept(disk)?, disk.live_instances()?)));
        let Ok((kept, live)) = read else {
            if now_ms.saturating_sub(self.contact_ms) >= TRUST_MS {
                self.takes(Part::default());
            }
            return None;
        };
        self.contact_ms = now_ms;
        if server.has_pending() {
            return None;
        }
        let no = server.instance?;
        let is_live = |no: InstanceNo| live.iter().any(|i| i.no == no && i.life == Life::Live);
        if !is_live(no) {
            self.takes(Part::default());
            server.register(now_ms);
            return None;
        }
        let former = self.held_as.filter(|former| *former != no);
        let settler = Settler { no, former, limit, now };
        let mut shares = kept.row.clone();
        if bug == Some(Bug::DeadShareFreed) {
            shares.held.retain(|h| is_live(h.server) || Some(h.server) == former);
        }
        shares.bury(is_live, now);
        let mut aside = Vec::new();
        if bug == Some(Bug::SharesOfOthersIgnored) {
            aside = set_aside(&mut shares, no);
        }
        let part = shares.settle(&settler, |part| {
            self.takes(part);
            match bug {
                Some(Bug::ShareLoweredEarly) => Pace::default(),
                _ => self.used(now_ms),
            }
        });
        put_back(&mut shares, aside);
        if shares == kept.row {
            self.settled(Then(part, no));
            return None;
        }
        let put = rows::put(Table::Shares, UPSTREAM, &shares, kept.version).ok()?;
        server.queue(put, Durability::Synced, Then(part, no), now_ms);
        Some(shares)
    }

    /// Returns what the server uses of the limits now.
    pub fn used(&self, now_ms: u64) -> Pace {
        let (requests, tokens) = self.rates.spent(UPSTREAM, now_ms);
        Pace { calls: Some(self.in_flight.len() as u64), requests: Some(requests), tokens: Some(tokens) }
    }

    /// Lets the calls leave that may. Returns them.
    pub fn leaving(&mut self, limit: Pace, now_ms: u64) -> Vec<Call> {
        while let Some(call) = self.waiting.front() {
            let (turn, _) = self.rates.turn(ConnectionId(call.no), &wants(call, limit), now_ms);
            let Ok(turn) = turn else { break };
            self.admitted.extend(self.waiting.pop_front().map(|call| (call, turn)));
        }
        let most = limit.calls.map_or(u64::MAX, |_| self.part.now.calls.unwrap_or(0));
        let mut left = Vec::new();
        while (self.in_flight.len() as u64) < most {
            let Some((call, mut turn)) = self.admitted.pop_front() else { break };
            self.rates.leaves(&mut turn, now_ms);
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

    pub fn settled(&mut self, Then(part, no): Then) {
        self.takes(part);
        self.held_as = Some(no);
    }

    fn takes(&mut self, part: Part) {
        self.part = part;
        self.rates.share(Arc::new([(UPSTREAM.to_owned(), part)].into()));
    }
}

/// Reads the shares of the upstream.
pub fn kept(disk: &MemoryStore) -> Result<rows::Kept<Shares>, Error> {
    rows::kept(disk, Table::Shares, UPSTREAM)
}

fn wants(call: &Call, limit: Pace) -> Arc<Wants> {
    Arc::new(Wants {
        upstream: UPSTREAM.into(),
        account: (None, "m".into()),
        rate: limit.rate(),
        bound: call.tokens,
        input_bound: call.tokens,
        patience_ms: u64::MAX,
        ..Wants::default()
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
