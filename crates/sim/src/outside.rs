//! Surroundings of the processes and agents: the clock, the disk, the provider, and what is to happen when.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use outlast_core::{
    call::{membership::LEASE_MS, rate::Rate},
    engine::{call::settle::Close, op::Op, run::declare_dead::DeclareDead},
    memory::MemoryStore,
    state::run_namespace,
    words::{
        clock::{Clock, ManualClock},
        id::{InstanceNo, Micros, RunNo, Seq},
    },
};

use crate::{
    backend::{Fault, Why},
    bug::Bug,
    happening::{Happening, ToAgent, ToProcess, ToWorker},
    oracle::Oracle,
    provider::Provider,
    rng::Rng,
};

/// Everything in the world except the processes and agents, which are given access to it.
pub struct Outside {
    pub clock: Arc<ManualClock>,
    pub disk: Arc<MemoryStore>,
    pub rng: Rng,
    pub provider: Provider,
    pub oracle: Oracle,
    pub bug: Option<Bug>,
    pub processes: usize,
    /// Rate at which one process may ask the upstream.
    pub rate: Rate,
    pub seen: BTreeMap<String, u64>,
    pub(crate) queue: BTreeMap<(u64, u64), Happening>,
    pub(crate) order: u64,
    pub(crate) connections: u64,
    pub(crate) faults: u64,
    /// Time until which each process cannot reach the store, in simulated milliseconds.
    pub(crate) away_until_ms: Vec<u64>,
    /// Time until which each process may be unable to renew for another reason than an outage of the whole store.
    pub(crate) hampered_until_ms: Vec<u64>,
    /// Instance of each process; `None` if the process is down.
    pub instances: Vec<Option<InstanceNo>>,
    /// Time of the last trouble or fault, in simulated milliseconds.
    pub troubled_ms: u64,
    pub(crate) died: Vec<usize>,
    pub(crate) story: Option<Mutex<Vec<String>>>,
}

impl Outside {
    pub fn now_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    pub fn clock_now(&self) -> Micros {
        self.clock.now()
    }

    /// Returns the number of the current hour since the Unix epoch: the named budget has one window for each hour.
    pub fn hour(&self) -> i64 {
        self.clock.now().0.div_euclid(3_600_000_000)
    }

    pub fn to_process(&mut self, after_ms: u64, process: usize, input: ToProcess) {
        self.at(self.now_ms() + after_ms, Happening::Process(process, input));
    }

    pub fn to_agent(&mut self, after_ms: u64, agent: usize, life: u32, input: ToAgent) {
        self.at(self.now_ms() + after_ms, Happening::Agent { agent, life, input });
    }

    pub fn to_worker(&mut self, after_ms: u64, worker: usize, life: u32, input: ToWorker) {
        self.at(self.now_ms() + after_ms, Happening::Worker { worker, life, input });
    }

    /// Returns a value for `key` that no other call returns.
    pub fn fresh(&mut self, key: &str) -> String {
        format!("{key}#{}", self.new_connection())
    }

    /// Returns the namespace of a run's own state.
    pub fn namespace_of(&self, run: RunNo) -> String {
        self.disk.inspect(|t, _| t.runs.get(&run).map_or_else(String::new, |r| run_namespace(&r.id)))
    }

    /// Returns whether the process cannot reach the store.
    pub fn is_away(&self, process: usize) -> bool {
        self.away_until_ms[process] > self.now_ms()
    }

    pub fn new_connection(&mut self) -> u64 {
        self.connections += 1;
        self.connections
    }

    /// Notes that a waiter was served only when its wait was over.
    pub fn overslept(&mut self, run: RunNo, seq: Seq) {
        self.oracle.overslept(self.now_ms(), run, seq);
    }

    /// Counts an occurrence that a simulation should meet.
    pub fn saw(&mut self, what: &str) {
        *self.seen.entry(what.to_owned()).or_default() += 1;
    }

    /// Draws the faults of the next group's transactions. The void of a call that was never sent fails often.
    pub fn draw_faults<'a>(&mut self, group: impl Iterator<Item = &'a Op>) -> Vec<Option<Fault>> {
        for (at, op) in group.enumerate() {
            let voids = matches!(op, Op::Settle(settle) if settle.close == Close::Void);
            if voids && self.faults > 0 && self.rng.chance(30) {
                self.troubled_ms = self.now_ms();
                return stubborn(at, Why::Full);
            }
            // Only an entry that nobody knows of needs its instance's farewell.
            let is_unknown = self.bug == Some(Bug::FarewellForgotten) && matches!(op, Op::Admit(_));
            if is_unknown && self.faults > 0 && self.rng.chance(20) {
                self.troubled_ms = self.now_ms();
                return vec![Some(Fault::Unclear { committed: true, told: false })];
            }
            if self.rng.chance(self.faults) {
                self.troubled_ms = self.now_ms();
                return draw_fault(&self.rng, at);
            }
        }
        Vec::new()
    }

    /// Notes that a process ended at a commit. The world removes it when the step is over.
    pub fn process_died(&mut self, process: usize) {
        self.died.push(process);
    }

    pub(crate) fn clock_jumps(&self, by_ms: i64) {
        self.say(|| format!("the clock jumps by {by_ms} ms"));
        self.clock.set(self.clock.now().plus_ms(by_ms));
    }

    /// Notes that something other than an outage of the whole store keeps a process from renewing.
    pub fn hampers(&mut self, process: usize, ms: u64) {
        let until = self.now_ms() + ms + 2 * LEASE_MS;
        self.hampered_until_ms[process] = self.hampered_until_ms[process].max(until);
    }

    /// Checks a verdict given at `given_ms`: no process is declared dead that lives and was silent only because of an
    /// outage of the whole store. An outage may come between a verdict and its commit.
    pub fn judged(&mut self, verdict: &DeclareDead, given_ms: u64) {
        let who = self.instances.iter().position(|no| *no == Some(verdict.instance));
        if let Some(process) = who.filter(|p| !verdict.left && self.hampered_until_ms[*p] < given_ms) {
            self.oracle.dead_alive(process, verdict.instance);
        }
    }

    /// Adds a line to the story, if one is kept.
    pub fn say(&self, line: impl FnOnce() -> String) {
        if let Some(story) = &self.story {
            let line = format!("{:>8} ms  {}", self.now_ms(), line());
            story.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    }

    pub(crate) fn at(&mut self, ms: u64, what: Happening) {
        self.order += 1;
        self.queue.insert((ms, self.order), what);
    }
}

/// Draws the fault of a group, at the operation with the number `at`.
pub(crate) fn draw_fault(rng: &Rng, at: usize) -> Vec<Option<Fault>> {
    let (committed, told) = (rng.chance(50), rng.chance(50));
    match rng.below(10) {
        0..=1 => stubborn(at, Why::Full),
        2 => stubborn(at, Why::Io),
        3 => vec![Some(Fault::Write { after: at, why: Why::Io })],
        4 => vec![Some(Fault::Refused)],
        5..=6 => vec![Some(Fault::Unclear { committed, told })],
        // In the middle of the operations that are tried alone.
        7 => {
            vec![Some(Fault::Write { after: at, why: Why::Full }), None, Some(Fault::Crash { committed })]
        }
        _ => vec![Some(Fault::Crash { committed })],
    }
}

/// Returns the faults of a group in which the operation `at` also fails when it is decided alone.
fn stubborn(at: usize, why: Why) -> Vec<Option<Fault>> {
    let mut faults = vec![None; at + 1];
    faults[0] = Some(Fault::Write { after: at, why });
    faults.push(Some(Fault::Write { after: 0, why }));
    faults
}
