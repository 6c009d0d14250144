//! Another simulated world: servers on one store whose provider has limits, over all of them. They settle their shares of
//! the limits by the real `call::shares` and the real compare-and-set, and their calls leave by the real lanes.
//!
//! Invariants: **S1** the calls that are at the provider, and the requests and tokens that were sent to it within a minute,
//! are never more than the limits, whatever server sent them, and whatever became of it; **S2** every call leaves. A server
//! that dies is replaced at once if no other had a share beside it: what it had sent is then beside the point.

mod server;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use outlast_core::{
    call::shares::{Held, Pace, TAKEN_US},
    engine::run::declare_dead::DeclareDead,
    memory::MemoryStore,
    reads::shares,
    run::instance::Life,
    store::{Ask as _, Durability, Store as _},
    words::{
        clock::{Clock as _, ManualClock},
        id::{InstanceNo, Micros},
    },
};

use self::server::{Around, Call, Server, UPSTREAM};
use crate::{bug::Bug, rng::Rng, world::Outcome};

/// Simulated time by which every call has left.
const END_MS: u64 = 2 * 3_600_000;
/// Time in which calls come and servers are troubled.
const BUSY_MS: u64 = 300_000;
/// Time without a heartbeat after which a server is declared dead.
const LEASE_MS: u64 = 15_000;
const MINUTE_MS: u64 = 60_000;
/// Longest time that the provider works on a call. A call that takes longer than the share of a dead server stays taken
/// is beyond what servers can know.
const LONGEST_MS: u64 = 50_000;
/// Start of the simulated time: 20 November 2026, 09:00 UTC.
const BEGIN: Micros = Micros(1_795_165_200_000_000);

enum Event {
    Ask { server: usize, call: Call },
    End { server: usize, life: u64, call: u64 },
    Tick { server: usize, life: u64 },
    Commit { server: usize, life: u64 },
    Reopen { server: usize, life: u64 },
    Start(usize),
    Back { server: usize, life: u64 },
    DeclareDead(InstanceNo),
    Trouble(Trouble),
}

