//! Shared by the benches and the examples: the store, a run with its driver, and a step as the Python package records it.
#![forbid(unsafe_code)]

use std::sync::Arc;

use outlast::program::host::{OsEntropy, SystemClock};
use outlast_core::{
    engine::{
        op::{Actor, Op, Outcome},
        run::{
            claim::{Claim, Claimed},
            process::Register,
            start::Start,
        },
        step::{BeginStep, Record, Step},
    },
    journal::{Opening, iteration_scope, payload::Payload},
    run::instance::Identity,
    store::{Ask as _, Durability, Store},
    words::id::{InstanceNo, RunId, Slot},
};

/// Opens the store at `place`, a path or a URL.
pub fn open_at(place: &str) -> Arc<dyn Store> {
    let options = outlast_store::Options {
        durability: outlast_store::Durability::Full,
        clock: Arc::new(SystemClock::new()),
        entropy: Arc::new(OsEntropy),
        create: true,
        store_wait: outlast_store::STORE_WAIT,
    };
    outlast_store::open(place, options).expect("the store opens")
}

/// Registers this process.
pub fn register(store: &dyn Store) -> InstanceNo {
    store.ask(Register { identity: Identity::default() }, Durability::Synced).wait().expect("registered")
}

/// Returns the start of a run of this id.
pub fn start(id: &str) -> Start {
    Start::new(RunId::new(id).expect("an id"))
}

/// Starts a run, and claims it for this process.
pub fn driver(store: &dyn Store, start: Start, instance: InstanceNo) -> Actor {
    let run = store.ask(start, Durability::Synced).wait().expect("started").run;
    let claim = Claim { run, slot: Slot::DRIVER, instance, label: None, fresh: false, restart: false };
    match store.ask(claim, Durability::Synced).wait().expect("claimed") {
        Claimed::Attempt { attempt, .. } => Actor { run, attempt, instance },
        Claimed::Refused(r) => panic!("{}", r.message()),
    }
}

/// Begins the step of this number, ahead of its commit where the store can.
pub fn begin_step(store: &dyn Store, actor: Actor, n: usize) -> Opening {
    let begin = BeginStep {
        actor,
        slot: Slot::DRIVER,
        scope: iteration_scope(1),
        key: format!("step {n}"),
        within: None,
        retries: false,
        at_most_once: false,
    };
    let outcome = match store.ahead(Op::from(begin)) {
        Ok(outcome) => outcome,
        Err(op) => store.submit_here(op, Durability::Committed).wait(),
    };
    match outcome.expect("begun") {
        Outcome::Begun(Step::Run { opening, .. }) => opening,
        other => panic!("{other:?}"),
    }
}

/// Returns the recording of a step's result.
pub fn result(opening: Opening, value: &[u8]) -> Record {
    Record { opening, value: Payload::encode(value), failed: false, again: false, changes: Vec::new() }
}
