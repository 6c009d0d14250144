//! Another simulated world: runs on one plan of a subscription, their servers on one store, and another device that uses
//! the plan too. The servers ask the real plan (`call::plan`) by the real compare-and-set, and hold calls as
//! `call::busy_waiting` decides.
//!
//! Invariants: **P1** no window is passed by more than a point beyond what the other device took; **P2** no run rests while
//! there is room, or longer than its window; **P3** a held call goes on when what it waits for has moved, within its
//! client's patience, and is held once; **P4** every run comes to its end, and no call waits for others of which none is
//! under way; **P5** where a provider tells no use of a plan, no call goes out after the first answer.

mod calls;
mod server;
mod truth;
mod waiting;

use std::{collections::BTreeMap, sync::Arc};

use outlast_core::{
    call::plan::CallId,
    envelope::ceiling::Ceilings,
    memory::MemoryStore,
    run::instance::Life,
    store::Store as _,
    words::{
        clock::{Clock as _, ManualClock},
        id::{InstanceNo, Micros},
    },
};

use self::{
    calls::Agent,
    server::{Around, Change, Done, Server, Whose},
    truth::{Head, Truth},
};
use crate::{bug::Bug, rng::Rng, world::Outcome};

/// Simulated time by which every run has come to its end: several weeks turn.
const END_MS: u64 = 60 * 24 * 3_600_000;
/// Time within which nothing new has to go wrong before a call may be said to wait for nobody, in milliseconds.
const CALM_MS: u64 = 60_000;
/// Time after which a silent server is declared dead.
const LEASE_MS: u64 = 5_000;
/// Start of the simulated time: 20 November 2026, 09:00 UTC.
const BEGIN: Micros = Micros(1_795_165_200_000_000);

/// Event in the world's queue. Those of a call are for one life of its agent.
enum Event {
    /// The agent asks its model, for the nth time with the same request.
    Ask {
        agent: usize,
        life: u32,
        tries: u32,
    },
    /// The server looks at what a held call waits for.
    Look {
        agent: usize,
        life: u32,
        tries: u32,
    },
    /// The agent's patience with an answer is over.
    GivesUp {
        agent: usize,
        life: u32,
        tries: u32,
    },
    /// The head of an answer comes; `None` for one that tells nothing.
    Head(Whose, Option<Head>),
    End(Whose, i64),
    Change {
        server: usize,
        life: u64,
        whose: Whose,
        change: Change,
    },
    Commit {
        server: usize,
        life: u64,
    },
    Reopen {
        server: usize,
        life: u64,
    },
    Start(usize),
    Back {
        server: usize,
        life: u64,
    },
    DeclareDead(InstanceNo),
    Trouble(Trouble),
    OthersTake(i64),
}

#[derive(Clone, Copy, Debug)]
enum Trouble {
    Kill(usize),
    PowerLoss,
    Away(usize, u64),
}

/// Things that stay the same, and the clock.
struct Conditions {
    clock: Arc<ManualClock>,
    disk: Arc<MemoryStore>,
    rng: Rng,
    bug: Option<Bug>,
    ceilings: Ceilings,
    faults: u64,
}

struct World {
    ground: Conditions,
    queue: BTreeMap<(u64, u64), Event>,
    order: u64,
    truth: Truth,
    servers: Vec<Server>,
    agents: Vec<Agent>,
    calls: u64,
    /// Whether a client has an answer, since something was last lost with a process or with power.
    is_answered: bool,
    /// Time of the last trouble, fault or end of a call, in simulated milliseconds.
    stirred_ms: u64,
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

impl Conditions {
    fn around(&self) -> Around<'_> {
        Around {
            now_ms: self.clock.monotonic_ms(),
            now: self.clock.now(),
            rng: &self.rng,
            bug: self.bug,
            ceilings: &self.ceilings,
            faults: self.faults,
        }
    }
}

impl World {
    fn new(seed: u64, bug: Option<Bug>, tell: bool) -> World {
        let rng = Rng::new(seed ^ 0x0910_0910_0910_0910);
        let truth = Truth::new(&rng, BEGIN);
        let clock = Arc::new(ManualClock::new(BEGIN));
        let disk = Arc::new(MemoryStore::new(clock.clone()));
        let servers = rng.between(1, 3) as usize;
        let agents = rng.between(2, 8) as usize;
        let faults = if rng.chance(50) { rng.between(1, 4) } else { 0 };
        let ceilings = truth.ceilings();
        let ground = Conditions { clock, disk: disk.clone(), rng, bug, ceilings, faults };
        let mut world = World {
            truth,
            servers: (0..servers).map(|i| Server::new(i, 0, disk.clone(), bug)).collect(),
            agents: (0..agents).map(|i| Agent::draw(i, servers, &ground.rng)).collect(),
            ground,
            queue: BTreeMap::new(),
            order: 0,
            calls: 0,
            is_answered: false,
            stirred_ms: 0,
            violation: None,
            story: tell.then(Vec::new),
            seen: BTreeMap::new(),
        };
        world.prepare(servers);
        world
    }

