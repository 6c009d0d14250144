//! Report of one `make bench`: printed as it is measured, then written as a page with one table, a picture, and rows of the
//! history by which the next run tells what became slower.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::history;

/// Everything that was measured so far, in order.
static REPORT: Mutex<Vec<Row>> = Mutex::new(Vec::new());

/// Quantity of a row. Of rates more is better, of everything else less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    PerSecond,
    Ms,
    /// Microseconds of processor time.
    CpuUs,
    Bytes,
    MiB,
    Percent,
}

impl Unit {
    /// Returns the unit of this name in the output of `benches/peers/steps.py`.
    pub fn parse(name: &str) -> Option<Unit> {
        match name {
            "/s" => Some(Unit::PerSecond),
            "ms" => Some(Unit::Ms),
            "bytes" => Some(Unit::Bytes),
            _ => None,
        }
    }

    fn words(self, value: f64) -> String {
        match self {
            Unit::PerSecond => format!("{value:.0}/s"),
            Unit::Ms => format!("{value:.3} ms"),
            Unit::CpuUs => format!("{value:.0} us CPU"),
            Unit::Bytes => format!("{value:.0} bytes"),
            Unit::MiB => format!("{value:.1} MiB"),
            Unit::Percent => format!("{value:.2} %"),
        }
    }

    /// Returns how good `value` is as a multiple of `other`: 1 is as good, more is better.
    fn ratio(self, value: f64, other: f64) -> f64 {
        match self {
            Unit::PerSecond => value / other.max(f64::MIN_POSITIVE),
            Unit::Ms | Unit::CpuUs | Unit::Bytes | Unit::MiB | Unit::Percent => other / value.max(1e-9),
        }
    }
}

/// Figures of one thing that was measured: Outlast's, the physical limit's, and those of peers, all of this run.
#[must_use = "a row is reported by `tell`"]
pub struct Row {
    what: String,
    unit: Unit,
    ours: f64,
    limit: Option<(String, f64)>,
    peers: Vec<(String, f64)>,
    note: String,
    goal: String,
}

impl Row {
    pub fn new(what: impl Into<String>, unit: Unit, ours: f64) -> Row {
        let (what, note, goal) = (what.into(), String::new(), String::new());
        Row { what, unit, ours, limit: None, peers: Vec::new(), note, goal }
    }

    /// Adds what nothing that does the same could pass: the disk, a bare loop, a proxy that keeps nothing.
    pub fn limit(mut self, name: &str, value: f64) -> Row {
        self.limit = Some((name.to_owned(), value));
        self
    }

    pub fn peer(mut self, name: &str, value: f64) -> Row {
        self.peers.push((name.to_owned(), value));
        self
    }

    pub fn note(mut self, note: impl Into<String>) -> Row {
        self.note = note.into();
        self
    }

    /// Adds a target of ours, and whether it is reached.
    pub fn goal(mut self, is_reached: bool, text: &str) -> Row {
        self.goal = format!("{} {text}", if is_reached { "ok" } else { "MISS" });
        self
    }

    /// Adds a target of so many times the limit.
    pub fn least_of_limit(self, least: f64) -> Row {
        let is_reached = self.ratio().is_some_and(|ratio| ratio >= least);
        self.goal(is_reached, &format!("{least} x the limit"))
    }

    /// Adds a target in the row's own unit.
    pub fn reach(self, target: f64) -> Row {
        let (is_reached, text) = (self.unit.ratio(self.ours, target) >= 1.0, self.unit.words(target));
        self.goal(is_reached, &text)
    }

    /// Prints the row and keeps it for the page.
    pub fn tell(self) {
        let [ratio, what, ours, limit, peer, goal] = self.cells();
        println!("{ratio:>7}  {what:<52} {ours:<48} {limit:<36} {peer:<26} {goal}");
        report().push(self);
    }

    /// Returns Outlast's figure as a multiple of the limit: 1 is the limit itself, and less is slower.
    fn ratio(&self) -> Option<f64> {
        self.limit.as_ref().map(|(_, limit)| self.unit.ratio(self.ours, *limit))
    }

    fn best_peer(&self) -> Option<&(String, f64)> {
        let goodness = |value: f64| self.unit.ratio(value, self.ours);
        self.peers.iter().max_by(|a, b| goodness(a.1).total_cmp(&goodness(b.1)))
    }

    fn cells(&self) -> [String; 6] {
        let figure = |(name, value): &(String, f64)| format!("{name}: {}", self.unit.words(*value));
        let ratio = self.ratio().map(|ratio| format!("{} x", digits(ratio))).unwrap_or_default();
        let gap = if self.note.is_empty() { "" } else { "; " };
        let ours = format!("{}{gap}{}", self.unit.words(self.ours), self.note);
        let limit = self.limit.as_ref().map(figure).unwrap_or_default();
        let peer = self.best_peer().map(figure).unwrap_or_default();
        [ratio, self.what.clone(), ours, limit, peer, self.goal.clone()]
    }
}

/// Returns a ratio with as many digits as say something.
fn digits(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.3}") } else { format!("{ratio:.2}") }
}

