//! Scene of logins: runs on one plan of a subscription, their servers on one store, and another device that uses the plan
//! too. The servers ask the real plan (`call::plan`) by the real compare-and-set, and hold calls as `call::busy_waiting`
//! decides.
//!
//! Invariants: **P1** no window is passed by more than a point beyond what the other device took; **P2** no run rests while
//! there is room, or longer than its window; **P3** a held call goes on when what it waits for has moved, within its
//! client's patience, and is held once; **P4** every run comes to its end, and no call waits for others of which none is
//! under way; **P5** where a provider tells no use of a plan, no call goes out after the first answer.

mod calls;
mod plan;
mod truth;
mod waiting;

use outlast_core::{engine::Outcome, envelope::Ceilings, store::Error};

use self::{
    calls::Agent,
    plan::{Change, Then, Whose},
    truth::{Head, Truth},
};
use crate::{AN_HOUR, Engine, Fleet, Play, Rng, Scene, Server, ServerEvent, play};

/// Time within which nothing new has to go wrong before a call may be said to wait for nobody, in milliseconds.
const CALM_MS: u64 = 60_000;
/// Time in which there is most to do, in milliseconds.
const BUSY_MS: u64 = 1_800_000;

/// Event of the scene. Those of a call are for one life of its agent.
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
    Server(ServerEvent),
    PowerLoss,
    OthersTake(i64),
}

struct Login {
    engine: Engine<Event>,
    ceilings: Ceilings,
    truth: Truth,
    servers: Vec<Server<Then>>,
    agents: Vec<Agent>,
    calls: u64,
    /// Whether a client has an answer, since something was last lost with a process or with power.
    is_answered: bool,
    /// Time of the last trouble, fault or end of a call, in simulated milliseconds.
    stirred_ms: u64,
}

/// Plays the scene of a seed to its end, or to the first broken invariant.
pub fn run(seed: Play) -> crate::Outcome {
    play(seed.seed, Login::new(seed))
}

impl From<ServerEvent> for Event {
    fn from(event: ServerEvent) -> Event {
        Event::Server(event)
    }
}

impl Login {
    fn new(seed: Play) -> Login {
        let rng = Rng::new(seed.seed ^ 0x0910_0910_0910_0910);
        let truth = Truth::new(&rng, AN_HOUR);
        let servers = rng.between(1, 3) as usize;
        let agents = rng.between(2, 8) as usize;
        let faults = if rng.chance(50) { rng.between(1, 4) } else { 0 };
        let engine = Engine::new(seed, rng, AN_HOUR, faults);
        let mut scene = Login {
            ceilings: truth.ceilings(),
            truth,
            servers: (0..servers).map(|i| Server::new(i, 0, engine.disk.clone())).collect(),
            agents: (0..agents).map(|i| Agent::draw(i, servers, &engine.rng)).collect(),
            engine,
            calls: 0,
            is_answered: false,
            stirred_ms: 0,
        };
        scene.prepare();
        scene
    }

    fn prepare(&mut self) {
        let engine = &mut self.engine;
        engine.say(|| format!("under {}, by {} agents", self.ceilings, self.agents.len()));
        for server in 0..self.servers.len() {
            engine.after(0, ServerEvent::Start(server));
        }
        for agent in 0..self.agents.len() {
            let ms = engine.rng.between(100, 20_000);
            engine.after(ms, Event::Ask { agent, life: 0, tries: 0 });
        }
        for _ in 0..engine.rng.below(9) {
            let ms = engine.rng.between(100, BUSY_MS);
            let server = engine.rng.below(self.servers.len() as u64) as usize;
            let trouble: Event = match engine.rng.below(10) {
                0..=5 => ServerEvent::Kill(server).into(),
                6 => Event::PowerLoss,
                _ => ServerEvent::StoreAway(server, engine.rng.between(100, 20_000)).into(),
            };
            engine.after(ms, trouble);
        }
        let busy = engine.rng.chance(70);
        for _ in 0..if busy { engine.rng.between(1, 60) } else { 0 } {
            let ms = engine.rng.between(100, 2 * BUSY_MS);
            let share = engine.rng.between(1, 400) as i64;
            engine.after(ms, Event::OthersTake(share));
        }
    }
}

impl Scene for Login {
    type Event = Event;
    /// Several weeks turn.
    const END_MS: u64 = 60 * 24 * 3_600_000;

    fn engine(&mut self) -> &mut Engine<Event> {
        &mut self.engine
    }

    fn on(&mut self, _: u64, event: Event) {
        if self.truth.pass(self.engine.now()) > 0 {
            self.engine.say(|| "a window turns".to_owned());
            self.engine.saw("plan turned");
        }
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
            Event::Server(event) => self.on_server(event),
            Event::PowerLoss => {
                (0..self.servers.len()).for_each(|server| self.kill(server));
                self.engine.disk.lose_power();
                self.truth.forgotten();
            }
            Event::OthersTake(share) => {
                self.engine.say(|| format!("another device takes {share} thousandths of a point"));
                self.truth.others_take(share);
            }
        }
    }

    fn verdict(&mut self) -> Option<Result<(), String>> {
        self.engine.verdict(self.agents.iter().all(|agent| agent.is_done))
    }

    fn unrest(&self) -> String {
        let left: Vec<usize> = self.agents.iter().filter(|a| !a.is_done).map(|a| a.index).collect();
        format!("P4: the runs {left:?} never come to an end")
    }
}

impl Fleet for Login {
    type Then = Then;
    const LEASE_MS: u64 = 5_000;
    const NAME: &'static str = "plan";

    fn servers(&mut self) -> &mut Vec<Server<Then>> {
        &mut self.servers
    }

    fn did(&mut self, server: usize, then: Then, result: Result<Outcome, Error>) {
        match then {
            Then::Changed(whose, change, verdict) => {
                self.changed(server, whose, change, verdict, result.map(drop))
            }
            Then::Opened(whose) => self.opened(server, whose, result.is_ok()),
        }
    }

    fn registered(&mut self, _: usize) {}

    /// Starts the agents of a dead server again: their calls under way break off.
    fn began_anew(&mut self, server: usize, is_dead: bool) {
        self.is_answered = false;
        for agent in 0..self.agents.len() {
            if is_dead && self.agents[agent].server == server {
                self.start_again(agent);
            }
        }
    }

    fn troubled(&mut self, until_ms: u64) {
        self.stirred_ms = self.stirred_ms.max(until_ms);
    }
}