    fn prepare(&mut self, servers: usize) {
        self.say(|w| format!("under {}, by {} agents", w.ground.ceilings, w.agents.len()));
        for server in 0..servers {
            self.after(0, Event::Start(server));
        }
        for agent in 0..self.agents.len() {
            let ms = self.ground.rng.between(100, 20_000);
            self.after(ms, Event::Ask { agent, life: 0, tries: 0 });
        }
        // The time in which there is most to do.
        let horizon = 1_800_000;
        for _ in 0..self.ground.rng.below(9) {
            let (ms, server) =
                (self.ground.rng.between(100, horizon), self.ground.rng.below(servers as u64) as usize);
            let trouble = match self.ground.rng.below(10) {
                0..=5 => Trouble::Kill(server),
                6 => Trouble::PowerLoss,
                _ => Trouble::Away(server, self.ground.rng.between(100, 20_000)),
            };
            self.after(ms, Event::Trouble(trouble));
        }
        let busy = self.ground.rng.chance(70);
        for _ in 0..if busy { self.ground.rng.between(1, 60) } else { 0 } {
            let ms = self.ground.rng.between(100, 2 * horizon);
            let share = self.ground.rng.between(1, 400) as i64;
            self.after(ms, Event::OthersTake(share));
        }
    }

    fn play(&mut self) {
        while let Some(((ms, _), event)) = self.queue.pop_first() {
            self.ground.clock.advance_ms(ms - self.now_ms());
            let turned = self.truth.pass(self.now());
            if turned > 0 {
                self.say(|_| "a window turns".to_owned());
                self.saw("plan turned");
            }
            self.on(event);
            if self.violation.is_some() || self.agents.iter().all(|agent| agent.is_done) {
                return;
            }
            if ms > END_MS {
                break;
            }
        }
        let left: Vec<usize> = self.agents.iter().filter(|a| !a.is_done).map(|a| a.index).collect();
        self.violation = Some(format!("P4: the runs {left:?} never come to an end"));
    }

    fn on(&mut self, event: Event) {
        match event {
            Event::Ask { agent, life, tries } => self.ask(agent, life, tries),
            Event::Look { agent, life, tries } => self.look(agent, life, tries),
            Event::GivesUp { agent, life, tries } => self.give_up(agent, life, tries),
            Event::Head(whose, head) => self.head(whose, head),
            Event::End(whose, part) => self.end(whose, part),
            Event::Change { server, life, whose, change } => {
                if self.servers[server].life == life && self.servers[server].is_up {
                    self.change(server, whose, change);
                }
            }
            Event::Commit { server, life } => {
                if self.servers[server].life == life {
                    self.commit(server);
                }
            }
            Event::Reopen { server, life } => {
                if self.servers[server].life == life {
                    self.gives_up(server);
                    self.is_answered = false;
                    let done = self.servers[server].reopen(self.ground.clock.monotonic_ms());
                    self.commit_soon(server);
                    done.into_iter().for_each(|done| self.done(server, done));
                }
            }
            Event::Start(server) => {
                let now_ms = self.now_ms();
                self.servers[server].register(now_ms);
                self.commit_soon(server);
            }
            Event::Back { server, life } => {
                if self.servers[server].life == life {
                    self.servers[server].store.set_away(false);
                }
            }
            Event::DeclareDead(instance) => self.declare_dead(instance),
            Event::Trouble(trouble) => self.trouble(trouble),
            Event::OthersTake(share) => {
                self.say(|_| format!("another device takes {share} thousandths of a point"));
                self.truth.others_take(share);
            }
        }
    }

    /// Changes the plan by a server.
    fn change(&mut self, server: usize, whose: Whose, change: Change) {
        self.say(|_| format!("server {server}: {whose:?} {change:?}"));
        let around = self.ground.around();
        let done = self.servers[server].change(whose, change, &around);
        self.commit_soon(server);
        done.into_iter().for_each(|done| self.done(server, done));
    }

