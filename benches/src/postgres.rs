//! Measures Outlast on PostgreSQL, beside pgbench's bare loop of one-row transactions on the same server.
//!
//! The server is started for it on the same disk, and syncs its log as servers do.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    client::{Load, Plan, load},
    report::{Row, Unit, section},
    servers::{self, Server},
    steps,
};

/// Steps of the run that is resumed.
const RESUMED: usize = 100_000;

/// A PostgreSQL server of our own, gone with the value.
struct Database {
    dir: PathBuf,
    url: String,
}

impl Database {
    /// Starts a server in `dir`, a path short enough for its socket.
    fn start(dir: &Path) -> Option<Database> {
        // As root, the server runs under another account, which has to get through.
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o711)).ok()?;
        let dir = dir.join("pg");
        let out =
            Command::new("scripts/private-postgres.sh").arg("start").arg(&dir).arg("synced").output().ok()?;
        let url = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        if url.is_empty() {
            println!("{}", String::from_utf8_lossy(&out.stderr));
            return None;
        }
        Some(Database { dir, url })
    }

    /// Creates a database and returns its URL.
    fn create(&self, name: &str) -> String {
        self.psql(&format!("CREATE DATABASE {name}"));
        self.url.replacen("/postgres?", &format!("/{name}?"), 1)
    }

    fn psql(&self, sql: &str) {
        let done = Command::new("psql").args(["-q", "-d", &self.url, "-c", sql]).status().expect("psql");
        assert!(done.success(), "psql did not take: {sql}");
    }

    /// Writes a table in transactions of one row, in two round trips each, as fast as one connection can. Returns the
    /// transactions per second, and pgbench's own words. `None` without pgbench.
    fn bare_loop(&self, seconds: u64) -> Option<(f64, String)> {
        self.psql("CREATE TABLE bare (no bigserial PRIMARY KEY, value bytea)");
        let script = self.dir.with_file_name("bare.sql");
        let insert = format!("INSERT INTO bare (value) VALUES ('\\x{}');", "2a".repeat(100));
        std::fs::write(&script, format!("BEGIN\\;{insert}\nCOMMIT;\n")).expect("pgbench's script");
        let out = Command::new("pgbench")
            .args(["-n", "-c", "1", "-T", &seconds.to_string(), "-f"])
            .args([script.as_os_str(), self.url.as_ref()])
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let told = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let rate = told("tps = ")?.split_whitespace().next()?.parse().ok()?;
        Some((rate, told("latency average = ").unwrap_or_default().to_owned()))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let _ = Command::new("scripts/private-postgres.sh").arg("stop").arg(&self.dir).status();
    }
}

/// Measures and prints the figures.
pub fn measure(dir: &Path, seconds: u64) {
    section("PostgreSQL (server, load generator, fake provider and Outlast on the same cores)");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let place = std::fs::canonicalize(dir).expect("the directory");
    let Some(database) = Database::start(&place) else {
        return println!("PostgreSQL does not start: its rows are missing");
    };
    let Some((bare, latency)) = database.bare_loop(seconds) else {
        return println!("pgbench is missing: PostgreSQL's rows are missing");
    };
    let limited = |row: Row| row.limit("pgbench, INSERT + COMMIT", bare);
    let opened = outlast_bench::open_at(&database.create("steps"));
    let one = steps::rate(opened.as_ref(), 1, seconds);
    limited(Row::new("steps of one run on PostgreSQL", Unit::PerSecond, one))
        .note(format!("pgbench: mean {latency}"))
        .least_of_limit(0.7)
        .tell();
    let many = steps::rate(opened.as_ref(), 64, seconds);
    limited(Row::new("steps of 64 runs on PostgreSQL", Unit::PerSecond, many)).reach(8_000.0).tell();
    let took = steps::resume(opened.as_ref(), RESUMED);
    let what = "reading 100,000 steps of a resumed run on PostgreSQL";
    Row::new(what, Unit::Ms, took.as_secs_f64() * 1e3).reach(300.0).tell();
    drop(opened);
    proxies(&database, &runtime, seconds, bare);
}

/// Calls through one server and several, each run on one connection, and one run on all of them.
fn proxies(database: &Database, runtime: &tokio::runtime::Runtime, seconds: u64, bare: f64) {
    let mock = servers::mock();
    let url = database.create("calls");
    let servers: Vec<Server> = (0..4).map(|_| servers::serve(&mock.address, &url)).collect();
    let drive = |count: usize, connections: usize, tag: &str, run: Option<&str>, seconds: u64| -> Load {
        let plans: Vec<(String, Plan<'_>)> = servers[..count]
            .iter()
            .enumerate()
            .map(|(i, server)| (format!("{tag}-{i}"), server))
            .map(|(tag, server)| {
                let address = server.address.as_str();
                let plan = Plan {
                    address,
                    connections,
                    seconds,
                    tag: "",
                    run,
                    attempt: "1",
                    stream: false,
                    most: u64::MAX,
                };
                (tag, plan)
            })
            .collect();
        runtime.block_on(async {
            let loads = plans.iter().map(|(tag, plan)| load(Plan { tag, ..*plan }));
            Load::sum(futures_util::future::join_all(loads).await)
        })
    };
    drive(4, 4, "warm", None, 1);
    let cpu = servers[0].cpu();
    let mut single = drive(1, 64, "single", None, seconds);
    let each = (servers[0].cpu() - cpu).as_secs_f64() * 1e6 / single.calls.max(1) as f64;
    let row = |what: &str, load: &mut Load| {
        Row::new(format!("calls on PostgreSQL, 64 connections, {what}"), Unit::PerSecond, load.per_second)
            .limit("pgbench, INSERT + COMMIT", bare)
            .note(format!("p50 {:.2} ms, p99 {:.2} ms", load.total.p50(), load.total.p99()))
    };
    row("one server", &mut single).reach(3_000.0).tell();
    let mut two = drive(2, 32, "two", None, seconds);
    let scales = two.per_second > single.per_second;
    row("two servers", &mut two).goal(scales, "more than one server").tell();
    let mut hot = drive(4, 16, "hot", Some("hot"), seconds);
    row("one run at four servers", &mut hot).reach(1_500.0).tell();
    Row::new("processor time of a call on PostgreSQL, 64 connections", Unit::CpuUs, each).tell();
}
