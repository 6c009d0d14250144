//! What a seed sets up: runs with their limits, programs, and the troubles to come.

use std::sync::Arc;

use outlast_core::{
    envelope::unit::{Limits, Unit},
    price::Bound,
    run::InDoubt,
};

use crate::rng::Rng;

/// One request of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Which of a few prompts: equal numbers are identical requests.
    pub prompt: u64,
    /// 0: the iteration's scope; else an item's.
    pub item: u64,
    pub stream: bool,
    pub priced: bool,
}

impl Ask {
    /// What the request can cost at most: a nano-dollar an input token, two an output token.
    pub fn bound(&self) -> Bound {
        let (input, cap) = (20 + 10 * self.prompt, 100 + 60 * self.prompt);
        Bound {
            input_tokens: input,
            input_pico: if self.priced { 1000 * i128::from(input) } else { 0 },
            output_pico_per_token: if self.priced { 2000 } else { 0 },
            fixed_pico: 0,
            choices: 1,
            cap,
            floor_cap: 40,
        }
    }

    pub fn scope(&self, iteration: i64) -> Arc<str> {
        match self.item {
            0 => outlast_core::journal::iteration_scope(iteration),
            item => format!("i{iteration}/item {item}").into(),
        }
    }
}

/// The requests of a step go out together; the next step follows when all have their answers.
pub type Program = Vec<Vec<Ask>>;

/// One run and the agent that works in it.
#[derive(Clone, Debug)]
pub struct Cast {
    pub program: Program,
    pub limits: Limits,
    /// Driven by a process that claims it; else it names its attempts itself, in a header.
    pub supervised: bool,
    pub under_parent: bool,
    /// Of the named budget's tag.
    pub of_team: bool,
    pub in_doubt: InDoubt,
    /// Its SDK sends an `Idempotency-Key`, the same for every try of a request.
    pub sends_keys: bool,
    /// Does its program twice, the second time as a deliberate fresh turn.
    pub two_turns: bool,
}

/// Something that goes wrong, at a time in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    KillProcess(usize),
    PauseProcess(usize, u64),
    PowerLoss,
    KillAgent(usize),
}

pub struct Scene {
    pub processes: usize,
    pub casts: Vec<Cast>,
    pub parent_limits: Limits,
    /// Of the named budget, which begins anew with each hour.
    pub team_limits: Limits,
    /// When the first hour ends.
    pub hour_ends_ms: u64,
    pub troubles: Vec<(u64, Trouble)>,
    /// Chance in a hundred that an operation meets a fault.
    pub faults: u64,
}

impl Scene {
    pub fn draw(rng: &Rng) -> Scene {
        let processes = rng.between(1, 2) as usize;
        let casts: Vec<Cast> = (0..rng.between(1, 3)).map(|_| cast(rng)).collect();
        let all: i64 = casts.iter().map(|c| full_cost(&c.program)).sum();
        let mut parent_limits = Limits::default();
        parent_limits[Unit::CostNanoUsd] = Some(share(all, rng.between(30, 200)));
        let troubles = (0..rng.below(7))
            .map(|_| (rng.between(100, 40_000), trouble(processes, casts.len(), rng)))
            .collect();
        let faults = if rng.chance(50) { 0 } else { rng.between(1, 4) };
        let mut team_limits = Limits::default();
        team_limits[Unit::CostNanoUsd] = Some(share(all, rng.between(20, 150)));
        let hour_ends_ms = rng.between(1_000, 60_000);
        Scene { processes, casts, parent_limits, team_limits, hour_ends_ms, troubles, faults }
    }
}

fn cast(rng: &Rng) -> Cast {
    let program: Program = (0..rng.between(2, 6)).map(|_| step(rng)).collect();
    let full = full_cost(&program);
    let mut limits = Limits::default();
    if rng.chance(80) {
        limits[Unit::CostNanoUsd] = Some(share(full, rng.between(20, 200)));
    }
    if rng.chance(20) {
        limits[Unit::Tokens] = Some(share(full, rng.between(20, 120)));
    }
    if rng.chance(20) {
        limits[Unit::Calls] = Some(rng.between(3, 20) as i64);
    }
    Cast {
        program,
        limits,
        supervised: rng.chance(50),
        under_parent: rng.chance(40),
        of_team: rng.chance(40),
        in_doubt: match rng.below(10) {
            0 => InDoubt::Keep,
            1 => InDoubt::Refund,
            _ => InDoubt::AsRetry,
        },
        sends_keys: rng.chance(20),
        two_turns: rng.chance(20),
    }
}

/// One request, the same several times over, or a few different ones.
fn step(rng: &Rng) -> Vec<Ask> {
    let ask = || Ask {
        prompt: rng.below(3),
        item: if rng.chance(60) { 0 } else { rng.between(1, 2) },
        stream: rng.chance(50),
        priced: !rng.chance(1),
    };
    let one = ask();
    match rng.below(10) {
        0..=1 => vec![one; rng.between(2, 5) as usize],
        2 => (0..3).map(|_| ask()).collect(),
        _ => vec![one],
    }
}

fn trouble(processes: usize, agents: usize, rng: &Rng) -> Trouble {
    let process = rng.below(processes as u64) as usize;
    match rng.below(10) {
        0..=2 => Trouble::KillProcess(process),
        3..=4 => Trouble::PauseProcess(process, rng.between(1_000, 60_000)),
        5..=6 => Trouble::PowerLoss,
        _ => Trouble::KillAgent(rng.below(agents as u64) as usize),
    }
}

fn full_cost(program: &Program) -> i64 {
    program.iter().flatten().map(|a| a.bound().full().0.0).sum()
}

fn share(all: i64, percent: u64) -> i64 {
    all * percent as i64 / 100
}