    fn commit_soon(&mut self, server: usize) {
        if self.servers[server].has_pending() {
            let life = self.servers[server].life;
            let ms = self.ground.rng.between(1, 8);
            self.after(ms, Event::Commit { server, life });
        }
    }

    fn commit(&mut self, server: usize) {
        if !self.servers[server].has_pending() {
            return;
        }
        let around = self.ground.around();
        let (done, reopens) = self.servers[server].commit(&around);
        if self.servers[server].store.has_failed() {
            self.stirred_ms = self.now_ms();
        }
        if self.servers[server].store.has_crashed() {
            return self.kill(server);
        }
        let life = self.servers[server].life;
        if reopens {
            self.stirred_ms = self.now_ms();
            self.after(2_000, Event::Reopen { server, life });
        }
        if self.servers[server].has_pending() {
            self.after(100, Event::Commit { server, life });
        }
        done.into_iter().for_each(|done| self.done(server, done));
    }

    /// Notes what a server's store has done for a call.
    fn done(&mut self, server: usize, done: Done) {
        self.say(|_| format!("server {server}: {done:?}"));
        match done {
            Done::Entered(whose, verdict) => self.entered(server, whose, verdict),
            Done::Opened(whose, is_open) => self.opened(server, whose, is_open),
            Done::Learnt(head) => self.truth.learnt(&head),
            Done::Failed(..) if self.ground.bug == Some(Bug::EndUnnoted) => {}
            Done::Failed(whose, change) => {
                self.saw("plan noted again");
                let life = self.servers[server].life;
                self.after(1_000, Event::Change { server, life, whose, change });
            }
        }
    }

    fn trouble(&mut self, trouble: Trouble) {
        self.say(|_| format!("{trouble:?}"));
        self.stirred_ms = self.now_ms();
        match trouble {
            Trouble::Kill(server) => self.kill(server),
            Trouble::PowerLoss => {
                (0..self.servers.len()).for_each(|server| self.kill(server));
                self.ground.disk.lose_power();
                self.truth.forgotten();
            }
            Trouble::Away(server, ms) => {
                let life = self.servers[server].life;
                self.servers[server].store.set_away(true);
                self.stirred_ms += ms;
                self.after(ms, Event::Back { server, life });
            }
        }
    }

    /// Ends a server with all that it had in memory. What its agents had under way breaks off, and they are started again.
    fn kill(&mut self, server: usize) {
        if !self.servers[server].is_up {
            return;
        }
        self.say(|_| format!("server {server} is dead"));
        self.is_answered = false;
        self.stirred_ms = self.now_ms();
        self.gives_up(server);
        let life = self.servers[server].life + 1;
        self.servers[server] = Server::new(server, life, self.ground.disk.clone(), self.ground.bug);
        let down = self.ground.rng.between(200, 12_000);
        self.after(down, Event::Start(server));
        for agent in 0..self.agents.len() {
            if self.agents[agent].server == server {
                self.start_again(agent);
            }
        }
    }

    /// Lets the server's instance be declared dead, or left.
    fn gives_up(&mut self, server: usize) {
        if let Some(instance) = self.servers[server].instance {
            self.after(LEASE_MS, Event::DeclareDead(instance));
        }
    }

    /// Lets a server that lives declare an instance dead, again and again until it is.
    fn declare_dead(&mut self, instance: InstanceNo) {
        let row = self.ground.disk.instance(instance).ok().flatten();
        if row.is_none_or(|row| row.life != Life::Live) {
            return;
        }
        self.stirred_ms = self.now_ms();
        let now_ms = self.now_ms();
        if let Some(server) = self.servers.iter().position(|s| s.is_up && s.instance.is_some()) {
            self.servers[server].declares_dead(instance, now_ms);
            self.commit_soon(server);
        }
        self.after(1_000, Event::DeclareDead(instance));
    }

    fn new_call(&mut self) -> CallId {
        self.calls += 1;
        CallId(self.calls)
    }

    fn after(&mut self, ms: u64, event: Event) {
        self.order += 1;
        self.queue.insert((self.now_ms() + ms, self.order), event);
    }

    fn now_ms(&self) -> u64 {
        self.ground.clock.monotonic_ms()
    }

    fn now(&self) -> Micros {
        self.ground.clock.now()
    }

    fn breaks(&mut self, violation: Option<String>) {
        if let Some(violation) = violation {
            self.violation.get_or_insert(violation);
        }
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
