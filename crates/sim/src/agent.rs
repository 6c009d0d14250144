//! Simulated agent: a program of requests, an SDK that retries, and a habit of dying.

use std::collections::BTreeMap;

use crate::{Cast, Credential, Logical, prelude::*};

/// State of one agent.
#[derive(Clone, Debug, Default)]
pub struct Agent {
    pub index: usize,
    pub run: RunNo,
    pub parent: RunNo,
    pub cast: Cast,
    pub life: u32,
    pub mood: Mood,
    /// Whether the agent should be dead but is not: it keeps asking as an attempt that is over.
    pub ghost: bool,
    pub process: usize,
    credential: Option<Credential>,
    iteration: i64,
    /// Whether the next claim asks for a new iteration.
    fresh: bool,
    turns_left: u32,
    attempts_left: u32,
    raises_left: u32,
    /// Whether the agent keeps its own notes, and resumes after its last finished step.
    takes_notes: bool,
    position: usize,
    notes: usize,
    /// Requests under way, and the process that each was sent to.
    open: BTreeMap<u64, (Logical, usize)>,
    /// Number of requests of the current step that have no answer yet.
    missing: usize,
}

impl Agent {
    pub fn new(index: usize, run: RunNo, parent: RunNo, cast: Cast, out: &Outside) -> Agent {
        Agent {
            index,
            run,
            parent,
            turns_left: u32::from(cast.two_turns && cast.supervised),
            cast,
            attempts_left: 10,
            raises_left: 4,
            takes_notes: out.engine.rng.chance(50),
            ..Agent::default()
        }
    }

    /// Handles an event. Nothing else changes the agent.
    pub fn on(&mut self, input: ToAgent, out: &mut Outside) {
        match input {
            ToAgent::Begin => self.begin(out),
            ToAgent::Claimed(claimed) => self.claimed(claimed, out),
            ToAgent::Next => self.send_step(out),
            ToAgent::Resend(logical) => self.send(logical, out),
            ToAgent::Answer { connection, .. } => {
                if self.open.remove(&connection).is_some() {
                    self.missing -= 1;
                    self.go_on(out);
                }
            }
            ToAgent::Refused { connection, code, retry, after_ms } => {
                let Some((logical, _)) = self.open.remove(&connection) else { return };
                if retry && logical.retry < 2 {
                    let again = Logical { retry: logical.retry + 1, ..logical };
                    out.to_agent(after_ms, self.index, self.life, ToAgent::Resend(again));
                } else {
                    self.fail(&code, out);
                }
            }
            ToAgent::Vanish { connection, marked } => {
                let Some((logical, process)) = self.open.remove(&connection) else { return };
                let retry = logical.retry + u32::from(marked);
                let at_once = out.engine.rng.chance(50);
                let delay =
                    if at_once { out.engine.rng.between(0, 20) } else { out.engine.rng.between(1, 1_000) };
                match at_once {
                    true => out.to_process(0, process, ToProcess::ClientGone(connection)),
                    false => hang_up(connection, process, out),
                }
                out.to_agent(delay, self.index, self.life, ToAgent::Resend(Logical { retry, ..logical }));
            }
            ToAgent::Die { .. } => self.restart_in(out.engine.rng.between(500, 8_000), out),
        }
    }

    /// Returns a copy of this agent that goes on as if it had not died.
    pub fn ghost(&self, index: usize) -> Agent {
        let mood = if self.credential.is_some() { self.mood } else { Mood::GaveUp };
        let open = BTreeMap::new();
        Agent { index, ghost: true, mood, open, missing: 0, attempts_left: 0, raises_left: 0, ..self.clone() }
    }

    fn begin(&mut self, out: &mut Outside) {
        if self.mood != Mood::Working {
            return;
        }
        if self.attempts_left == 0 {
            self.mood = Mood::GaveUp;
            return;
        }
        self.attempts_left -= 1;
        // A life that dies before its claim leaves no ghost: it has not been told of an attempt.
        self.credential = None;
        self.process = out.engine.rng.below(out.processes as u64) as usize;
        self.position = if self.takes_notes { self.notes } else { 0 };
        self.missing = 0;
        if self.cast.supervised {
            let claim =
                ToProcess::Claim { agent: self.index, life: self.life, run: self.run, fresh: self.fresh };
            out.to_process(5, self.process, claim);
        } else {
            self.credential = Some(Credential::Label(format!("a{}", self.life)));
            out.to_agent(5, self.index, self.life, ToAgent::Next);
        }
    }

