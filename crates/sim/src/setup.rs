//! Setup drawn from a seed: runs with their limits, programs, and the troubles to come.

use outlast_core::run::InDoubt;

use crate::{Program, Waves, prelude::*, program};

/// Longest time for which a store is away, in milliseconds. It is longer than any lease.
const LONGEST_OUTAGE_MS: u64 = 20_000;

/// A run and the agent that works in it.
#[derive(Clone, Debug, Default)]
pub struct Cast {
    pub program: Program,
    pub limits: Limits,
    /// Whether a process claims and drives the run. Otherwise the agent names its attempts itself, in a header.
    pub supervised: bool,
    pub under_parent: bool,
    /// Whether the run has the tag of the named budget.
    pub of_team: bool,
    pub in_doubt: InDoubt,
    /// Whether the SDK sends an `Idempotency-Key`, the same for every try of a request.
    pub sends_keys: bool,
    /// Whether a balancer spreads the agent's requests over all processes.
    pub is_spread: bool,
    /// Whether the agent runs its program twice, the second time as a deliberate fresh turn.
    pub two_turns: bool,
}

/// Failure to cause, at a time in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    KillProcess(usize),
    PauseProcess(usize, u64),
    /// The process's machine sleeps for so many milliseconds, and its monotonic clock stands still.
    SuspendProcess(usize, u64),
    PowerLoss,
    /// The store cannot be reached, by one process or by all. `loses`: it comes back without what was not synced.
    StoreAway {
        process: Option<usize>,
        ms: u64,
        loses: bool,
    },
    /// The clock jumps by `by_ms`, ahead or back, and is set right after `ms`. All have one clock: the machine's, or
    /// their database's.
    ClockJump {
        by_ms: i64,
        ms: u64,
    },
    KillAgent(usize),
}

pub struct Setup {
    pub processes: usize,
    pub casts: Vec<Cast>,
    pub workers: Vec<Waves>,
    /// Times at which a person gives an order, in simulated milliseconds.
    pub orders: Vec<u64>,
    pub parent_limits: Limits,
    /// Limits of the named budget, which starts anew every hour.
    pub team_limits: Limits,
    /// Time at which the first hour ends.
    pub hour_ends_ms: u64,
    pub troubles: Vec<(u64, Trouble)>,
    /// Probability that an operation meets a fault, in percent.
    pub faults: u64,
    /// Rate at which one process may ask the upstream.
    pub rate: Rate,
}

impl Setup {
    /// Draws a setup. A planted defect may need troubles that are otherwise out of reach.
    pub fn draw(rng: &Rng, bug: Option<Bug>) -> Setup {
        // A second process would declare an abandoned instance dead, for its silence.
        let most = if bug == Some(Bug::FarewellForgotten) { 1 } else { 2 };
        let processes = rng.between(1, most) as usize;
        let casts: Vec<Cast> = (0..rng.between(1, 3)).map(|_| cast(bug, rng)).collect();
        let all: i64 = casts.iter().map(|c| full_cost(&c.program)).sum();
        let mut parent_limits = Limits::default();
        parent_limits[Unit::CostNanoUsd] = Some(share(all, rng.between(30, 200)));
        let orders = match rng.below(10) {
            0 => 400,
            1..=3 => rng.between(10, 60),
            _ => 0,
        };
        let orders = (0..orders).map(|_| rng.between(200, 80_000)).collect();
        let fewest = u64::from(bug == Some(Bug::NumberReused));
        let workers = (0..rng.between(fewest, 2)).map(|_| program::tasks(rng)).collect();
        let troubles =
            (0..rng.below(9)).map(|_| (trouble_at(rng), trouble(processes, casts.len(), bug, rng))).collect();
        let has_faults = !rng.chance(50) || bug == Some(Bug::FarewellForgotten);
        let faults = if has_faults { rng.between(1, 4) } else { 0 };
        let mut team_limits = Limits::default();
        team_limits[Unit::CostNanoUsd] = Some(share(all, rng.between(20, 150)));
        let hour_ends_ms = rng.between(1_000, 60_000);
        let requests = rng.chance(20).then(|| rng.between(3, 20));
        let rate = Rate { requests, tokens: None };
        Setup {
            processes,
            casts,
            workers,
            orders,
            parent_limits,
            team_limits,
            hour_ends_ms,
            troubles,
            faults,
            rate,
        }
    }
}

fn cast(bug: Option<Bug>, rng: &Rng) -> Cast {
    let program = program::requests(rng);
    let full = full_cost(&program);
    let mut limits = Limits::default();
    if rng.chance(80) {
        limits[Unit::CostNanoUsd] = Some(share(full, rng.between(20, 200)));
    }
    if rng.chance(20) || bug == Some(Bug::TokensBeyondUntold) {
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
        is_spread: false,
    }
}

/// Draws the time of a trouble: often in the first seconds, while every agent is busy.
fn trouble_at(rng: &Rng) -> u64 {
    rng.either(50, (100, 5_000), (100, 40_000))
}

fn trouble(processes: usize, agents: usize, bug: Option<Bug>, rng: &Rng) -> Trouble {
    let process = rng.below(processes as u64) as usize;
    // What a defect needs comes often enough for a short search.
    match bug.filter(|_| rng.chance(70)) {
        Some(Bug::NumberReused) => return Trouble::StoreAway { process: None, ms: 0, loses: true },
        Some(Bug::SilenceThroughOutage) => {
            return Trouble::StoreAway { process: None, ms: rng.between(6_000, 20_000), loses: false };
        }
        _ => {}
    }
    match rng.below(14) {
        10..=12 => store_away(process, rng),
        13 if rng.chance(50) => {
            let hours = rng.between(1, 30) as i64 * 3_600_000;
            let by_ms = match rng.below(4) {
                0 => -hours,
                1 => rng.between(0, 20_000) as i64 - 10_000,
                _ => hours,
            };
            Trouble::ClockJump { by_ms, ms: rng.between(1_000, 30_000) }
        }
        13 => Trouble::SuspendProcess(process, rng.between(1_000, 60_000)),
        0..=2 => Trouble::KillProcess(process),
        3..=4 => Trouble::PauseProcess(process, rng.between(1_000, 60_000)),
        5..=6 => Trouble::PowerLoss,
        _ => Trouble::KillAgent(rng.below(agents as u64) as usize),
    }
}

fn store_away(process: usize, rng: &Rng) -> Trouble {
    let loses = rng.chance(50);
    let process = (!loses && rng.chance(50)).then_some(process);
    let ms = if loses && rng.chance(50) { 0 } else { rng.between(100, LONGEST_OUTAGE_MS) };
    Trouble::StoreAway { process, ms, loses }
}

fn full_cost(program: &Program) -> i64 {
    program.iter().flatten().map(|a| a.bound().full().0.0).sum()
}

fn share(all: i64, percent: u64) -> i64 {
    all * percent as i64 / 100
}
