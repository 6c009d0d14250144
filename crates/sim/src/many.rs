//! One seed, and the scenes that it plays; many seeds, played on all cores.

use std::{
    collections::BTreeMap,
    ops::Range,
    panic::catch_unwind,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{Bug, Outcome, Play, login, shares, world};

/// Number of failing seeds after which no further seeds are played.
const ENOUGH: usize = 20;

/// Results of many seeds.
#[derive(Debug, Default)]
pub struct Played {
    pub seeds: u64,
    pub took: Duration,
    /// Longest simulated time of a seed, in milliseconds.
    pub longest_ms: u64,
    /// Number of times each thing happened, over all seeds.
    pub seen: BTreeMap<String, u64>,
    /// Seeds that failed, each with the violation that was found.
    pub failed: Vec<(u64, String)>,
}

/// Plays seeds until all are played, or some have failed.
pub fn play(seeds: Range<u64>) -> Played {
    let played = Mutex::new(Played::default());
    let began = Instant::now();
    on_all_cores(seeds, |seed| {
        let outcome = catch_unwind(|| run(seed, None, false));
        let mut played = lock(&played);
        played.add(seed, outcome.ok());
        played.failed.len() < ENOUGH
    });
    let mut played = played.into_inner().unwrap_or_else(PoisonError::into_inner);
    played.took = began.elapsed();
    played.failed.sort();
    played
}

/// Plays `seeds` on all cores. Returns the first that finds the planted defect, and what it finds; `None` if none does.
pub fn find(bug: Bug, seeds: Range<u64>) -> Option<(u64, String)> {
    let found = Mutex::new(None);
    on_all_cores(seeds, |seed| {
        let violation = run(seed, Some(bug), false).violation;
        let mut found = lock(&found);
        let first: Option<(u64, String)> = found.take();
        *found = first.into_iter().chain(violation.map(|what| (seed, what))).min();
        found.is_none()
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Hands the seeds out to all cores, until `goes_on` returns false for one.
fn on_all_cores(seeds: Range<u64>, goes_on: impl Fn(u64) -> bool + Sync) {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds.contains(&seed) {
                return;
            }
            if !goes_on(seed) {
                next.store(seeds.end, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
}

impl Played {
    pub fn per_second(&self) -> f64 {
        self.seeds as f64 / self.took.as_secs_f64()
    }

    fn add(&mut self, seed: u64, outcome: Option<Outcome>) {
        self.seeds += 1;
        match outcome {
            Some(outcome) => {
                self.longest_ms = self.longest_ms.max(outcome.ended_ms);
                outcome.seen.into_iter().for_each(|(what, n)| *self.seen.entry(what).or_default() += n);
                self.failed.extend(outcome.violation.map(|what| (seed, what)));
            }
            None => self.failed.push((seed, "panicked".to_owned())),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of seeds of which one plays the smaller scenes, too: they have less that can go wrong.
const SMALLER_EVERY: u64 = 3;

/// Plays the scenes of a seed to their ends, or to the first broken invariant. `bug` plants a known defect, in the scene
/// that it is of; `tell` keeps a line for each event, the story.
pub fn run(seed: u64, bug: Option<Bug>, tell: bool) -> Outcome {
    let play = Play { seed, bug, tell };
    let is_of_login = |bug| {
        matches!(
            bug,
            Bug::PlanWrittenBlind
                | Bug::PlanCallsForgotten
                | Bug::EndUnnoted
                | Bug::EndWithoutItsHead
                | Bug::DeadNotBuried
                | Bug::HoldBlind
                | Bug::HeldAgain
        )
    };
    match bug {
        Some(bug) if is_of_login(bug) => login::run(play),
        Some(Bug::SharesOfOthersIgnored | Bug::ShareLoweredEarly | Bug::DeadShareFreed) => shares::run(play),
        Some(_) => world::run(play),
        None => all(play),
    }
}

fn all(play: Play) -> Outcome {
    let mut outcome = world::run(play);
    for smaller in [login::run, shares::run] {
        if outcome.violation.is_none() && play.seed.is_multiple_of(SMALLER_EVERY) {
            let other = smaller(play);
            outcome.violation = other.violation;
            outcome.story.extend(other.story);
            other.seen.into_iter().for_each(|(what, n)| *outcome.seen.entry(what).or_default() += n);
        }
    }
    outcome
}
