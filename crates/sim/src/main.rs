//! `outlast-sim SEEDS [FROM]` plays many seeds on all cores, and prints the rate, what was met, and what failed.
//! `outlast-sim story SEED` tells one seed's story. `outlast-sim trace FILE…` checks traces of real stores (`trace`).

use std::process::ExitCode;

use outlast_sim::{many, run, trace};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    match (arguments.first().map(String::as_str), number(0), number(1)) {
        (Some("story"), _, Some(seed)) => story(seed),
        (Some("trace"), ..) if arguments.len() > 1 => traces(&arguments[1..]),
        (_, Some(seeds), from) => play(seeds, from.unwrap_or(0)),
        _ => {
            eprintln!("usage: outlast-sim SEEDS [FROM], outlast-sim story SEED, or outlast-sim trace FILE…");
            ExitCode::from(2)
        }
    }
}

/// Checks each trace, and prints the acts that it had, or the row that the model does not allow.
fn traces(files: &[String]) -> ExitCode {
    let mut refused = false;
    for file in files {
        let checked = std::fs::read_to_string(file).map_err(|e| e.to_string());
        match checked.and_then(|text| trace::check(&text).map_err(|e| e.to_string())) {
            Ok(acts) => println!("{file}: {acts} acts"),
            Err(what) => {
                refused = true;
                println!("{file}: {what}");
            }
        }
    }
    ExitCode::from(u8::from(refused))
}

fn play(seeds: u64, from: u64) -> ExitCode {
    let played = many::play(from..from + seeds);
    played.seen.iter().for_each(|(what, n)| println!("{n:>10}  {what}"));
    println!(
        "{} seeds in {:.1} s: {:.0} seeds/s",
        played.seeds,
        played.took.as_secs_f64(),
        played.per_second()
    );
    println!("the longest world came to rest after {} s", played.longest_ms / 1000);
    for (seed, what) in &played.failed {
        println!("seed {seed}: {what}\n  its story: outlast-sim story {seed}");
    }
    ExitCode::from(u8::from(!played.failed.is_empty()))
}

fn story(seed: u64) -> ExitCode {
    let outcome = run(seed, None, true);
    outcome.story.iter().chain(&outcome.violation).for_each(|line| println!("{line}"));
    ExitCode::from(u8::from(outcome.violation.is_some()))
}