    fn claimed(&mut self, claimed: Option<(AttemptNo, i64)>, out: &mut Outside) {
        match claimed {
            Some((attempt, iteration)) => {
                self.credential = Some(Credential::Token(attempt));
                self.iteration = iteration;
                self.fresh = false;
                out.to_agent(5, self.index, self.life, ToAgent::Next);
            }
            // The holder is dead or asleep: the claim is tried again later, once that has been noticed.
            None => self.restart_in(out.engine.rng.between(4_000, 9_000), out),
        }
    }

    fn send_step(&mut self, out: &mut Outside) {
        match self.cast.program.get(self.position).cloned() {
            Some(step) => {
                self.missing = step.len();
                for ask in step {
                    let key = self.cast.sends_keys.then(|| out.new_connection());
                    self.send(Logical { ask, key, retry: 0 }, out);
                }
            }
            None => self.finish(out),
        }
    }

    fn send(&mut self, logical: Logical, out: &mut Outside) {
        let Some(credential) = self.credential.clone() else { return };
        let connection = out.new_connection();
        let process = match self.cast.is_spread {
            true => out.engine.rng.below(out.processes as u64) as usize,
            false => self.process,
        };
        self.open.insert(connection, (logical, process));
        let request = Request {
            agent: self.index,
            life: self.life,
            run: self.run,
            credential,
            ask: logical.ask,
            scope: logical.ask.scope(self.iteration),
            retry: logical.retry,
            key: logical.key.map(|key| format!("key-{key}")),
        };
        let delay = out.engine.rng.between(1, 4);
        out.to_process(delay, process, ToProcess::Request { connection, request });
        if out.engine.rng.chance(7) && !out.provider.behaves {
            let vanish = ToAgent::Vanish { connection, marked: out.engine.rng.chance(50) };
            // Some clients leave while they are being admitted.
            let after = out.engine.rng.either(30, (1, 15), (5, 8_000));
            out.to_agent(after, self.index, self.life, vanish);
        }
    }

    fn go_on(&mut self, out: &mut Outside) {
        if self.missing > 0 {
            return;
        }
        self.position += 1;
        self.notes = self.notes.max(self.position);
        let thinks = out.engine.rng.either(30, (0, 5), (1, 2_000));
        out.to_agent(thinks, self.index, self.life, ToAgent::Next);
    }

    fn finish(&mut self, out: &mut Outside) {
        if self.ghost || self.turns_left == 0 {
            self.mood = Mood::Done;
            return;
        }
        self.turns_left -= 1;
        self.fresh = true;
        self.notes = 0;
        self.restart_in(100, out);
    }

    /// Raises the SDK's exception in the program, which ends the agent's attempt.
    fn fail(&mut self, code: &str, out: &mut Outside) {
        if self.ghost || code == "price_unknown" {
            self.mood = Mood::GaveUp;
            self.hang_up_all(out);
            return;
        }
        if (code.ends_with("budget_exceeded") || code == "admission_timeout") && self.raises_left > 0 {
            self.raises_left -= 1;
            for run in [self.run, self.parent] {
                let amount = out.engine.rng.between(100, 1_500) as i64;
                out.to_process(200, self.process, ToProcess::Raise { run, amount });
            }
        }
        self.restart_in(out.engine.rng.between(500, 5_000), out);
    }

    fn restart_in(&mut self, ms: u64, out: &mut Outside) {
        self.hang_up_all(out);
        if self.ghost {
            self.mood = Mood::GaveUp;
            return;
        }
        self.life += 1;
        out.to_agent(ms, self.index, self.life, ToAgent::Begin);
    }

    fn hang_up_all(&mut self, out: &mut Outside) {
        for (connection, (_, process)) in std::mem::take(&mut self.open) {
            hang_up(connection, process, out);
        }
    }
}

/// Drops a connection. The process learns of that at once, or late.
fn hang_up(connection: u64, process: usize, out: &mut Outside) {
    let delay = out.engine.rng.either(80, (0, 5), (5, 4_000));
    out.to_process(delay, process, ToProcess::ClientGone(connection));
}
