//! Scene of agents: their processes with a desk each, their workers, a person, and what goes wrong.

use outlast_core::{
    engine::{SetBudget, Source, Start, Tell, Word},
    envelope::{
        Limits, Per, Unit,
        budget::{Name, Terms},
    },
    run::{Policy, Spec},
    store::{Ask, Durability},
    words::{Micros, RunId, RunNo},
};

use crate::{
    AN_HOUR, Agent, Bug, Engine, Happening, Mood, Oracle, Outcome, Outside, Play, Process, Provider, Rng,
    Runs, Scene, Setup, ToAgent, ToProcess, ToWorker, Trouble, Worker, play, program,
};

/// Time from which nothing new goes wrong, so that everything has to come to rest.
const CALM_MS: u64 = 150_000;
/// Time without events after which a world counts as at rest: several ticks and a lease.
const REST_MS: u64 = 30_000;

struct World {
    out: Outside,
    processes: Vec<Process>,
    agents: Vec<Agent>,
    workers: Vec<Worker>,
    /// Simulated time since which nobody had anything to do; `None` while somebody has.
    quiet_since_ms: Option<u64>,
}

/// Plays the scene of a seed to its end, or to the first broken invariant.
pub fn run(seed: Play) -> Outcome {
    play(seed.seed, World::new(seed))
}

impl World {
    fn new(play: Play) -> World {
        let Play { seed, bug, .. } = play;
        let rng = Rng::new(seed);
        let mut scene = Setup::draw(&rng, bug);
        spread(&mut scene, seed, bug);
        let begin = Micros(AN_HOUR.0 - 1000 * scene.hour_ends_ms as i64);
        let mut out = Outside {
            engine: Engine::new(play, rng, begin, scene.faults),
            provider: Provider::default(),
            oracle: Oracle::default(),
            processes: scene.processes,
            rate: scene.rate,
            connections: 0,
            away_until_ms: vec![0; scene.processes],
            hampered_until_ms: vec![0; scene.processes],
            instances: vec![None; scene.processes],
            troubled_ms: 0,
            died: Vec::new(),
        };
        team(&out, scene.team_limits);
        let parent = start(&out, "parent", |new| Start { limits: scene.parent_limits, ..new });
        let mut agents = Vec::new();
        for (i, cast) in scene.casts.into_iter().enumerate() {
            let above = cast.under_parent.then_some(parent);
            let tags = cast.of_team.then(team_tag).into_iter().collect();
            let run = start(&out, &format!("run-{i}"), |new| Start {
                limits: cast.limits,
                policy: Policy { in_doubt: cast.in_doubt, ..Policy::default() },
                spec: Spec { tags, ..Spec::default() },
                parent: above,
                ..new
            });
            out.engine.say(|| format!("{run}: {cast:?}"));
            agents.push(Agent::new(i, run, parent, cast, &out));
            out.to_agent(100, i, 0, ToAgent::Begin);
        }
        let mut workers = Vec::new();
        for (i, waves) in scene.workers.into_iter().chain(further(seed, bug)).enumerate() {
            let run = job(&out, &format!("job-{i}"), parent, None);
            out.engine.say(|| format!("{run}: {waves:?}"));
            workers.push(Worker::new(i, run, waves));
            out.to_worker(150, i, 0, ToWorker::Begin);
        }
        if !scene.orders.is_empty()
            && let Some(agent) = agents.first()
        {
            let runs = Runs { own: job(&out, "person", parent, Some(6)), agents: agent.run };
            for ms in scene.orders {
                let process = out.engine.rng.below(scene.processes as u64) as usize;
                out.to_process(ms, process, ToProcess::Order(runs));
            }
        }
        let processes =
            (0..scene.processes).map(|i| Process::new(i, 0, out.engine.disk.clone(), bug)).collect();
        for i in 0..scene.processes {
            out.to_process(0, i, ToProcess::Start);
        }
        removal(seed, &agents, &mut out);
        for (ms, trouble) in scene.troubles {
            out.engine.at(ms, Happening::Trouble(trouble));
        }
        World { out, processes, agents, workers, quiet_since_ms: None }
    }

