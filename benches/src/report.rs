//! Report of one `make bench`: printed as it is measured, then written as a page with a picture.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Everything that was measured so far, in order.
static REPORT: Mutex<Report> = Mutex::new(Report { sections: Vec::new(), bars: Vec::new() });

struct Report {
    sections: Vec<Section>,
    bars: Vec<Bars>,
}

struct Section {
    title: String,
    rows: Vec<[String; 3]>,
}

/// One plot: a bar for each program.
struct Bars {
    title: String,
    unit: &'static str,
    bars: Vec<(String, f64)>,
}

fn report() -> MutexGuard<'static, Report> {
    REPORT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins a section.
pub fn section(title: &str) {
    println!("\n-- {title}");
    report().sections.push(Section { title: title.to_owned(), rows: Vec::new() });
}

/// Reports one row: a name, figures, and the target.
pub fn row(name: &str, figures: &str, target: &str) {
    println!("{name:<46} {figures:<44} {target}");
    if let Some(section) = report().sections.last_mut() {
        section.rows.push([name, figures, target].map(str::to_owned));
    }
}

/// Adds a bar to the plot of that title.
pub fn bar(title: &str, unit: &'static str, name: &str, value: f64) {
    let mut report = report();
    if report.bars.iter().all(|bars| bars.title != title) {
        report.bars.push(Bars { title: title.to_owned(), unit, bars: Vec::new() });
    }
    if let Some(bars) = report.bars.iter_mut().find(|bars| bars.title == title) {
        bars.bars.push((name.to_owned(), value));
    }
}

/// Writes the page and, beside it, its picture. Errors: those of the files.
pub fn write(page: &Path) -> std::io::Result<()> {
    let report = report();
    fs::write(page.with_extension("svg"), picture(&report.bars))?;
    let mut text = String::from(HEAD);
    let _ = writeln!(text, "{}\n", machine());
    text.push_str("![Calls a second, and what one call takes](benchmarks.svg)\n");
    for section in &report.sections {
        let _ = write!(text, "\n## {}\n\n| | measured | |\n|---|---|---|\n", capital(&section.title));
        for [name, figures, target] in &section.rows {
            let _ = writeln!(text, "| {name} | {figures} | {} |", target.trim());
        }
    }
    fs::write(page, text)
}

const HEAD: &str = "# Benchmarks

After this page you know what Outlast costs, beside the disk, a plain proxy and a direct call. `make bench` measures it on your
machine and writes this page: one run, so that all figures are of the same minutes. Load generator, fake provider and the
measured program share the same cores. `ok` and `MISS` tell whether a target of ours is reached. `make bench-python` prints what
steps of the Python package and of the npm package cost beside DBOS and Absurd.

";

/// Describes the machine and the versions that were measured.
fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("an unnamed processor", |(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let said = |program: &str, argument: &str| {
        let out = Command::new(program).arg(argument).output().ok()?;
        let text = if out.stdout.is_empty() { out.stderr } else { out.stdout };
        String::from_utf8_lossy(&text).lines().find(|line| !line.is_empty()).map(str::to_owned)
    };
    let commit = Command::new("git").args(["rev-parse", "--short=8", "HEAD"]).output().ok();
    let commit = commit.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default();
    let rust = said("rustc", "--version").unwrap_or_default();
    let nginx = said("nginx", "-v").unwrap_or_else(|| "no nginx".into());
    let litellm = said(".venv-bench/bin/litellm", "--version");
    let litellm = litellm.map(|said| format!("; {said} (one worker, no database)")).unwrap_or_default();
    format!(
        "{cores} cores of {model}; Linux {}; Outlast at {commit}, release build, {rust}; {nginx}{litellm}.",
        kernel.trim()
    )
}

fn capital(title: &str) -> String {
    let mut letters = title.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Draws the plots one below the other. By hand: a plotting library would be the largest dependency of all.
fn picture(plots: &[Bars]) -> String {
    const WIDTH: f64 = 420.0;
    let mut body = String::new();
    let mut y = 24.0;
    for plot in plots {
        let _ = writeln!(body, r#"<text x="16" y="{y:.0}" font-weight="bold">{}</text>"#, plot.title);
        let most = plot.bars.iter().map(|bar| bar.1).fold(f64::MIN_POSITIVE, f64::max);
        for (name, value) in &plot.bars {
            y += 26.0;
            let long = (value / most * WIDTH).max(1.0);
            let fill = if name == "outlast" { "#2f6f4f" } else { "#9aa5a0" };
            let digits = if *value < 100.0 { 2 } else { 0 };
            let _ = writeln!(body, r#"<text x="120" y="{y:.0}" text-anchor="end">{name}</text>"#);
            let _ = writeln!(
                body,
                r#"<rect x="130" y="{:.0}" width="{long:.1}" height="14" fill="{fill}"/>"#,
                y - 12.0
            );
            let x = 136.0 + long;
            let _ = writeln!(body, r#"<text x="{x:.0}" y="{y:.0}">{value:.digits$} {}</text>"#, plot.unit);
        }
        y += 40.0;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"680\" height=\"{y:.0}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}
