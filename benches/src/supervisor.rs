//! The supervisor: what it adds to a short command, how soon a dead agent is back, what it costs while the
//! agent works by itself.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    servers::{Server, outlast},
    stats::{Samples, row, verdict},
};

const RUNS: usize = 20;

pub fn measure(dir: &Path, seconds: u64) {
    println!("\n-- the supervisor");
    overhead(dir);
    restart(dir);
    at_rest(dir, seconds);
}

fn run(dir: &Path, flags: &[&str], script: &str) -> Command {
    let mut command = outlast();
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").arg("run").args(flags);
    command.arg("--store").arg(dir.join("supervisor.db")).args(["--", "sh", "-c", script]);
    command
}

/// `outlast run -- sh -c true` over `sh -c true`.
fn overhead(dir: &Path) {
    let median = |mut command: Command| {
        let mut samples = Samples::default();
        for _ in 0..RUNS {
            let began = Instant::now();
            let status = command.status();
            samples.add(began.elapsed());
            assert!(status.is_ok_and(|s| s.success()), "a command that ends well");
        }
        samples.p50()
    };
    let mut direct = Command::new("sh");
    direct.args(["-c", "true"]);
    let direct = median(direct);
    // The store is there after the first.
    let _ = run(dir, &["--new"], "true").status();
    let ours = median(run(dir, &["--new"], "true"));
    let over = ours - direct;
    let figures = format!("{ours:.1} ms, {direct:.1} ms without: {over:.1} ms");
    row("a short command, median of 20", &figures, &verdict(over <= 15.0, "<= 15 ms more"));
}

/// From an agent's death to its next attempt's start, as the agents see it; the backoff is taken off.
fn restart(dir: &Path) {
    let times = dir.join("lives");
    // Each life writes when it begins, and when it is about to kill itself.
    let script = format!(
        "date +%s%N >> {0}; [ $(wc -l < {0}) -ge 8 ] && exit 0; date +%s%N >> {0}; kill -9 $$",
        times.display()
    );
    let out = run(dir, &["--new"], &script).stderr(std::process::Stdio::piped()).output();
    let said = out.map(|o| String::from_utf8_lossy(&o.stderr).into_owned()).unwrap_or_default();
    let waits = said.lines().filter(|l| l.contains("; starting attempt")).map(|line| {
        let wait = line.rsplit_once(" in ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        wait.unwrap_or(0.0_f64) * 1e3
    });
    let text = fs::read_to_string(&times).unwrap_or_default();
    let at: Vec<f64> = text.lines().filter_map(|l| l.trim().parse().ok()).map(|ns: f64| ns / 1e6).collect();
    let gaps = at.chunks(2).zip(at.chunks(2).skip(1)).filter_map(|(a, b)| Some(b.first()? - a.get(1)?));
    let mut samples = Samples::default();
    for (gap, wait) in gaps.zip(waits) {
        // What is said of the wait is rounded to a tenth of a second.
        samples.add(Duration::from_secs_f64((gap - wait).max(0.0) / 1e3));
    }
    let figures = format!("p50 {:.0} ms, +-50 ms ({} restarts)", samples.p50(), samples.len());
    row("death to next attempt, without the backoff", &figures, "<= 20 ms");
}

/// An agent that sleeps: processor time and memory of its supervisor.
fn at_rest(dir: &Path, seconds: u64) {
    let up = dir.join("up");
    let script = format!(": > {}; exec sleep 600", up.display());
    let child = run(dir, &["--new"], &script).spawn().expect("outlast run");
    let supervisor = Server::of(child);
    let until = Instant::now() + Duration::from_secs(10);
    while !up.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_secs(1));
    let before = supervisor.cpu();
    std::thread::sleep(Duration::from_secs(seconds.max(5)));
    let used = (supervisor.cpu() - before).as_secs_f64() / seconds.max(5) as f64 * 100.0;
    row(
        "its processor time beside a sleeping agent",
        &format!("{used:.2} %"),
        &verdict(used < 1.0, "about 0"),
    );
    let mib = supervisor.rss_kib() as f64 / 1024.0;
    row("its memory (RSS)", &format!("{mib:.1} MiB"), &verdict(mib <= 25.0, "<= 25 MiB"));
}
