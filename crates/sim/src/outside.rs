//! Surroundings of the processes and agents: the engine, the provider, the oracle, and which process is in trouble.

use outlast_core::{call::membership::LEASE_MS, engine::Close, state::run_namespace};

use crate::{Fault, Oracle, Why, prelude::*};

/// Everything in the world except the processes and agents, which are given access to it.
pub struct Outside {
    pub engine: Engine<Happening>,
    pub provider: Provider,
    pub oracle: Oracle,
    pub processes: usize,
    /// Rate at which one process may ask the upstream.
    pub rate: Rate,
    pub(crate) connections: u64,
    /// Time until which each process cannot reach the store, in simulated milliseconds.
    pub(crate) away_until_ms: Vec<u64>,
    /// Time until which each process may be unable to renew for another reason than an outage of the whole store.
    pub(crate) hampered_until_ms: Vec<u64>,
    /// Instance of each process; `None` if the process is down.
    pub instances: Vec<Option<InstanceNo>>,
    /// Time of the last trouble or fault, in simulated milliseconds.
    pub troubled_ms: u64,
    pub(crate) died: Vec<usize>,
}

impl Outside {
    /// Returns the number of the current hour since the Unix epoch: the named budget has one window for each hour.
    pub fn hour(&self) -> i64 {
        self.engine.now().0.div_euclid(3_600_000_000)
    }

    pub fn to_process(&mut self, after_ms: u64, process: usize, input: ToProcess) {
        self.engine.after(after_ms, Happening::Process(process, input));
    }

    pub fn to_agent(&mut self, after_ms: u64, agent: usize, life: u32, input: ToAgent) {
        self.engine.after(after_ms, Happening::Agent { agent, life, input });
    }

    pub fn to_worker(&mut self, after_ms: u64, worker: usize, life: u32, input: ToWorker) {
        self.engine.after(after_ms, Happening::Worker { worker, life, input });
    }

    /// Returns a value for `key` that no other call returns.
    pub fn fresh(&mut self, key: &str) -> String {
        format!("{key}#{}", self.new_connection())
    }

    /// Returns the namespace of a run's own state.
    pub fn namespace_of(&self, run: RunNo) -> String {
        self.engine.disk.inspect(|t, _| t.runs.get(&run).map_or_else(String::new, |r| run_namespace(&r.id)))
    }

    /// Returns whether the process cannot reach the store.
    pub fn is_away(&self, process: usize) -> bool {
        self.away_until_ms[process] > self.engine.now_ms()
    }

    pub fn new_connection(&mut self) -> u64 {
        self.connections += 1;
        self.connections
    }

    /// Notes that a waiter was served only when its wait was over.
    pub fn overslept(&mut self, run: RunNo, seq: Seq) {
        self.oracle.overslept(self.engine.now_ms(), run, seq);
    }

    /// Draws the faults of the next group's transactions. The void of a call that was never sent fails often.
    pub fn draw_faults<'a>(&mut self, group: impl Iterator<Item = &'a Op>) -> Vec<Option<Fault>> {
        for (at, op) in group.enumerate() {
            let voids = matches!(op, Op::Settle(settle) if settle.close == Close::Void);
            if voids && self.engine.faults > 0 && self.engine.rng.chance(30) {
                self.troubled_ms = self.engine.now_ms();
                return stubborn(at, Why::Full);
            }
            // Only an entry that nobody knows of needs its instance's farewell.
            let is_unknown = self.engine.bug == Some(Bug::FarewellForgotten) && matches!(op, Op::Admit(_));
            if is_unknown && self.engine.faults > 0 && self.engine.rng.chance(20) {
                self.troubled_ms = self.engine.now_ms();
                return vec![Some(Fault::Unclear { committed: true, told: false })];
            }
            if self.engine.rng.chance(self.engine.faults) {
                self.troubled_ms = self.engine.now_ms();
                return draw_fault(&self.engine.rng, at);
            }
        }
        Vec::new()
    }

    /// Notes that a process ended at a commit. The world removes it when the step is over.
    pub fn process_died(&mut self, process: usize) {
        self.died.push(process);
    }

    pub(crate) fn clock_jumps(&self, by_ms: i64) {
        self.engine.say(|| format!("the clock jumps by {by_ms} ms"));
        self.engine.clock.set(self.engine.now().plus_ms(by_ms));
    }

    /// Notes that something other than an outage of the whole store keeps a process from renewing.
    pub fn hampers(&mut self, process: usize, ms: u64) {
        let until = self.engine.now_ms() + ms + 2 * LEASE_MS;
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
}

/// Draws the fault of a group, at the operation with the number `at`.
pub fn draw_fault(rng: &Rng, at: usize) -> Vec<Option<Fault>> {
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
