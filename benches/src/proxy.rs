//! Measures the proxy, beside the provider called directly and nginx in between.

use std::path::Path;

use crate::{
    client::{Load, Plan, load},
    raw::Raw,
    report::{bar, row, section},
    servers,
    stats::verdict,
};

/// Measures the proxy and prints its figures.
pub fn measure(dir: &Path, seconds: u64, raw: &Raw) {
    section("the proxy (load generator, fake provider and proxy on the same cores)");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let absolute = std::fs::canonicalize(dir).expect("the directory");
    let mock = servers::mock();
    let nginx = servers::nginx(&mock.address, &absolute);
    let litellm = servers::litellm(&mock.address, &absolute);
    let store = absolute.join("proxy.db");
    let ours = servers::serve(&mock.address, &store.to_string_lossy());
    let run =
        |address: &str, connections: usize, tag: &str, attempt: &str, stream: bool, most: u64| -> Load {
            let plan = Plan { address, connections, seconds, tag, run: None, attempt, stream, most };
            runtime.block_on(load(plan))
        };
    let warm = |address: &str| {
        run(address, 8, "warm", "1", false, 200);
    };
    let targets: Vec<(&str, &str)> = [
        Some(("direct", mock.address.as_str())),
        nginx.as_ref().map(|n| ("nginx", n.address.as_str())),
        litellm.as_ref().map(|l| ("LiteLLM", l.address.as_str())),
        Some(("outlast", ours.address.as_str())),
    ]
    .into_iter()
    .flatten()
    .collect();
    if nginx.is_none() {
        println!("nginx is not installed: its rows are missing");
    }
    if litellm.is_none() {
        println!("LiteLLM's proxy is not in .venv-bench (`make bench-python`): its rows are missing");
    }
    let mut direct = [(0.0, 0.0); 2];
    for (i, connections) in [1usize, 64].into_iter().enumerate() {
        for &(name, address) in &targets {
            warm(address);
            let cpu = ours.cpu();
            let mut l = run(address, connections, &format!("{name}{connections}"), "1", false, u64::MAX);
            let (p50, p99) = (l.total.p50(), l.total.p99());
            if name == "direct" {
                direct[i] = (p50, p99);
            }
            match connections {
                1 => bar("One call at a time, p50", "ms", name, p50),
                _ => bar("Calls a second, 64 connections", "/s", name, l.per_second),
            }
            let (added50, added99) = (p50 - direct[i].0, p99 - direct[i].1);
            let mut figures = format!("{:.0}/s  p50 {p50:.3} ms  p99 {p99:.3} ms", l.per_second);
            let mut target = String::new();
            if name != "direct" {
                target = format!("added p50 {added50:+.3} p99 {added99:+.3} ms");
            }
            if name == "outlast" {
                let per_call = (ours.cpu() - cpu).as_secs_f64() * 1e6 / l.calls.max(1) as f64;
                figures.push_str(&format!("  {per_call:.0} us CPU"));
                let (ok, text) = if connections == 1 {
                    let limit = 2.0 * raw.p50_ms + 0.2;
                    (added50 <= limit, format!("{target}; to reach: added {limit:.3}"))
                } else {
                    (l.per_second >= 5000.0, format!("{target}; to reach: 5,000/s"))
                };
                target = verdict(ok, &text);
            }
            row(&format!("{name}, {connections} connection(s)"), &figures, &target);
        }
    }
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    let again = run(&ours.address, 64, "outlast64", "2", false, 50);
    row(
        "replayed by a restarted agent, 64 connections",
        &format!("{:.0}/s  ({} of {} replayed)", again.per_second, again.replayed, again.calls),
        "",
    );
    let mut streams = Vec::new();
    for &(name, address) in &targets {
        let mut l = run(address, 1, &format!("stream-{name}"), "1", true, 400);
        let (first, total) = (l.first.p50(), l.total.p50());
        streams.push((first, total));
        let added = format!("added first {:+.3} total {:+.3} ms", first - streams[0].0, total - streams[0].1);
        row(
            &format!("{name}, a stream of 50 chunks"),
            &format!("first chunk {first:.3} ms  total {total:.3} ms"),
            if name == "direct" { "" } else { &added },
        );
    }
    drop(ours);
    // Opening and closing the store checkpoints the WAL.
    let clock = std::sync::Arc::new(outlast::program::host::SystemClock::new());
    let options = outlast_store::Options {
        durability: outlast_store::Durability::Full,
        clock,
        entropy: std::sync::Arc::new(outlast::program::host::OsEntropy),
        create: false,
        store_wait: outlast_store::STORE_WAIT,
    };
    drop(outlast_store::open(&store.to_string_lossy(), options));
    let calls = entries(&store).max(1);
    row(
        "bytes per call (about 400 asked, 700 answered)",
        &format!("{} of {calls} calls", size(&store) / calls),
        "",
    );
}

fn entries(store: &Path) -> u64 {
    let options = outlast_store::Options {
        durability: outlast_store::Durability::Full,
        clock: std::sync::Arc::new(outlast::program::host::SystemClock::new()),
        entropy: std::sync::Arc::new(outlast::program::host::OsEntropy),
        create: false,
        store_wait: outlast_store::STORE_WAIT,
    };
    let store = outlast_store::open(&store.to_string_lossy(), options).expect("the store opens");
    let all = outlast_core::words::id::Micros(i64::MAX);
    let lines = store.ledger(outlast_core::words::id::Micros(0), all).expect("the ledger");
    lines.iter().map(|l| u64::try_from(l.calls).unwrap_or(0)).sum()
}
