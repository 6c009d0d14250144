//! Simulator: agents, processes, a provider and a disk in one thread under one clock, with all random choices drawn
//! from one seed. It drives the real engine and the real desk and breaks everything around them, while an oracle
//! checks the invariants of ARCHITECTURE.md after every step.
//!
//! A failing seed fails again: `OUTLAST_SIM_SEED=n cargo nextest run -p outlast-sim one_seed` prints its whole
//! story. `OUTLAST_SIM_SEEDS` sets how many seeds are tried.
//!
//! Read from `engine` (the clock, the queue of events, the story) to the scenes that are played on it. `world` is the scene of
//! agents: `process` (a server that hosts a desk), `agent` (the requests), `provider` (answers and bills), `backend`
//! (failures) and `oracle`. Processes, agents and workers do not import each other: they send events (`happening`) through
//! what surrounds them (`outside`). `login`, with the plans of subscriptions and holds, and `shares`, with limits of a
//! provider over several servers, are scenes of servers without a desk (`fleet`); a seed in three plays them too (`many`).
#![forbid(unsafe_code)]

mod prelude;

pub mod agent;
pub mod backend;
pub mod bug;
pub mod engine;
pub mod fleet;
pub mod happening;
pub mod login;
pub mod many;
pub mod oracle;
pub mod outside;
pub mod person;
pub mod process;
pub mod program;
pub mod provider;
pub mod setup;
pub mod shares;
pub mod trace;
pub mod worker;
pub mod world;

pub use self::{
    agent::Agent,
    backend::{Fault, FaultStore, Why, resolved},
    bug::{Bug, Planted},
    engine::{AN_HOUR, Engine, Outcome, Play, Rng, Scene, play},
    fleet::{Fleet, Server, ServerEvent},
    happening::{Credential, Happening, How, Logical, Request, Runs, ToAgent, ToProcess, ToWorker, Whose},
    many::run,
    oracle::Oracle,
    outside::{Outside, draw_fault},
    process::Process,
    program::{Ask, Mood, Program, Task, ToolCall, Waves},
    provider::{PING_MS, Piece, Provider, UpstreamRequest},
    setup::{Cast, Setup, Trouble},
    worker::Worker,
};
