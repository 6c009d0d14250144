//! Measures the supervisor: its overhead on a short command, the restart of a dead agent, its cost while the agent
//! works.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    report::{Row, Unit, section},
    servers::{Server, outlast},
    stats::Samples,
};

const RUNS: usize = 20;

pub fn measure(dir: &Path, seconds: u64) {
    section("the supervisor");
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

/// Compares `outlast run -- sh -c true` with `sh -c true`.
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
    // The first run creates the store.
    let _ = run(dir, &["--new"], "true").status();
    let ours = median(run(dir, &["--new"], "true"));
    let over = ours - direct;
    Row::new("`outlast run` of a short command", Unit::Ms, ours)
        .limit("the command alone", direct)
        .goal(over <= 15.0, &format!("added {over:.1} of 15 ms"))
        .tell();
}

/// Measures the time from a seen death to the next attempt's start, as the supervisor logs it, less the backoff.
/// The agent dies eight times; the task's context advances each time, so that this is no crash loop.
fn restart(dir: &Path) {
    for (what, leaves) in [("", ""), (", two orphans to end", "sleep 600 & setsid sleep 600 & sleep 0.05;")] {
        let lives = dir.join(format!("lives{}", leaves.len()));
        let script = format!(
            "echo x >> {0}; n=$(wc -l < {0}); [ $n -ge 9 ] && exit 0; \"$PROGRAM\" ctx set life=$n; {leaves} kill -9 $$",
            lives.display(),
        );
        let mut again = run(dir, &["--new"], &script);
        again.env("PROGRAM", outlast().get_program());
        let out = again.env("OUTLAST_LOG", "outlast=info").stderr(std::process::Stdio::piped()).output();
        let said = out.map(|o| String::from_utf8_lossy(&o.stderr).into_owned()).unwrap_or_default();
        let mut samples = Samples::default();
        for took in said.lines().filter(|line| line.contains("started again")) {
            let us = took.split_whitespace().find_map(|word| word.strip_prefix("took_us=")?.parse().ok());
            samples.add(Duration::from_micros(us.unwrap_or(u64::MAX)));
        }
        assert!(samples.len() > 0, "the supervisor tells how long a restart took: {said}");
        Row::new(format!("death seen to next attempt{what}"), Unit::Ms, samples.p50())
            .note(format!("most {:.1} ms of {}; without the backoff", samples.quantile(1.0), samples.len()))
            .reach(20.0)
            .tell();
    }
}

/// Measures the supervisor's CPU time and memory while its agent sleeps.
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
    Row::new("the supervisor's processor time beside a sleeping agent", Unit::Percent, used)
        .goal(used < 1.0, "about 0")
        .tell();
    let mib = supervisor.rss_kib() as f64 / 1024.0;
    Row::new("the supervisor's memory", Unit::MiB, mib).reach(25.0).tell();
}
