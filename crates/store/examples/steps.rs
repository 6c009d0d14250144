//! Measures steps per second in a store, for one run and for 64 runs of one process.
//!
//!   cargo run -p outlast-store --example steps -- postgres://… [seconds]
//!
//! A step is an opening and its synced result, as the Python package writes them.
#![allow(clippy::expect_used)]

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use outlast_core::{
    engine::{
        actor::Actor,
        op::{Op, Outcome},
        run::{
            claim::{Claim, Claimed},
            register::Register,
            start::Start,
        },
        step::{
            begin_step::{BeginStep, Step},
            record::Record,
        },
    },
    journal::{Opening, iteration_scope, payload::Payload},
    run::instance::Identity,
    store::{Ask as _, Durability, Store},
    words::{
        clock::{Clock, Entropy, ManualClock, SeededEntropy},
        id::{Micros, RunId, Slot},
    },
};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let place = arguments.first().expect("wanted the store's address as the first argument");
    let seconds = arguments.get(1).map_or(3, |text| text.parse().expect("wanted seconds"));
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Micros(since_epoch.as_micros() as i64)));
    let entropy: Arc<dyn Entropy> = Arc::new(SeededEntropy::new(since_epoch.as_nanos() as u64));
    let options = outlast_store::Options {
        durability: outlast_store::Durability::Full,
        clock,
        entropy,
        create: true,
        store_wait: outlast_store::STORE_WAIT,
    };
    let store = outlast_store::open(place, options).expect("the store opens");
    let tag = since_epoch.as_millis();
    for runs in [1, 64] {
        let actors: Vec<Actor> =
            (0..runs).map(|i| driver(&*store, &format!("steps-{tag}-{runs}-{i}"))).collect();
        let rate = hammer(&*store, &actors, Duration::from_secs(seconds));
        println!("{runs} runs: {rate:.0} steps/s");
    }
}

fn driver(store: &dyn Store, id: &str) -> Actor {
    let register = Register { identity: Identity::default() };
    let instance = store.run_verb(register, Durability::Synced).expect("registered");
    let start = Start::new(RunId::new(id).expect("an id"));
    let run = store.run_verb(start, Durability::Synced).expect("started").run;
    let claim = Claim { run, slot: Slot::DRIVER, instance, label: None, fresh: false, restart: false };
    match store.run_verb(claim, Durability::Synced).expect("claimed") {
        Claimed::Attempt { attempt, .. } => Actor { run, attempt, instance },
        Claimed::Refused(refused) => panic!("{}", refused.message()),
    }
}

/// Records steps in all runs for `time`, one thread a run. Returns the steps per second of all.
fn hammer(store: &dyn Store, actors: &[Actor], time: Duration) -> f64 {
    let began = Instant::now();
    let steps: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = actors
            .iter()
            .map(|actor| {
                scope.spawn(move || {
                    let mut steps = 0;
                    while began.elapsed() < time {
                        step(store, *actor, &format!("step {steps}"));
                        steps += 1;
                    }
                    steps
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a run's thread")).sum()
    });
    steps as f64 / began.elapsed().as_secs_f64()
}

fn step(store: &dyn Store, actor: Actor, key: &str) {
    let begin = BeginStep {
        actor,
        slot: Slot::DRIVER,
        scope: iteration_scope(1).into(),
        key: key.into(),
        within: None,
        retries: false,
        at_most_once: false,
    };
    let opening = open(store, begin);
    let value = Payload::encode(&[42; 100]);
    let record = Record { opening, value, failed: false, again: false, changes: Vec::new() };
    store.run_verb(record, Durability::Synced).expect("recorded");
}

/// Begins the step, ahead of its commit where the store can.
fn open(store: &dyn Store, begin: BeginStep) -> Opening {
    let outcome = match store.ahead(Op::from(begin)) {
        Ok(outcome) => outcome,
        Err(op) => store.submit_here(op, Durability::Committed).wait(),
    };
    match outcome.expect("begun") {
        Outcome::Begun(Step::Run { opening, .. }) => opening,
        other => panic!("{other:?}"),
    }
}