fn report() -> MutexGuard<'static, Vec<Row>> {
    REPORT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins a part of the measurements, for who watches.
pub fn section(title: &str) {
    println!("\n-- {title}");
}

/// Writes the page and, beside it, its picture, and adds the ratios to the history. Returns what is slower than in the run
/// before on a machine like this. Errors: those of the files.
pub fn write(page: &Path, history: &Path) -> std::io::Result<String> {
    let rows = report();
    fs::write(page.with_extension("svg"), picture(&rows))?;
    let mut text = String::from(HEAD);
    let _ = writeln!(text, "{}\n", machine());
    text.push_str("![Outlast, the limit and the best peer](benchmarks.svg)\n\n");
    text.push_str("| of the limit | | Outlast | limit | best peer | to reach |\n|---|---|---|---|---|---|\n");
    for row in rows.iter() {
        let _ = writeln!(text, "| {} |", row.cells().join(" | "));
    }
    fs::write(page, text)?;
    let measured = rows.iter().filter_map(|row| Some((row.what.as_str(), row.ratio()?)));
    history::add(history, &commit(), &processor(), measured)
}

const HEAD: &str = "# Benchmarks

After this page you know what Outlast costs, beside what limits it and beside what else people use. `make bench` measures it
on your machine and writes this page: one run, so that all figures are of the same minutes. Load generator, fake provider and
the measured program share the same cores.

Each row begins with its ratio: Outlast's figure as a multiple of the limit's, whatever the unit, so that 1 is the limit itself
and less is slower. The limit is what nothing that does the same could pass: an append with fdatasync on the same disk, a bare
loop of INSERT and COMMIT, nginx that proxies and keeps nothing, the same thing without Outlast. The peer is the best of those
that this run had. `ok` and `MISS` tell whether a target of ours is reached. `benches/history.csv` keeps the ratios of each
commit, and `make bench` says what has become more than 5 % slower since.

";

fn first_line(program: &str, argument: &str) -> Option<String> {
    let out = Command::new(program).arg(argument).output().ok()?;
    let text = if out.stdout.is_empty() { out.stderr } else { out.stdout };
    String::from_utf8_lossy(&text).lines().find(|line| !line.is_empty()).map(str::to_owned)
}

fn git(arguments: &[&str]) -> String {
    let out = Command::new("git").args(arguments).output().ok();
    out.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default()
}

/// Returns the commit that is measured, with `+` if there are changes beyond it. Earlier results are none.
fn commit() -> String {
    let changed = git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ".",
        ":!docs/benchmarks.*",
        ":!benches/history.csv",
    ]);
    format!("{}{}", git(&["rev-parse", "--short=8", "HEAD"]), if changed.is_empty() { "" } else { "+" })
}

/// Returns the processor and the number of its cores.
fn processor() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("an unnamed processor", |(_, name)| name);
    format!("{} cores of {model}", std::thread::available_parallelism().map_or(1, usize::from))
}

/// Describes the machine and the versions that were measured.
fn machine() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let rust = first_line("rustc", "--version").unwrap_or_default();
    let nginx = first_line("nginx", "-v").unwrap_or_else(|| "no nginx".into());
    let litellm = first_line(".venv-bench/bin/litellm", "--version");
    let litellm = litellm.map(|said| format!("; {said} (one worker, no database)")).unwrap_or_default();
    format!(
        "{}; Linux {}; Outlast at {}, release build, {rust}; {nginx}{litellm}.",
        processor(),
        kernel.trim(),
        commit()
    )
}

/// Draws a group of bars for each row that has a peer. By hand: a plotting library would be the largest dependency of all.
fn picture(rows: &[Row]) -> String {
    const WIDTH: f64 = 360.0;
    let mut body = String::new();
    let mut y = 24.0;
    for row in rows {
        let Some(peer) = row.best_peer() else { continue };
        let better = if row.unit == Unit::PerSecond { "more is better" } else { "less is better" };
        let _ = writeln!(
            body,
            r#"<text x="16" y="{y:.0}"><tspan font-weight="bold">{}</tspan> ({better})</text>"#,
            row.what
        );
        let bars = [Some(("Outlast", row.ours)), row.limit.as_ref().map(borrowed), Some(borrowed(peer))];
        let most = bars.iter().flatten().map(|bar| bar.1).fold(f64::MIN_POSITIVE, f64::max);
        for (name, value) in bars.into_iter().flatten() {
            y += 20.0;
            let long = (value / most * WIDTH).max(1.0);
            let fill = if name == "Outlast" { "#2f6f4f" } else { "#9aa5a0" };
            let _ = writeln!(body, r#"<text x="200" y="{y:.0}" text-anchor="end">{name}</text>"#);
            let _ = writeln!(
                body,
                r#"<rect x="210" y="{:.0}" width="{long:.1}" height="12" fill="{fill}"/>"#,
                y - 11.0
            );
            let x = 216.0 + long;
            let _ = writeln!(body, r#"<text x="{x:.0}" y="{y:.0}">{}</text>"#, row.unit.words(value));
        }
        y += 34.0;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"700\" height=\"{y:.0}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

fn borrowed((name, value): &(String, f64)) -> (&str, f64) {
    (name, *value)
}