    fn trouble(&mut self, trouble: Trouble) {
        self.out.troubled_ms = self.out.engine.now_ms();
        self.out.engine.say(|| format!("{trouble:?}"));
        match trouble {
            Trouble::KillProcess(i) => self.kill(i),
            Trouble::PauseProcess(i, ms) => {
                let until = self.out.engine.now_ms() + ms;
                self.out.hampers(i, ms);
                let process = &mut self.processes[i];
                process.paused_until_ms = process.paused_until_ms.max(until);
            }
            Trouble::PowerLoss => {
                for i in 0..self.processes.len() {
                    self.kill(i);
                }
                self.out.oracle.power_lost(&self.out.engine.disk);
                self.out.engine.disk.lose_power();
            }
            Trouble::StoreAway { process, ms, loses } => {
                if loses {
                    self.out
                        .engine
                        .say(|| "the database starts anew, without what was not synced".to_owned());
                    self.out.oracle.power_lost(&self.out.engine.disk);
                    self.out.engine.disk.lose_power();
                }
                let until = self.out.engine.now_ms() + ms;
                let all = 0..self.processes.len();
                for i in all.filter(|i| process.is_none_or(|p| p == *i)) {
                    if process.is_some() {
                        self.out.hampers(i, ms);
                    }
                    self.out.away_until_ms[i] = self.out.away_until_ms[i].max(until);
                }
            }
            Trouble::SuspendProcess(i, ms) => {
                let now = self.out.engine.now_ms();
                let process = &mut self.processes[i];
                process.slept_ms += (now + ms).saturating_sub(process.paused_until_ms.max(now));
                self.trouble(Trouble::PauseProcess(i, ms));
            }
            Trouble::ClockJump { by_ms, ms } => {
                self.out.clock_jumps(by_ms);
                self.out.engine.at(self.out.engine.now_ms() + ms, Happening::ClockSetRight { by_ms });
            }
            Trouble::KillAgent(i) => {
                let life = self.agents[i].life;
                let leaves_ghost = self.out.engine.rng.chance(30);
                self.out.to_agent(0, i, life, ToAgent::Die { leaves_ghost });
            }
        }
    }

    /// Ends a process with all that it had in memory. Its clients see their connections reset, the agents it supervised
    /// end with it, and it restarts later.
    fn kill(&mut self, i: usize) {
        if !self.processes[i].is_up {
            return;
        }
        self.out.engine.say(|| format!("process {i} is dead"));
        self.out.instances[i] = None;
        self.out.troubled_ms = self.out.engine.now_ms();
        let life = self.processes[i].life + 1;
        let fresh = Process::new(i, life, self.out.engine.disk.clone(), self.out.engine.bug);
        let dead = std::mem::replace(&mut self.processes[i], fresh);
        self.out.oracle.died(dead.instance());
        for (run, seq) in dead.pending_marks() {
            self.out.oracle.mark_lost(run, seq);
        }
        for (connection, client) in dead.clients {
            self.out.oracle.gives_back(connection);
            let (agent, life) = (client.request.agent, client.request.life);
            let reset = ToAgent::Refused {
                connection,
                code: "connection reset".to_owned(),
                retry: true,
                after_ms: 500,
            };
            self.out.to_agent(1, agent, life, reset);
        }
        for agent in &self.agents {
            if agent.cast.supervised && agent.process == i && agent.mood == Mood::Working {
                let die = ToAgent::Die { leaves_ghost: false };
                self.out.to_agent(1, agent.index, agent.life, die);
            }
        }
        for worker in &self.workers {
            if worker.process == i && worker.mood == Mood::Working {
                self.out.to_worker(1, worker.index, worker.life, ToWorker::Die);
            }
        }
        let down = self.out.engine.rng.between(200, 12_000);
        self.out.to_process(down, i, ToProcess::Start);
    }

