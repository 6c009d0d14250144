//! Engine of every scene: one clock, one queue of events, one disk, one source of random choices, the story, and what was
//! met. A scene says what its events do, and when it is over.

use std::{cell::RefCell, collections::BTreeMap, sync::Arc};

use outlast_core::words::{Clock as _, ManualClock, SeededEntropy};

use crate::prelude::*;

/// Time at which the first simulated hour ends: 20 November 2026, 09:00 UTC.
pub const AN_HOUR: Micros = Micros(1_795_165_200_000_000);

/// Result of playing a seed.
#[derive(Debug, Default)]
pub struct Outcome {
    pub seed: u64,
    /// Violation that the oracle found, with the story up to it if that was asked for; `None` if it found none.
    pub violation: Option<String>,
    pub story: Vec<String>,
    /// Simulated time at the end, in milliseconds.
    pub ended_ms: u64,
    /// Number of times each thing happened: a scene in which nothing happens proves nothing.
    pub seen: BTreeMap<String, u64>,
}

/// Seed to play, the defect that is planted, and whether a line is kept for each event.
#[derive(Clone, Copy, Debug)]
pub struct Play {
    pub seed: u64,
    pub bug: Option<Bug>,
    pub tell: bool,
}

/// Ground that a scene stands on. `E`: its events.
pub struct Engine<E> {
    pub clock: Arc<ManualClock>,
    pub disk: Arc<MemoryStore>,
    pub rng: Rng,
    pub bug: Option<Bug>,
    /// Probability that an operation meets a fault, in percent.
    pub faults: u64,
    seen: BTreeMap<String, u64>,
    queue: BTreeMap<(u64, u64), E>,
    order: u64,
    story: Option<RefCell<Vec<String>>>,
    /// First violation that the scene found.
    violation: Option<String>,
}

/// Scene of the simulation.
pub trait Scene: Sized {
    type Event;
    /// Simulated time, in milliseconds, by which the scene is over.
    const END_MS: u64;

    fn engine(&mut self) -> &mut Engine<Self::Event>;

    /// Handles the next event. `order`: its place among the events of its millisecond.
    fn on(&mut self, order: u64, event: Self::Event);

    /// Returns whether the scene is over, and the violation if one was found; `None` if it goes on.
    fn verdict(&mut self) -> Option<Result<(), String>>;

    /// Returns the violation of a scene that never ends.
    fn unrest(&self) -> String;
}

/// Plays a scene to its end, or to the first broken invariant.
pub fn play<S: Scene>(seed: u64, mut scene: S) -> Outcome {
    let verdict = loop {
        let Some((order, event)) = scene.engine().next() else { break Err(scene.unrest()) };
        scene.on(order, event);
        if let Some(verdict) = scene.verdict() {
            break verdict;
        }
        if scene.engine().now_ms() >= S::END_MS {
            break Err(scene.unrest());
        }
    };
    let engine = scene.engine();
    Outcome {
        seed,
        violation: verdict.err(),
        ended_ms: engine.now_ms(),
        story: engine.story.take().map_or_else(Vec::new, RefCell::into_inner),
        seen: std::mem::take(&mut engine.seen),
    }
}

impl<E> Engine<E> {
    pub fn new(play: Play, rng: Rng, begin: Micros, faults: u64) -> Engine<E> {
        let clock = Arc::new(ManualClock::new(begin));
        Engine {
            disk: Arc::new(MemoryStore::new(clock.clone())),
            clock,
            rng,
            bug: play.bug,
            faults,
            seen: BTreeMap::new(),
            queue: BTreeMap::new(),
            order: 0,
            story: play.tell.then(RefCell::default),
            violation: None,
        }
    }

    pub fn now_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    pub fn after(&mut self, ms: u64, event: impl Into<E>) {
        self.at(self.now_ms() + ms, event);
    }

    pub fn at(&mut self, ms: u64, event: impl Into<E>) {
        self.order += 1;
        self.queue.insert((ms, self.order), event.into());
    }

    /// Puts an event off, which keeps its place in the order.
    pub fn put_off(&mut self, ms: u64, order: u64, event: E) {
        self.queue.insert((ms, order), event);
    }

    /// Counts an occurrence that a simulation should meet.
    pub fn saw(&mut self, what: &str) {
        *self.seen.entry(what.to_owned()).or_default() += 1;
    }

    /// Adds a line to the story, if one is kept.
    pub fn say(&self, line: impl FnOnce() -> String) {
        if let Some(story) = &self.story {
            story.borrow_mut().push(format!("{:>8} ms  {}", self.now_ms(), line()));
        }
    }

    pub fn breaks(&mut self, violation: Option<String>) {
        self.violation = self.violation.take().or(violation);
    }

    /// Returns the verdict on a scene that found its violation, or has nothing left to do.
    pub fn verdict(&mut self, is_over: bool) -> Option<Result<(), String>> {
        self.violation.take().map(Err).or(is_over.then_some(Ok(())))
    }

    fn next(&mut self) -> Option<(u64, E)> {
        let ((ms, order), event) = self.queue.pop_first()?;
        self.clock.advance_ms(ms - self.now_ms());
        Some((order, event))
    }
}

/// Source of small random numbers. Biased by less than 2^-50, which no test can see.
pub struct Rng(SeededEntropy);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(SeededEntropy::new(seed))
    }

    /// Returns a number below `n`.
    pub fn below(&self, n: u64) -> u64 {
        self.0.next_u64() % n.max(1)
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns a number of the first span with a probability of `percent` in a hundred, else of the second one.
    pub fn either(&self, percent: u64, first: (u64, u64), second: (u64, u64)) -> u64 {
        let (low, high) = if self.chance(percent) { first } else { second };
        self.between(low, high)
    }

    /// Returns true with a probability of `percent` in a hundred.
    pub fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
