//! Measures the proxy, beside the provider called directly and nginx in between.

use std::path::Path;

use crate::{
    client::{Load, Plan, load},
    raw::Raw,
    report::{Row, Unit, section},
    servers::{self, Server},
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
    let targets: Vec<(&str, &Server)> = [
        Some(("direct", &mock)),
        nginx.as_ref().map(|nginx| ("nginx", nginx)),
        litellm.as_ref().map(|litellm| ("LiteLLM", litellm)),
        Some(("outlast", &ours)),
    ]
    .into_iter()
    .flatten()
    .collect();
    if nginx.is_none() {
        println!("nginx is not installed: what is limited by it has no ratio");
    }
    if litellm.is_none() {
        println!(
            "LiteLLM's proxy is not in .venv-bench (`make bench` installs it): it is no peer of this run"
        );
    }
    let mut rate_of_nginx = None;
    for connections in [1usize, 64] {
        let mut measured = Vec::new();
        for &(name, server) in &targets {
            warm(&server.address);
            let cpu = server.cpu();
            let tag = format!("{name}{connections}");
            let mut load = run(&server.address, connections, &tag, "1", false, u64::MAX);
            let cpu_us = (server.cpu() - cpu).as_secs_f64() * 1e6 / load.calls.max(1) as f64;
            let (p50, p99) = (load.total.p50(), load.total.p99());
            measured.push((name, Figures { per_second: load.per_second, p50, p99, cpu_us }));
        }
        let of = |name: &str| measured.iter().find(|(of, _)| *of == name).map(|(_, figures)| *figures);
        let (Some(ours), Some(direct)) = (of("outlast"), of("direct")) else { return };
        let beside = |what: String, unit: Unit, figure: fn(&Figures) -> f64| {
            let row = Row::new(what, unit, figure(&ours));
            let row = match of("nginx") {
                Some(nginx) => row.limit("nginx", figure(&nginx)),
                None => row,
            };
            match of("LiteLLM") {
                Some(litellm) => row.peer("LiteLLM", figure(&litellm)),
                None => row,
            }
        };
        let note = format!(
            "p50 {:.3} ms, p99 {:.3} ms; direct {:.3}, {:.3}",
            ours.p50, ours.p99, direct.p50, direct.p99
        );
        if connections == 1 {
            let (added, most) = (ours.p50 - direct.p50, 2.0 * raw.p50_ms + 0.15);
            let row = beside("a proxied call, 1 connection, p50".into(), Unit::Ms, |f| f.p50);
            let goal = format!("added {added:.3} of {most:.3} ms: 2 x fdatasync + 0.15");
            row.note(format!("{:.0}/s, {note}", ours.per_second)).goal(added <= most, &goal).tell();
        } else {
            let row = beside("proxied calls, 64 connections".into(), Unit::PerSecond, |f| f.per_second);
            row.note(note).reach(5_000.0).tell();
            rate_of_nginx = of("nginx").map(|nginx| nginx.per_second);
        }
        let what = format!("processor time of a proxied call, {connections} connection(s)");
        beside(what, Unit::CpuUs, |f| f.cpu_us).reach(if connections == 1 { 300.0 } else { 130.0 }).tell();
    }
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    let again = run(&ours.address, 64, "outlast64", "2", false, 50);
    let row =
        Row::new("calls replayed to a restarted agent, 64 connections", Unit::PerSecond, again.per_second)
            .note(format!("{} of {} replayed", again.replayed, again.calls));
    match rate_of_nginx {
        Some(rate) => row.limit("nginx, new calls", rate).tell(),
        None => row.tell(),
    }
    let mut streams = Vec::new();
    for &(name, server) in &targets {
        let mut load = run(&server.address, 1, &format!("stream-{name}"), "1", true, 400);
        streams.push((name, [load.first.p50(), load.total.p50()]));
    }
    for (i, what) in
        ["a stream of 50 chunks, its first", "a stream of 50 chunks, all of it"].into_iter().enumerate()
    {
        let of = |name: &str| streams.iter().find(|(of, _)| *of == name).map(|(_, took)| took[i]);
        let (Some(ours), Some(direct)) = (of("outlast"), of("direct")) else { continue };
        let mut row = Row::new(what, Unit::Ms, ours).note(format!("direct {direct:.3} ms"));
        if let Some(nginx) = of("nginx") {
            row = row.limit("nginx", nginx);
        }
        if let Some(litellm) = of("LiteLLM") {
            row = row.peer("LiteLLM", litellm);
        }
        row.tell();
    }
    drop(ours);
    // Opening and closing the store checkpoints the WAL.
    let opened = outlast_bench::open_at(&store.to_string_lossy());
    let all = outlast_core::words::id::Micros(i64::MAX);
    let lines = opened.ledger(outlast_core::words::id::Micros(0), all).expect("the ledger");
    let calls: u64 = lines.iter().map(|l| u64::try_from(l.calls).unwrap_or(0)).sum();
    drop(opened);
    Row::new("bytes kept of a call", Unit::Bytes, (size(&store) / calls.max(1)) as f64)
        .limit("asked and answered", 1_100.0)
        .note(format!("{calls} calls"))
        .tell();
}

/// Figures of one server under one load: calls a second, milliseconds of one, and its processor time a call.
#[derive(Clone, Copy)]
struct Figures {
    per_second: f64,
    p50: f64,
    p99: f64,
    cpu_us: f64,
}
