//! Measures durable steps: an opening and its synced result each, as the Python package writes them.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use outlast_bench::{begin_step, driver, register, result, start};
use outlast_core::{
    engine::op::{Actor, Op},
    store::{Ask as _, Durability, Store},
    words::id::{RunNo, Seq},
};

/// Result of each step.
const VALUE: [u8; 100] = [42; 100];

/// Number of steps that are read at once where a run is resumed, as the Python package does.
const PAGE: usize = 4096;

/// Records steps in so many runs for some seconds, one thread a run. Returns the steps per second of all.
pub fn rate(store: &dyn Store, runs: usize, seconds: u64) -> f64 {
    let instance = register(store);
    let actors: Vec<Actor> =
        (0..runs).map(|i| driver(store, start(&format!("steps-{runs}-{i}")), instance)).collect();
    let began = Instant::now();
    let steps: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = actors
            .iter()
            .map(|actor| {
                scope.spawn(move || {
                    let mut steps = 0;
                    while began.elapsed() < Duration::from_secs(seconds) {
                        let recording = result(begin_step(store, *actor, steps), &VALUE);
                        store.run_verb(recording, Durability::Synced).expect("recorded");
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

/// Records a run of so many steps, in groups. Returns the time in which all of them are read when it is resumed.
pub fn resume(store: &dyn Store, steps: usize) -> Duration {
    let actor = driver(store, start("resumed"), register(store));
    let mut tickets = VecDeque::new();
    for n in 0..steps {
        let recording = result(begin_step(store, actor, n), &VALUE);
        tickets.push_back(store.submit(Op::from(recording), Durability::Committed));
        if tickets.len() >= 512
            && let Some(first) = tickets.pop_front()
        {
            first.wait().expect("recorded");
        }
    }
    tickets.into_iter().for_each(|ticket| {
        ticket.wait().expect("recorded");
    });
    let began = Instant::now();
    assert_eq!(read(store, actor.run), steps, "all of them are read");
    began.elapsed()
}

fn read(store: &dyn Store, run: RunNo) -> usize {
    let (mut after, mut all) = (Seq(0), 0);
    loop {
        let page = store.steps(run, after, PAGE).expect("read");
        let Some((last, _)) = page.last() else { return all };
        (after, all) = (last.seq, all + page.len());
    }
}
