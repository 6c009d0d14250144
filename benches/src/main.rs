//! `make bench`: measures Outlast beside the physical limit and its peers, in one run, on one machine, and writes
//! `docs/benchmarks.md`.
//!
//! Prints ratios to measurements of the same minutes: a raw append + fdatasync loop on a growing file, the provider
//! called directly, nginx in between, a bare loop on PostgreSQL. No figure here is a test.
#![forbid(unsafe_code)]

mod client;
mod mcp;
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

use std::path::{Path, PathBuf};

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
    // `outlast-bench state [SECONDS]` measures the state alone; `store`, `supervisor`, `proxy`, `postgres` and `mcp` likewise.
    let alone = args
        .get(1)
        .filter(|word| ["store", "state", "supervisor", "proxy", "postgres", "mcp"].contains(&word.as_str()));
    let seconds: u64 = args.get(1 + usize::from(alone.is_some())).and_then(|s| s.parse().ok()).unwrap_or(4);
    // On the disk of the checkout: fdatasync on a tmpfs measures nothing.
    let base = PathBuf::from("target").join("bench");
    std::fs::create_dir_all(&base).expect("a directory to measure in");
    let dir = tempfile::tempdir_in(&base).expect("a directory to measure in");
    println!("{} s per figure, in {}\n", seconds, base.display());

    match alone.map(String::as_str) {
        Some("store") => return store::measure(dir.path(), seconds, &raw::measure(dir.path(), seconds)),
        Some("state") => return state::measure(dir.path(), seconds),
        Some("supervisor") => return supervisor::measure(dir.path(), seconds),
        Some("proxy") => return proxy::measure(dir.path(), seconds, &raw::measure(dir.path(), seconds)),
        Some("postgres") => return postgres::measure(dir.path(), seconds),
        Some("mcp") => return mcp::measure(dir.path(), seconds, &raw::measure(dir.path(), seconds)),
        _ => {}
    }
    let raw = raw::measure(dir.path(), seconds);
    store::measure(dir.path(), seconds, &raw);
    proxy::measure(dir.path(), seconds, &raw);
    postgres::measure(dir.path(), seconds);
    mcp::measure(dir.path(), seconds, &raw);
    state::measure(dir.path(), seconds);
    supervisor::measure(dir.path(), seconds);
    let page = Path::new("docs/benchmarks.md");
    report::write(page).expect("the page is written");
    println!("\nwritten: {}, and its picture beside it", page.display());
}