#[derive(Clone, Copy, Debug)]
enum Trouble {
    Kill(usize),
    Stop(usize),
    Away(usize, u64),
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

struct World {
    clock: Arc<ManualClock>,
    disk: Arc<MemoryStore>,
    rng: Rng,
    bug: Option<Bug>,
    faults: u64,
    queue: BTreeMap<(u64, u64), Event>,
    order: u64,
    provider: Provider,
    servers: Vec<Server>,
    /// Instances that were ever seen to hold something.
    holders: BTreeSet<InstanceNo>,
    /// Number of calls that have not left yet.
    unsent: usize,
    violation: Option<String>,
    story: Option<Vec<String>>,
    seen: BTreeMap<String, u64>,
}

/// Plays the world of a seed to its end, or to the first broken invariant. See [`crate::world::run`].
pub fn run(seed: u64, bug: Option<Bug>, tell: bool) -> Outcome {
    let mut world = World::new(seed, bug, tell);
    world.play();
    Outcome {
        seed,
        violation: world.violation.take(),
        ended_ms: world.now_ms(),
        story: world.story.unwrap_or_default(),
        seen: world.seen,
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

impl World {
    fn new(seed: u64, bug: Option<Bug>, tell: bool) -> World {
        let rng = Rng::new(seed ^ 0x5a4e_5a4e_5a4e_5a4e);
        let clock = Arc::new(ManualClock::new(BEGIN));
        let disk = Arc::new(MemoryStore::new(clock.clone()));
        let servers = rng.between(1, 4);
        let drawn = |low, high| rng.chance(60).then(|| rng.between(low, high));
        let mut limit = Pace { calls: drawn(1, 8), requests: drawn(1, 30), tokens: drawn(1_200, 9_000) };
        if limit.is_unlimited() {
            limit.calls = Some(4);
        }
        let faults = if rng.chance(30) { rng.between(1, 4) } else { 0 };
        let mut world = World {
            provider: Provider { limit, calls: VecDeque::new() },
            servers: (0..servers as usize)
                .map(|i| Server::new(i, 0, disk.clone(), VecDeque::new()))
                .collect(),
            clock,
            disk,
            rng,
            bug,
            faults,
            queue: BTreeMap::new(),
            order: 0,
            holders: BTreeSet::new(),
            unsent: 0,
            violation: None,
            story: tell.then(Vec::new),
            seen: BTreeMap::new(),
        };
        world.prepare(servers);
        world
    }

    fn prepare(&mut self, servers: u64) {
        self.say(|w| format!("{:?} over {} servers", w.provider.limit, w.servers.len()));
        for server in 0..servers as usize {
            // Some come later than others.
            let ms = if self.rng.chance(50) { 0 } else { self.rng.below(BUSY_MS) };
            self.after(ms, Event::Start(server));
        }
        let limit = self.provider.limit;
        // Smaller than any part of the limit: a larger one leaves alone, whatever the part.
        let largest = limit.tokens.unwrap_or(1_200) / 12;
        self.unsent = self.rng.between(5, 80.min(8 * limit.requests.unwrap_or(10))) as usize;
        for no in 0..self.unsent as u64 {
            let (ms, server) = (self.rng.below(BUSY_MS), self.rng.below(servers) as usize);
            let (tokens, takes_ms) = (self.rng.between(1, largest), self.rng.between(20, LONGEST_MS));
            self.after(ms, Event::Ask { server, call: Call { no, tokens, takes_ms } });
        }
        for _ in 0..self.rng.below(7) {
            let (ms, server) = (self.rng.between(100, BUSY_MS), self.rng.below(servers) as usize);
            let trouble = match self.rng.below(10) {
                0..=4 => Trouble::Kill(server),
                5 | 6 => Trouble::Stop(server),
                _ => Trouble::Away(server, self.rng.between(100, 40_000)),
            };
            self.after(ms, Event::Trouble(trouble));
        }
    }

    fn play(&mut self) {
        while let Some(((ms, _), event)) = self.queue.pop_first() {
            self.clock.advance_ms(ms - self.now_ms());
            self.on(event);
            if self.violation.is_some() || self.unsent == 0 {
                return;
            }
            if ms > END_MS {
                break;
            }
        }
        self.violation = Some(format!("S2: {} calls never leave", self.unsent));
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Ask { server, call } => {
                self.servers[server].waiting.push_back(call);
                self.let_leave(server);
            }
            Event::End { server, life, call } if self.servers[server].life == life => {
                self.servers[server].ended(call);
                self.let_leave(server);
            }
            Event::Tick { server, life } if self.servers[server].life == life => {
                self.settle(server);
                self.after(1_000, Event::Tick { server, life });
            }
            Event::Commit { server, life } if self.servers[server].life == life => self.commit(server),
            Event::Reopen { server, life } if self.servers[server].life == life => {
                if let Some(left) = self.servers[server].instance {
                    self.after(LEASE_MS, Event::DeclareDead(left));
                }
                let now_ms = self.now_ms();
                self.servers[server].reopen(now_ms);
                self.commit_soon(server);
            }
            Event::Start(server) => {
                let (life, now_ms) = (self.servers[server].life, self.now_ms());
                self.servers[server].register(now_ms);
                self.commit_soon(server);
                self.after(1, Event::Tick { server, life });
            }
            Event::Back { server, life } if self.servers[server].life == life => {
                self.servers[server].store.set_away(false);
            }
            Event::DeclareDead(instance) => self.declare_dead(instance, false),
            Event::Trouble(trouble) => self.trouble(trouble),
            // Of an earlier life.
            _ => {}
        }
    }

    fn settle(&mut self, server: usize) {
        let (now_ms, now, limit) = (self.now_ms(), self.clock.now(), self.provider.limit);
        let around = Around { now_ms, now, rng: &self.rng, bug: self.bug, limit, faults: self.faults };
        let before = shares::find(&*self.disk, UPSTREAM).map(|kept| kept.shares.held).unwrap_or_default();
        let written = self.servers[server].settle(&around);
        if let Some(shares) = written {
            self.replaces(&before, &shares.held);
            let is_gone = shares.held.iter().any(|h| h.gone_at.is_some_and(|at| now.0 - at.0 < TAKEN_US));
            self.saw(if is_gone { "share of a gone server" } else { "share settled" });
            self.say(|_| format!("server {server} settles: {:?}", shares.held));
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
            self.saw("share of one that is replaced");
        }
    }

    fn let_leave(&mut self, server: usize) {
        if !self.servers[server].is_up {
            return;
        }
        let (now_ms, now, limit) = (self.now_ms(), self.clock.now(), self.provider.limit);
        let around = Around { now_ms, now, rng: &self.rng, bug: self.bug, limit, faults: self.faults };
        let left = self.servers[server].leaving(&around);
        let (life, by) = (self.servers[server].life, self.servers[server].instance);
        for call in left {
            self.unsent -= 1;
            self.say(|_| format!("server {server} sends {call:?}"));
            let broken = self.provider.takes(by, &call, now_ms);
            self.violation = self.violation.take().or(broken);
            self.after(call.takes_ms, Event::End { server, life, call: call.no });
        }
        if !self.servers[server].waiting.is_empty() && self.servers[server].part.now != self.provider.limit {
            self.saw("share too small");
        }
    }

    fn commit_soon(&mut self, server: usize) {
        if self.servers[server].has_pending() {
            let (life, ms) = (self.servers[server].life, self.rng.between(1, 8));
            self.after(ms, Event::Commit { server, life });
        }
    }

    fn commit(&mut self, server: usize) {
        if !self.servers[server].has_pending() {
            return;
        }
        let (now_ms, now, limit) = (self.now_ms(), self.clock.now(), self.provider.limit);
        let around = Around { now_ms, now, rng: &self.rng, bug: self.bug, limit, faults: self.faults };
        let (again, reopens) = self.servers[server].commit(&around);
        if self.servers[server].store.has_crashed() {
            return self.kill(server);
        }
        let life = self.servers[server].life;
        if reopens {
            self.saw("share in doubt");
            self.after(2_000, Event::Reopen { server, life });
        }
        if again {
            self.settle(server);
        } else if self.servers[server].has_pending() {
            self.after(100, Event::Commit { server, life });
        }
        self.let_leave(server);
    }

    fn trouble(&mut self, trouble: Trouble) {
        self.say(|_| format!("{trouble:?}"));
        match trouble {
            Trouble::Kill(server) => self.kill(server),
            Trouble::Stop(server) => self.stop(server),
            Trouble::Away(server, ms) => {
                let life = self.servers[server].life;
                self.servers[server].store.set_away(true);
                self.after(ms, Event::Back { server, life });
                if let Some(instance) = self.servers[server].instance.filter(|_| ms > LEASE_MS) {
                    self.after(LEASE_MS, Event::DeclareDead(instance));
                }
            }
        }
    }

    /// Ends a server that gives its share up and leaves the store.
    fn stop(&mut self, server: usize) {
        let Some(no) = self.servers[server].instance.filter(|_| !self.servers[server].store.is_away()) else {
            return self.kill(server);
        };
        let used = self.servers[server].used(self.now_ms());
        let left = shares::find(&*self.disk, UPSTREAM).and_then(|mut kept| {
            kept.shares.leave(no, &used, self.clock.now());
            let put = shares::put(UPSTREAM, &kept.shares, kept.version)?;
            self.disk.ask(put, Durability::Synced).wait()
        });
        if left.is_ok() {
            self.saw("share given back");
            self.declare_dead(no, true);
        }
        self.kill(server);
    }

    /// Ends a server with all that it had in memory. Its calls stay at the provider.
    fn kill(&mut self, server: usize) {
        if !self.servers[server].is_up {
            return;
        }
        if let Some(instance) = self.servers[server].instance {
            let ms = self.rng.between(2_500, LEASE_MS);
            self.after(ms, Event::DeclareDead(instance));
        }
        let (life, unsent) = (self.servers[server].life + 1, self.servers[server].unsent());
        self.servers[server] = Server::new(server, life, self.disk.clone(), unsent);
        let down = self.rng.between(200, 12_000);
        self.after(down, Event::Start(server));
    }

    fn declare_dead(&mut self, instance: InstanceNo, left: bool) {
        let row = self.disk.instance(instance).ok().flatten();
        if let Some(row) = row.filter(|row| row.life == Life::Live) {
            let verdict = DeclareDead { instance, heartbeat_seen: row.heartbeat, left };
            let _ = self.disk.ask(verdict, Durability::Synced).wait();
        }
    }

    fn after(&mut self, ms: u64, event: Event) {
        self.order += 1;
        self.queue.insert((self.now_ms() + ms, self.order), event);
    }

    fn now_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    fn saw(&mut self, what: &str) {
        *self.seen.entry(what.to_owned()).or_default() += 1;
    }

    fn say(&mut self, line: impl FnOnce(&World) -> String) {
        if self.story.is_some() {
            let line = format!("{:>8} ms  {}", self.now_ms(), line(self));
            self.story.iter_mut().for_each(|story| story.push(line.clone()));
        }
    }
}
