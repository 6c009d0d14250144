//! Measures the store alone: commits per second, a second process, opening.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use outlast_bench::{driver, open_at, register, start};
use outlast_core::{
    engine::{
        checkpoint::{Checkpoint, Name},
        op::Actor,
        run::{
            claim::Claim,
            tell::{Tell, Word},
        },
    },
    envelope,
    journal::payload::Payload,
    store::{Ask as _, Durability, Store},
    words::id::{InstanceNo, RunId, Slot},
};

use crate::{
    raw::Raw,
    report::{Row, Unit, section},
    stats::Samples,
};

fn open(path: &Path) -> Arc<dyn Store> {
    open_at(&path.to_string_lossy())
}

/// Commits one synced operation: an entry, its 100-byte payload, the run's row.
fn commit(store: &dyn Store, actor: Actor, value: &Payload) {
    let save = Checkpoint { actor, slot: Slot::DRIVER, name: Name::default(), value: value.clone() };
    store.run_verb(save, Durability::Synced).expect("committed");
}

fn hammer(
    store: &Arc<dyn Store>,
    instance: InstanceNo,
    callers: usize,
    runs: usize,
    seconds: u64,
    tag: &str,
) -> (f64, Samples) {
    let drivers: Vec<Actor> =
        (0..runs).map(|i| driver(store.as_ref(), start(&format!("{tag}-{i}")), instance)).collect();
    let actors: Vec<Actor> = (0..callers).map(|i| drivers[i % runs]).collect();
    let began = Instant::now();
    let until = began + Duration::from_secs(seconds);
    let mut all = Samples::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = actors
            .into_iter()
            .map(|actor| {
                scope.spawn(move || {
                    let value = Payload::encode(&[42; 100]);
                    let mut samples = Samples::default();
                    while Instant::now() < until {
                        let one = Instant::now();
                        commit(store.as_ref(), actor, &value);
                        samples.add(one.elapsed());
                    }
                    samples
                })
            })
            .collect();
        for t in threads {
            all.extend(t.join().expect("a caller"));
        }
    });
    (all.len() as f64 / began.elapsed().as_secs_f64(), all)
}

/// Adds runs as a long-lived store has them to the store at `path`, for `scripts/page-figures.mjs`: named, tagged, nearly
/// all of them over.
pub fn many_runs(path: &Path, many: usize) {
    let store = open(path);
    let kinds = ["nightly report", "triage", "refactoring", "research", "mail"];
    for from in (0..many).step_by(1000) {
        let starts: Vec<_> = (from..many.min(from + 1000))
            .map(|n| {
                let mut start = start(&format!("run-{n}"));
                start.limits[envelope::Unit::CostNanoUsd] = Some(5_000_000_000);
                start.spec.name = Some(format!("{} {n}", kinds[n % kinds.len()]));
                start.spec.tags = [("team".to_owned(), format!("team-{}", n % 7))].into();
                (n, store.ask(start, Durability::Lazy))
            })
            .collect();
        let told = starts.into_iter().map(|(n, started)| {
            let run = started.wait().expect("started").run;
            let word = match n % 100 {
                0 => return None,
                n if n < 12 => Word::Cancel { reason: Some("not wanted any more".into()) },
                _ => Word::Complete,
            };
            Some(store.ask(Tell { run, word }, Durability::Lazy))
        });
        let told: Vec<_> = told.collect();
        told.into_iter().flatten().for_each(|told| {
            told.wait().expect("told");
        });
    }
    store.ask(start("the-last"), Durability::Synced).wait().expect("started");
}

/// Measures the store and prints its figures.
pub fn measure(dir: &Path, seconds: u64, raw: &Raw) {
    section("the store (SQLite, durability full)");
    let path = dir.join("store.db");
    let store = open(&path);
    let instance = register(store.as_ref());
    let (one, mut samples) = hammer(&store, instance, 1, 1, seconds, "a");
    let limited = |row: Row| row.limit("append + fdatasync", raw.per_second);
    limited(Row::new("commits, 1 caller", Unit::PerSecond, one))
        .note(format!("p50 {:.3} ms", samples.p50()))
        .least_of_limit(0.9)
        .tell();
    for (what, runs, tag) in [("64 callers of one run", 1, "b"), ("64 callers, each its own run", 64, "d")] {
        let (many, mut samples) = hammer(&store, instance, 64, runs, seconds, tag);
        limited(Row::new(format!("commits, {what}"), Unit::PerSecond, many))
            .note(format!("p50 {:.3} ms, p99 {:.3} ms", samples.p50(), samples.p99()))
            .reach(25_000.0)
            .tell();
    }
    let me = std::env::current_exe().expect("this program");
    let child = Command::new(me)
        .args(["second-writer", &path.to_string_lossy(), &seconds.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a second process");
    let (busy, _) = hammer(&store, instance, 16, 16, seconds + 1, "c");
    let said = child.wait_with_output().expect("the second process");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let p50 = said.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(f64::NAN);
    Row::new("a commit of a second process meanwhile, p50", Unit::Ms, p50)
        .limit("append + fdatasync", raw.p50_ms)
        .note(format!("{}; the first: {busy:.0}/s, 16 callers", said.trim()))
        .tell();
    drop(store);
    opening(dir);
}

/// Runs the second process: commits every 5 ms and reports how long each took.
pub fn second_writer(path: &Path, seconds: u64) {
    let store = open(path);
    let instance = register(store.as_ref());
    let actor = driver(store.as_ref(), start("second"), instance);
    let value = Payload::encode(&[1; 100]);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut samples = Samples::default();
    while Instant::now() < until {
        let one = Instant::now();
        commit(store.as_ref(), actor, &value);
        samples.add(one.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("{:.3} ms, p99 {:.2} ms", samples.p50(), samples.p99());
}

fn opening(dir: &Path) {
    let path = dir.join("many.db");
    let store = open(&path);
    let instance = register(store.as_ref());
    let mut tickets = std::collections::VecDeque::new();
    for i in 0..100_000 {
        tickets.push_back(store.ask(start(&format!("run-{i}")), Durability::Committed));
        if tickets.len() >= 512
            && let Some(t) = tickets.pop_front()
        {
            t.wait().expect("started");
        }
    }
    for t in tickets {
        t.wait().expect("started");
    }
    let actor = driver(store.as_ref(), start("run-50000"), instance);
    commit(store.as_ref(), actor, &Payload::encode(b"x"));
    drop(store);
    let mut open_ms = Samples::default();
    let mut resume_ms = Samples::default();
    for i in 0..5 {
        let began = Instant::now();
        let store = open(&path);
        open_ms.add(began.elapsed());
        let instance = register(store.as_ref());
        let began = Instant::now();
        let id = RunId::new(&format!("run-{}", 70_000 + i)).expect("an id");
        let no = store.run_no(&id).expect("read").expect("there");
        let claim =
            Claim { run: no, slot: Slot::DRIVER, instance, label: None, fresh: false, restart: false };
        store.ask(claim, Durability::Synced).wait().expect("claimed");
        resume_ms.add(began.elapsed());
    }
    // A peer took 3,300 ms.
    Row::new("opening a store of 100,000 runs", Unit::Ms, open_ms.p50())
        .note(format!("claiming one of them {:.2} ms", resume_ms.p50()))
        .reach(10.0)
        .tell();
}
