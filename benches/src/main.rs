//! `make bench`: measures Outlast beside the physical limit and its peers, in one run, on one machine, and writes
//! `docs/benchmarks.md`.
//!
//! Prints ratios to measurements of the same minutes: a raw append + fdatasync loop on a growing file, the provider
//! called directly, nginx in between, a bare loop on PostgreSQL. No figure here is a test; `benches/history.csv` keeps the
//! ratios of each commit.
#![forbid(unsafe_code)]

mod client;
mod history;
mod mcp;
mod peers;
mod postgres;
mod proxy;
mod raw;
mod report;
mod servers;
mod state;
mod stats;
mod steps;
mod store;
mod supervisor;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, word, place, seconds] = args.as_slice()
        && word == "second-writer"
    {
        return store::second_writer(Path::new(place), seconds.parse().unwrap_or(3));
    }
    if let [_, word, place, many] = args.as_slice()
        && word == "many-runs"
    {
        return store::many_runs(Path::new(place), many.parse().unwrap_or(100_000));
    }
    if let [_, word] = args.as_slice()
        && word == "mcp-server"
    {
        return mcp::serve();
    }
    // `outlast-bench state [SECONDS]` measures the state alone; the others likewise.
    const PARTS: [&str; 7] = ["store", "proxy", "postgres", "peers", "mcp", "state", "supervisor"];
    let alone = args.get(1).filter(|word| PARTS.contains(&word.as_str()));
    let seconds: u64 = args.get(1 + usize::from(alone.is_some())).and_then(|s| s.parse().ok()).unwrap_or(4);
    // On the disk of the checkout: fdatasync on a tmpfs measures nothing.
    let base = PathBuf::from("target").join("bench");
    std::fs::create_dir_all(&base).expect("a directory to measure in");
    let dir = tempfile::tempdir_in(&base).expect("a directory to measure in");
    println!("{} s per figure, in {}\n", seconds, base.display());

    servers::adopt_orphans();
    let raw = raw::measure(dir.path(), seconds);
    for part in PARTS.into_iter().filter(|part| alone.is_none_or(|alone| alone == part)) {
        match part {
            "store" => store::measure(dir.path(), seconds, &raw),
            "proxy" => proxy::measure(dir.path(), seconds, &raw),
            "postgres" => postgres::measure(dir.path(), seconds),
            "peers" => peers::measure(),
            "mcp" => mcp::measure(dir.path(), seconds, &raw),
            "state" => state::measure(dir.path(), seconds, &raw),
            "supervisor" => supervisor::measure(dir.path(), seconds),
            other => unreachable!("{other} is no part"),
        }
    }
    let left = servers::end_orphans(Duration::from_secs(5));
    assert!(left.is_empty(), "processes that the measurements left behind, ended now: {left:?}");
    if alone.is_some() {
        return;
    }
    let page = Path::new("docs/benchmarks.md");
    let told = report::write(page, Path::new("benches/history.csv")).expect("the page is written");
    println!("\n{told}\n\nwritten: {}, and its picture beside it", page.display());
}
