//! Scene of shares: servers on one store whose provider has limits, over all of them. They settle their shares of the limits
//! by the real `call::shares` and the real compare-and-set, and their calls leave by the real lanes.
//!
//! Invariants: **S1** the calls that are at the provider, and the requests and tokens that were sent to it within a minute,
//! are never more than the limits, whatever server sent them, and whatever became of it; **S2** every call leaves. A server
//! that dies is replaced at once if no other had a share beside it: what it had sent is then beside the point.

mod lane;

use std::collections::{BTreeSet, VecDeque};

use outlast_core::{
    call::shares::{Held, Pace, TAKEN_US},
    engine::{self, Outcome},
    reads::rows,
    state::Table,
    store::{Ask as _, Durability, Error},
    words::InstanceNo,
};

use self::lane::{Call, Lane, Then, UPSTREAM, kept};
use crate::{AN_HOUR, Engine, Fleet, Play, Rng, Scene, Server, ServerEvent, play};

/// Time in which calls come and servers are troubled.
const BUSY_MS: u64 = 300_000;
const MINUTE_MS: u64 = 60_000;
/// Longest time that the provider works on a call. A call that takes longer than the share of a dead server stays taken
/// is beyond what servers can know.
const LONGEST_MS: u64 = 50_000;

enum Event {
    Ask {
        server: usize,
        call: Call,
    },
    End {
        server: usize,
        life: u64,
        call: u64,
    },
    /// The server settles its share, as it does each second.
    Tick {
        server: usize,
        life: u64,
    },
    /// The server gives its share up and leaves the store.
    Stop(usize),
    Server(ServerEvent),
}

/// Provider of the calls: it counts those that reach it.
struct Provider {
    limit: Pace,
    calls: VecDeque<Sent>,
}

/// Call at the provider.
struct Sent {
    by: Option<InstanceNo>,
    at_ms: u64,
    ends_ms: u64,
    tokens: u64,
}

struct Sharing {
    engine: Engine<Event>,
    provider: Provider,
    servers: Vec<Server<Then>>,
    /// Share and calls of each server.
    lanes: Vec<Lane>,
    /// Instances that were ever seen to hold something.
    holders: BTreeSet<InstanceNo>,
    /// Number of calls that have not left yet.
    unsent: usize,
}

/// Plays the scene of a seed to its end, or to the first broken invariant.
pub fn run(seed: Play) -> crate::Outcome {
    play(seed.seed, Sharing::new(seed))
}

impl From<ServerEvent> for Event {
    fn from(event: ServerEvent) -> Event {
        Event::Server(event)
    }
}

impl Provider {
    /// Takes a call. Returns which limit it breaks.
    fn takes(&mut self, by: Option<InstanceNo>, call: &Call, now_ms: u64) -> Option<String> {
        let (ends_ms, tokens) = (now_ms + call.takes_ms, call.tokens);
        self.calls.push_back(Sent { by, at_ms: now_ms, ends_ms, tokens });
        self.calls.retain(|sent| sent.at_ms + MINUTE_MS > now_ms || sent.ends_ms > now_ms);
        let within = || self.calls.iter().filter(|sent| sent.at_ms + MINUTE_MS > now_ms);
        let had = [
            (
                "calls at once",
                self.limit.calls,
                self.calls.iter().filter(|sent| sent.ends_ms > now_ms).count() as u64,
            ),
            ("requests a minute", self.limit.requests, within().count() as u64),
            ("tokens a minute", self.limit.tokens, within().map(|sent| sent.tokens).sum()),
        ];
        had.into_iter().find_map(|(what, limit, had)| {
            let limit = limit.filter(|limit| had > *limit)?;
            Some(format!("S1: the provider has {had} {what}, and the limit is {limit}"))
        })
    }
}

