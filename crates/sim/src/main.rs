//! `outlast-sim SEEDS [FROM]` plays many seeds on all cores, and prints the rate, what was met, and what failed.
//! `outlast-sim story SEED` tells one seed's story.

use std::{
    collections::BTreeMap,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use outlast_sim::run;

/// Number of failing seeds after which the rest is not played.
const ENOUGH: usize = 20;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if let (Some("story"), Some(Ok(seed))) =
        (arguments.next().as_deref(), arguments.next().map(|n| n.parse()))
    {
        let outcome = run(seed, None, true);
        outcome.story.iter().chain(&outcome.violation).for_each(|line| println!("{line}"));
        return ExitCode::from(u8::from(outcome.violation.is_some()));
    }
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let (Some(Ok(seeds)), from) = (numbers.next(), numbers.next().and_then(Result::ok).unwrap_or(0)) else {
        eprintln!("usage: outlast-sim SEEDS [FROM], or outlast-sim story SEED");
        return ExitCode::from(2);
    };
    let next = AtomicU64::new(from);
    let result: Mutex<(BTreeMap<String, u64>, Vec<String>)> = Mutex::default();
    let began = Instant::now();
    let play = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let enough = result.lock().unwrap_or_else(PoisonError::into_inner).1.len() >= ENOUGH;
            if seed >= from + seeds || enough {
                return;
            }
            let played = std::panic::catch_unwind(|| run(seed, None, false));
            let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
            let (seen, failed) = &mut *result;
            match played {
                Ok(outcome) => {
                    outcome.seen.into_iter().for_each(|(what, n)| *seen.entry(what).or_default() += n);
                    failed.extend(outcome.violation.map(|what| format!("seed {seed}: {what}")));
                }
                Err(_) => failed.push(format!("seed {seed}: panicked")),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(play);
        }
    });
    let (seen, failed) = result.into_inner().unwrap_or_else(PoisonError::into_inner);
    let played = next.load(Ordering::Relaxed).min(from + seeds) - from;
    let took = began.elapsed().as_secs_f64();
    seen.iter().for_each(|(what, n)| println!("{n:>10}  {what}"));
    println!("{played} seeds in {took:.1} s: {:.0} seeds/s", played as f64 / took);
    failed.iter().for_each(|line| println!("{line}"));
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("hint: `{} story SEED` tells a seed's story", std::env::args().next().unwrap_or_default());
    ExitCode::FAILURE
}