    fn is_at_rest(&mut self) -> bool {
        let now = self.out.engine.now_ms();
        let idle = self.agents.iter().all(|a| a.mood != Mood::Working)
            && self.workers.iter().all(|w| w.mood != Mood::Working)
            && self.processes.iter().all(|p| p.is_up && p.is_idle() && p.paused_until_ms <= now);
        if !idle {
            self.quiet_since_ms = None;
            return false;
        }
        let since = *self.quiet_since_ms.get_or_insert(now);
        now - since >= REST_MS
    }
}

impl Scene for World {
    type Event = Happening;
    const END_MS: u64 = 3_600_000;

    fn engine(&mut self) -> &mut Engine<Happening> {
        &mut self.out.engine
    }

    fn on(&mut self, order: u64, what: Happening) {
        let now_ms = self.out.engine.now_ms();
        if now_ms >= CALM_MS {
            self.out.engine.faults = 0;
            self.out.provider.behaves = true;
        }
        match what {
            Happening::Process(i, input) => {
                let until = self.processes[i].paused_until_ms;
                if until > now_ms {
                    // Delivered in the order in which they were sent: the network keeps it.
                    self.out.engine.put_off(until, order, Happening::Process(i, input));
                } else {
                    self.processes[i].on(input, &mut self.out);
                }
            }
            Happening::Worker { worker, life, input } => {
                let at = &mut self.workers[worker];
                let until = self.processes[at.process].paused_until_ms;
                if at.life != life {
                } else if until > now_ms {
                    self.out.engine.put_off(until, order, Happening::Worker { worker, life, input });
                } else {
                    self.out.engine.say(|| format!("worker {worker}: {input:?}"));
                    at.on(input, &mut self.out);
                }
            }
            Happening::Agent { agent, life, input } if self.agents[agent].life == life => {
                self.out.engine.say(|| format!("agent {agent}: {input:?}"));
                if let ToAgent::Die { leaves_ghost: true } = input {
                    let ghost = self.agents[agent].ghost(self.agents.len());
                    let (index, life) = (ghost.index, ghost.life);
                    self.agents.push(ghost);
                    let delay = self.out.engine.rng.between(10, 20_000);
                    self.out.to_agent(delay, index, life, ToAgent::Next);
                }
                self.agents[agent].on(input, &mut self.out);
            }
            Happening::Agent { .. } => {}
            Happening::ClockSetRight { by_ms } => self.out.clock_jumps(-by_ms),
            Happening::Trouble(trouble) => self.trouble(trouble),
        }
        for dead in std::mem::take(&mut self.out.died) {
            self.kill(dead);
        }
    }

    fn verdict(&mut self) -> Option<Result<(), String>> {
        let violation = self.out.oracle.violation().map(Err);
        violation.or_else(|| {
            self.is_at_rest().then(|| self.out.oracle.at_rest(&self.out.engine.disk).map_or(Ok(()), Err))
        })
    }

    /// Returns as text which agents, workers and processes still have something to do.
    fn unrest(&self) -> String {
        let agents =
            self.agents.iter().filter(|a| a.mood == Mood::Working).map(|a| format!("agent {}", a.index));
        let workers = self.workers.iter().filter(|w| w.mood == Mood::Working);
        let workers = workers.map(|w| format!("worker {}", w.index));
        let busy = |p: &&Process| !p.is_up || !p.is_idle();
        let processes = self.processes.iter().filter(busy);
        let processes = processes.map(|p| format!("process {} ({})", p.index, p.business()));
        let busy: Vec<String> = agents.chain(workers).chain(processes).collect();
        format!("9: the world never came to rest: {}", busy.join(", "))
    }
}

