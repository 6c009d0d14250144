//! Simulator: agents, processes, a provider and a disk in one thread under one clock, with all random choices drawn
//! from one seed. It drives the real engine and the real desk and breaks everything around them, while an oracle
//! checks the invariants of ARCHITECTURE.md after every step.
//!
//! A failing seed fails again: `OUTLAST_SIM_SEED=n cargo nextest run -p outlast-sim one_seed` prints its whole
//! story. `OUTLAST_SIM_SEEDS` sets how many seeds are tried.
//!
//! Read from `world` (the clock and its queue of events) to `process` (a server that hosts a desk), `agent`
//! (the requests), `provider` (answers and bills), `store` (failures) and `oracle`. Processes, agents and workers do
//! not import each other: they send events (`happening`) through what surrounds them (`outside`). `login` is a world of its
//! own, with the plans of subscriptions and holds, and so is `shares`, with limits of a provider over several servers; a
//! seed in three plays them too (`seed`).
#![forbid(unsafe_code)]

pub mod agent;
pub mod backend;
pub mod bug;
pub mod happening;
pub mod login;
pub mod many;
pub mod oracle;
pub mod outside;
pub mod person;
pub mod planted;
pub mod process;
pub mod program;
pub mod provider;
pub mod rng;
pub mod scene;
pub mod seed;
pub mod shares;
pub mod store;
pub mod worker;
pub mod world;

pub use bug::Bug;
pub use seed::run;
pub use world::Outcome;
