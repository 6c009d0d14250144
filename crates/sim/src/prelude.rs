//! Names that most of the simulator uses: the engine, the store and its rows, and what happens in a world.

pub use outlast_core::{
    call::{Rate, desk, exchange::Frame},
    engine::{Actor, Bill, DeclareDead, Op, Outcome},
    envelope::{Limits, Unit},
    journal::{Entry, Kind, Opening, Payload, Role, State},
    memory::{MemoryStore, Tables},
    run::Life,
    state::Name,
    store::{Durability, Error, Store},
    words::{AttemptNo, Digest, InstanceNo, Micros, RunNo, Seq, Slot},
};

pub use crate::{
    Bug, Engine, Happening, Mood, Outside, Provider, Request, Rng, ToAgent, ToProcess, ToWorker,
    UpstreamRequest, Whose,
};