impl Sharing {
    fn new(seed: Play) -> Sharing {
        let rng = Rng::new(seed.seed ^ 0x5a4e_5a4e_5a4e_5a4e);
        let servers = rng.between(1, 4) as usize;
        let drawn = |low, high| rng.chance(60).then(|| rng.between(low, high));
        let mut limit = Pace { calls: drawn(1, 8), requests: drawn(1, 30), tokens: drawn(1_200, 9_000) };
        if limit.is_unlimited() {
            limit.calls = Some(4);
        }
        let faults = if rng.chance(30) { rng.between(1, 4) } else { 0 };
        let engine = Engine::new(seed, rng, AN_HOUR, faults);
        let mut scene = Sharing {
            provider: Provider { limit, calls: VecDeque::new() },
            servers: (0..servers).map(|i| Server::new(i, 0, engine.disk.clone())).collect(),
            lanes: (0..servers).map(|_| Lane::new(VecDeque::new())).collect(),
            engine,
            holders: BTreeSet::new(),
            unsent: 0,
        };
        scene.prepare(servers);
        scene
    }

    fn prepare(&mut self, servers: usize) {
        let (engine, limit) = (&mut self.engine, self.provider.limit);
        engine.say(|| format!("{limit:?} over {servers} servers"));
        for server in 0..servers {
            // Some come later than others.
            let ms = if engine.rng.chance(50) { 0 } else { engine.rng.below(BUSY_MS) };
            engine.after(ms, ServerEvent::Start(server));
        }
        let drawn = |engine: &Engine<Event>| engine.rng.below(servers as u64) as usize;
        // Smaller than any part of the limit: a larger one leaves alone, whatever the part.
        let largest = limit.tokens.unwrap_or(1_200) / 12;
        self.unsent = engine.rng.between(5, 80.min(8 * limit.requests.unwrap_or(10))) as usize;
        for no in 0..self.unsent as u64 {
            let (ms, server) = (engine.rng.below(BUSY_MS), drawn(engine));
            let (tokens, takes_ms) = (engine.rng.between(1, largest), engine.rng.between(20, LONGEST_MS));
            engine.after(ms, Event::Ask { server, call: Call { no, tokens, takes_ms } });
        }
        for _ in 0..engine.rng.below(7) {
            let (ms, server) = (engine.rng.between(100, BUSY_MS), drawn(engine));
            let trouble: Event = match engine.rng.below(10) {
                0..=4 => ServerEvent::Kill(server).into(),
                5 | 6 => Event::Stop(server),
                _ => ServerEvent::StoreAway(server, engine.rng.between(100, 40_000)).into(),
            };
            engine.after(ms, trouble);
        }
    }

    fn settle(&mut self, server: usize) {
        let now = self.engine.now();
        let before = kept(&self.engine.disk).map(|kept| kept.row.held).unwrap_or_default();
        let limit = self.provider.limit;
        let written = self.lanes[server].settle(&mut self.servers[server], limit, &self.engine);
        if let Some(shares) = written {
            self.replaces(&before, &shares.held);
            let is_gone = shares.held.iter().any(|h| h.gone_at.is_some_and(|at| now.0 - at.0 < TAKEN_US));
            self.engine.saw(if is_gone { "share of a gone server" } else { "share settled" });
            self.engine.say(|| format!("server {server} settles: {:?}", shares.held));
        }
        self.commit_soon(server);
        self.let_leave(server);
    }

    /// Forgets what a dead server had sent, if its share is free at once and no other one ever held any beside it.
    fn replaces(&mut self, before: &[Held], after: &[Held]) {
        let is_some = |held: &&Held| held.hold != held.hold.at_most(&Pace::default());
        self.holders.extend(before.iter().filter(is_some).map(|held| held.server));
        let mut holders = before.iter().filter(|held| self.holders.contains(&held.server));
        if let (Some(only), None) = (holders.next(), holders.next())
            && after.iter().all(|held| held.server != only.server)
        {
            let only = Some(only.server);
            self.provider.calls.retain(|sent| sent.by != only);
            self.engine.saw("share of one that is replaced");
        }
    }

