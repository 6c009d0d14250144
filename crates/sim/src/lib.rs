//! The simulator: agents, processes, a provider and a disk in one thread under one clock, all their
//! chances drawn from one seed. It drives the real engine and the real desk, breaks
//! everything around them, and an oracle checks the invariants of ARCHITECTURE.md after every step.
//!
//! A seed that fails fails again: `OUTLAST_SIM_SEED=n cargo nextest run -p outlast-sim one_seed`
//! prints its whole story. `OUTLAST_SIM_SEEDS` sets how many are tried.
//!
//! Read from `world` (what happens when) to `process` (a server: the host of a desk),
//! `agent` (who asks), `provider` (who answers and bills), `store` (what fails) and `oracle`.

pub mod agent;
pub mod oracle;
pub mod planted;
pub mod process;
pub mod provider;
pub mod rng;
pub mod scene;
pub mod store;
pub mod world;

pub use world::{Outcome, run};

/// A defect to plant: the oracle has to find each one, or it is worth nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The end of an answer is shown when its settlement is submitted, not when it is durable.
    ShownBeforeDurable,
    /// Requests are matched without their scope.
    ScopeIgnored,
    /// A call is sent again when that is submitted, not when it is durable.
    TriedBeforeDurable,
    /// Admission is decided on what was read before the transaction.
    StaleAdmission,
    /// A client that left keeps its answer until its driver gets to it.
    LeftUnnoticed,
    /// The desk does not know that a delivery mark is under way.
    MarkForgotten,
    /// The desk knows of the mark, and decides identical requests all the same.
    MarkIgnored,
    /// The void of a call that was never sent is tried once.
    VoidTriedOnce,
    /// What an upstream was asked within the last minute is forgotten.
    RateForgotten,
}