/// Draws the programs of a client that makes tool calls, and of one whose steps have long results, each for some seeds.
/// Their draws are their own, so that worlds without one are as they would be if there were none.
fn further(seed: u64, bug: Option<Bug>) -> impl Iterator<Item = program::Waves> {
    let of_tools = matches!(
        bug,
        Some(Bug::ToolSentAgain | Bug::ToolUnmarked | Bug::ToolIdOfTheLife | Bug::ToolKeyOfTheLife)
    );
    let rng = Rng::new(seed ^ 0x7001_7001_7001_7001);
    let tools = (of_tools || rng.chance(25)).then(|| program::tool_calls(&rng));
    let rng = Rng::new(seed ^ 0x9a27_9a27_9a27_9a27);
    let long = (bug == Some(Bug::PartMissing) || rng.chance(20)).then(|| program::long_results(&rng));
    tools.into_iter().chain(long)
}

/// Lets a person cancel the run of an agent of the team while it works, and remove it, again and again until it is gone;
/// for some seeds, with draws of their own. Nobody drives the run but header callers, so that it ends at once.
fn removal(seed: u64, agents: &[Agent], out: &mut Outside) {
    let rng = Rng::new(seed ^ 0xf027_f027_f027_f027);
    let of_team = |a: &&Agent| a.cast.of_team && !a.cast.supervised && !a.cast.under_parent;
    let Some(agent) = agents.iter().find(of_team) else { return };
    if out.engine.bug != Some(Bug::ForgottenInFlight) && !rng.chance(20) {
        return;
    }
    let (run, process) = (agent.run, rng.below(out.processes as u64) as usize);
    let ms = rng.between(1_000, 20_000);
    let cancel = Tell { run, word: Word::Cancel { reason: None } };
    out.to_process(ms, process, ToProcess::Person(cancel.into()));
    for n in 1..100 {
        out.to_process(ms + n * rng.between(50, 400), process, ToProcess::Forget(run));
    }
}

/// Lets a balancer spread the requests of agents that name their attempts themselves, for some seeds. Its draws are its own,
/// as the recorder's are.
fn spread(scene: &mut Setup, seed: u64, bug: Option<Bug>) {
    let is_wanted = matches!(bug, Some(Bug::TakerUntold | Bug::GiveBackUntold));
    let rng = Rng::new(seed ^ 0x5b4d_5b4d_5b4d_5b4d);
    for cast in scene.casts.iter_mut().filter(|cast| !cast.supervised && scene.processes > 1) {
        cast.is_spread = is_wanted || rng.chance(30);
    }
}

/// Creates an hourly named budget for the runs of a tag.
fn team(out: &Outside, limits: Limits) {
    let terms = Terms { limits, per: Per::Hour, tag: Some(team_tag()) };
    let set = Name::new("team").map(|name| {
        let set = SetBudget { name, terms, source: Source::Command };
        out.engine.disk.ask(set, Durability::Synced).wait()
    });
    assert!(matches!(set, Ok(Ok(_))), "a scene cannot set its budget: {set:?}");
}

fn team_tag() -> (String, String) {
    ("team".into(), "a".into())
}

/// Starts the run of a worker: a batch job, so that it may have items.
fn job(out: &Outside, id: &str, parent: RunNo, calls: Option<i64>) -> RunNo {
    let mut limits = Limits::default();
    limits[Unit::Calls] = calls;
    let spec = Spec { job: Some("job".to_owned()), ..Spec::default() };
    start(out, id, |new| Start { spec, limits, parent: Some(parent), ..new })
}

fn start(out: &Outside, id: &str, made: impl FnOnce(Start) -> Start) -> RunNo {
    let started =
        RunId::new(id).map(|id| out.engine.disk.ask(made(Start::new(id)), Durability::Synced).wait());
    match started {
        Ok(Ok(started)) => started.run,
        other => panic!("a scene cannot start its run: {other:?}"),
    }
}