    fn let_leave(&mut self, server: usize) {
        let (at, lane) = (&self.servers[server], &mut self.lanes[server]);
        if !at.is_up {
            return;
        }
        let (now_ms, limit, by, life) = (self.engine.now_ms(), self.provider.limit, at.instance, at.life);
        for call in lane.leaving(limit, now_ms) {
            self.unsent -= 1;
            self.engine.say(|| format!("server {server} sends {call:?}"));
            let broken = self.provider.takes(by, &call, now_ms);
            self.engine.breaks(broken);
            self.engine.after(call.takes_ms, Event::End { server, life, call: call.no });
        }
        if !lane.waiting.is_empty() && lane.part.now != limit {
            self.engine.saw("share too small");
        }
    }

    /// Ends a server that gives its share up and leaves the store.
    fn stop(&mut self, server: usize) {
        let at = &self.servers[server];
        let Some(no) = at.instance.filter(|_| !at.store.line.lock().away) else { return self.kill(server) };
        let used = self.lanes[server].used(self.engine.now_ms());
        let disk = &self.engine.disk;
        let left = kept(disk).and_then(|mut kept| {
            kept.row.leave(no, &used, self.engine.now());
            let put = rows::put(Table::Shares, UPSTREAM, &kept.row, kept.version)?;
            disk.ask(put, Durability::Synced).wait()
        });
        if left.is_ok() {
            self.engine.saw("share given back");
            self.declare_dead(no, true);
        }
        self.kill(server);
    }
}

impl Scene for Sharing {
    type Event = Event;
    const END_MS: u64 = 2 * 3_600_000;

    fn engine(&mut self) -> &mut Engine<Event> {
        &mut self.engine
    }

    fn on(&mut self, _: u64, event: Event) {
        match event {
            Event::Ask { server, call } => {
                self.lanes[server].waiting.push_back(call);
                self.let_leave(server);
            }
            Event::End { server, life, call } if self.servers[server].life == life => {
                self.lanes[server].ended(call);
                self.let_leave(server);
            }
            Event::Tick { server, life } if self.servers[server].life == life => {
                self.settle(server);
                self.engine.after(1_000, Event::Tick { server, life });
            }
            // Of an earlier life.
            Event::End { .. } | Event::Tick { .. } => {}
            Event::Stop(server) => self.stop(server),
            Event::Server(event) => {
                self.on_server(event);
                match event {
                    ServerEvent::Start(server) => {
                        self.lanes[server].in_contact(self.engine.now_ms());
                        let life = self.servers[server].life;
                        self.engine.after(1, Event::Tick { server, life });
                    }
                    ServerEvent::StoreAway(server, ms) if ms > Self::LEASE_MS => {
                        self.gives_up(server, Self::LEASE_MS);
                    }
                    ServerEvent::Commit(server, _) => {
                        match std::mem::take(&mut self.lanes[server].is_unsettled) {
                            true => self.settle(server),
                            false => self.let_leave(server),
                        }
                    }
                    ServerEvent::StoreAway(..)
                    | ServerEvent::Back(..)
                    | ServerEvent::Reopen(..)
                    | ServerEvent::Kill(_)
                    | ServerEvent::DeclareDead(_) => {}
                }
            }
        }
    }

    fn verdict(&mut self) -> Option<Result<(), String>> {
        self.engine.verdict(self.unsent == 0)
    }

    fn unrest(&self) -> String {
        format!("S2: {} calls never leave", self.unsent)
    }
}

impl Fleet for Sharing {
    type Then = Then;
    const LEASE_MS: u64 = 15_000;
    const NAME: &'static str = "share";

    fn servers(&mut self) -> &mut Vec<Server<Then>> {
        &mut self.servers
    }

    fn did(&mut self, server: usize, then: Then, result: Result<Outcome, Error>) {
        match result {
            Ok(_) => self.lanes[server].settled(then),
            Err(Error::Engine(engine::Error::Conflict { .. })) => self.lanes[server].is_unsettled = true,
            Err(_) => {}
        }
    }

    fn registered(&mut self, server: usize) {
        self.lanes[server].is_unsettled = true;
    }

    /// The calls of a dead server stay at the provider, and those that it had not sent are its next life's.
    fn began_anew(&mut self, server: usize, is_dead: bool) {
        if is_dead {
            let waiting = self.lanes[server].unsent();
            self.lanes[server] = Lane::new(waiting);
        }
    }

    fn troubled(&mut self, _: u64) {}
}
