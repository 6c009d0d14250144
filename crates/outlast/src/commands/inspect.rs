//! `outlast inspect JOB|FILE.jsonl`: shows a job's progress, its gaps, and how far each attempt got.

use std::cmp::Reverse;

use outlast_core::{
    journal::{ItemRow, job::Standing},
    reads::lives::Loss,
};
use outlast_view::Job;

use super::{Needs, export::exception, jobs, prelude::*};
use crate::render::story;

/// Tell how far a job is: done, failed, dead, gaps, attempts, cost and time
///
/// A JSONL file of results is read with the store beside it, FILE.outlast.db. A file that another program wrote has no
/// such store: its lines alone are counted.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast inspect enrich-docs\n  outlast inspect runs/enrich-docs.jsonl --gaps\n  outlast inspect enrich-docs --attempts --json"
)]
pub struct InspectArgs {
    /// The job: its name, its run's id or the start of it; or a JSONL file of results
    #[arg(value_name = "JOB|FILE.jsonl")]
    pub job: String,
    /// Each input without a result, by its place in the input, below the highest place that has one
    #[arg(long)]
    pub gaps: bool,
    /// Each attempt of the job, and how far it got
    #[arg(long)]
    pub attempts: bool,
}

/// Number of gaps, and of causes of failures, that are listed without `--gaps`.
const SHORT: usize = 5;

/// Number of inputs that are named for a cause without `--gaps`.
const FEW: usize = 3;

pub fn inspect(args: &InspectArgs, Desk { store, page, .. }: Desk) -> Result {
    let found = find::jobs(store, &args.job, Verb::Look)?;
    let told = found.into_iter().filter_map(|view| Some((view::job(&view)?, view)));
    let told = told.map(|(job, view)| JobReport::gather(store, job, view)).collect::<Result<Vec<_>, _>>()?;
    if page.look.json {
        match told.as_slice() {
            [one] => page.json(&ShownJob::new(one, args))?,
            all => {
                page.json(&json!({ "jobs": all.iter().map(|t| ShownJob::new(t, args)).collect::<Vec<_>>() }))?
            }
        }
        return Ok(());
    }
    for (i, told) in told.iter().enumerate() {
        if i > 0 {
            page.line("")?;
        }
        told.print(args, page)?;
    }
    Ok(())
}

/// Inspects the jobs of a JSONL file of results: in the record beside it, or by its lines if it has none.
pub fn inspect_file(args: &InspectArgs, context: &Context, page: &mut Page) -> Result {
    let path = context.around.directory().join(&args.job);
    if !jsonl::record(&path).exists() {
        return inspect_lines(&path, args, page);
    }
    let store = Needs::Record(&args.job).open(context)?;
    inspect(args, Desk { store: &*store, by: "", context, page, wait: &mut |_| {} })
}

/// Inspects a JSONL file of results that has no record in the store: only its lines are known.
fn inspect_lines(path: &Path, args: &InspectArgs, page: &mut Page) -> Result {
    let scan = jsonl::scan(path).map_err(|why| InputError::Results { path: path.to_owned(), why })?;
    let damage: Vec<usize> = scan.damage.iter().map(|d| d.line).collect();
    if page.look.json {
        let jobs: Vec<Value> = scan
            .jobs
            .iter()
            .map(|(job, results)| {
                let done: Vec<i64> = results.by_index.keys().copied().collect();
                json!({
                    "job": job,
                    "done": done.len(),
                    "lines": results.lines,
                    "farthest": done.last(),
                    "gaps": ranges(&done),
                })
            })
            .collect();
        return Ok(page.json(&json!({ "jobs": jobs, "damaged_lines": damage, "glued_lines": scan.glued }))?);
    }
    for (job, results) in &scan.jobs {
        let done: Vec<i64> = results.by_index.keys().copied().collect();
        let job = page.look.paint(Paint::Strong, &look::clean(job));
        page.line(&format!("{job}  no record beside it: what its lines tell"))?;
        page.line(&format!("  done {}  of {}", done.len(), some(results.lines as i64, "line")))?;
        page.line(&format!("  {}", gaps(&done, args.gaps)))?;
    }
    if scan.jobs.is_empty() {
        page.line("no results in it")?;
    }
    for damaged in &scan.damage {
        let what =
            if damaged.torn { "is torn: the next start cuts it" } else { "is damaged: see `outlast verify`" };
        page.line(&format!("  line {} {what}", damaged.line))?;
    }
    Ok(())
}

/// Job with everything that is printed about it.
struct JobReport {
    view: RunView,
    job: Job,
    attempts: Vec<Attempt>,
    drivers: Drivers,
    /// Sorted input indexes that have a result.
    done: Vec<i64>,
    /// For each attempt: the number of results, and the highest input index among them.
    by_attempt: BTreeMap<i64, (i64, i64)>,
    failures: Vec<Failure>,
    /// Lines about what no limit of the job holds.
    unheld: Vec<String>,
    /// Line about calls whose charge is an estimate; `None` without one.
    estimated: Option<String>,
    now: Micros,
}

/// Item that failed or is dead.
struct Failure {
    row: ItemRow,
    /// Last exception of the item, as `Class: message`, if one is recorded.
    error: Option<String>,
}

impl Failure {
    fn read(store: &dyn Store, run: RunNo, row: ItemRow) -> Result<Failure> {
        let first_line =
            |told: String| told.lines().next().map(|line| line.trim_end_matches(": ").to_owned());
        let error = exception(store, run, row.seq)?.and_then(first_line);
        Ok(Failure { row, error })
    }

    /// Formats the reason and the error for people.
    fn why(&self) -> String {
        let parts = [self.row.detail.reason.as_deref(), self.error.as_deref()];
        let told: Vec<String> = parts.into_iter().flatten().map(|part| cut(&look::clean(part))).collect();
        if told.is_empty() { String::new() } else { format!(": {}", told.join("; ")) }
    }
}

/// Cuts a text to the length that one line shows.
fn cut(text: &str) -> String {
    const LONGEST: usize = 200;
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

impl JobReport {
    fn gather(store: &dyn Store, job: Job, view: RunView) -> Result<JobReport> {
        let no = view.run.no;
        let attempts = lives::attempts(store, &view.run)?;
        let mut told = JobReport {
            drivers: Drivers::read(store, &attempts, identity::of_self().ok())?,
            attempts,
            done: Vec::new(),
            by_attempt: BTreeMap::new(),
            failures: Vec::new(),
            unheld: unheld::lines(store, &view)?,
            estimated: unheld::estimated(view.run.own.estimated_calls),
            now: store.now()?,
            job,
            view,
        };
        for row in entries::items(store, no) {
            let row = row?;
            match row.detail.standing {
                Standing::Done | Standing::Skipped => {
                    told.done.push(row.detail.index);
                    let (results, farthest) = told.by_attempt.entry(row.attempt.0).or_insert((0, 0));
                    *results += 1;
                    *farthest = (*farthest).max(row.detail.index);
                }
                Standing::Failed | Standing::Dead => told.failures.push(Failure::read(store, no, row)?),
                Standing::Open => {}
            }
        }
        told.done.sort_unstable();
        told.done.dedup();
        Ok(told)
    }

    /// Returns the attempt that got farthest in the input, and the input index that it reached.
    fn farthest(&self) -> Option<(i64, i64)> {
        self.by_attempt.iter().map(|(no, (_, at))| (*no, *at)).max_by_key(|(no, at)| (*at, *no))
    }

    /// Returns the run's active time as of the last heartbeat, and the time since its first attempt began, in milliseconds.
    fn times(&self) -> (i64, i64) {
        let run = &self.view.run;
        (self.view.envelope.spent[Unit::ActiveMs], run.wall_ms(run.ended_at.unwrap_or(self.now)))
    }

    /// Formats how far the job is: its items, the rate, and the time left.
    fn progress(&self) -> String {
        let job = &self.job;
        let mut parts =
            vec![format!("{} of {} ended", job.items - job.open, crate::render::story::all_items(job))];
        parts.extend((job.vanished > 0).then(|| format!("{} not in the input any more", job.vanished)));
        parts.extend(job.per_minute.map(|rate| format!("{rate:.1} a minute")));
        parts.extend(job.left_ms.map(|left| format!("{} left", time::about(left))));
        parts.join(", ")
    }

    /// Returns the flag by which other commands find the store of a file of results; empty for a job of the store that they
    /// use by themselves.
    fn store_flag(&self, args: &InspectArgs) -> String {
        match jsonl::is_file(&args.job) {
            true => format!(
                " --store {}",
                crate::render::quote::quoted(&jsonl::record(Path::new(&args.job)).to_string_lossy())
            ),
            false => String::new(),
        }
    }

    fn print(&self, args: &InspectArgs, page: &mut Page) -> Result {
        let (look, run) = (page.look, &self.view.run);
        let c = &self.job;
        let name = look::clean(&jobs::name(&self.view)).replace('\n', " ");
        let id = if name == run.id.as_str() { String::new() } else { format!("  run {}", short(&self.view)) };
        let status = look.paint(look::of_status(run.status), run.status.name());
        page.line(&format!("{}{id}  {status}", look.paint(Paint::Strong, &name)))?;
        if let Some(why) = run.why() {
            page.line(&format!("  {}", look::clean_line(&why, usize::MAX)))?;
        }
        page.line(&format!(
            "  done {}  failed {}  dead {}  skipped {}  open {}",
            c.done, c.failed, c.dead, c.skipped, c.open
        ))?;
        page.line(&format!("  {}", self.progress()))?;
        page.line(&format!("  {}", gaps(&self.done, args.gaps)))?;
        let own = self.view.run.own;
        let doubt = match own.doubt_nano_usd {
            0 => String::new(),
            doubt => format!(", {} usd held for calls without an answer, which may be paid", usd(doubt)),
        };
        let calls = some(own.paid_calls(), "call");
        page.line(&format!("  {} for {calls}{doubt}{}", cost(&self.view), unpaid(own.unpaid_calls)))?;
        for line in self.estimated.iter().chain(&self.unheld) {
            page.line(&format!("  {}", look::clean_line(line, usize::MAX)))?;
        }
        let (active, wall) = self.times();
        let lives = story::lives(&self.attempts);
        page.line(&format!("  {} in {lives}, {} since it began", time::span(active), time::span(wall)))?;
        if let Some((no, at)) = self.farthest() {
            page.line(&format!("  attempt {no} got farthest: to input {at}"))?;
        }
        if args.attempts {
            page.text(&self.attempts_table().render(look, 2))?;
        }
        match args.gaps {
            true => self.print_failures(page)?,
            false => self.print_causes(page)?,
        }
        let next = next(&self.view, &called(&self.view));
        let commands = next.commands.iter().map(|command| format!("{command}{}", self.store_flag(args)));
        let steps = std::iter::once(next.text.clone()).filter(|_| run.status != Status::Running);
        for step in commands.chain(steps) {
            page.line(&format!("  → {step}"))?;
        }
        Ok(())
    }

    fn print_failures(&self, page: &mut Page) -> Result {
        for failure in &self.failures {
            let (d, key) = (&failure.row.detail, cut(&look::clean(&failure.row.key)));
            page.line(&format!("  input {} {} ({key}){}", d.index, d.standing.name(), failure.why()))?;
        }
        Ok(())
    }

    /// Prints the failures by cause, the most frequent first, each with some of its inputs.
    fn print_causes(&self, page: &mut Page) -> Result {
        let mut causes: BTreeMap<(&str, String), Vec<&Failure>> = BTreeMap::new();
        for failure in &self.failures {
            let cause = (failure.row.detail.standing.name(), masked(&failure.why()));
            causes.entry(cause).or_default().push(failure);
        }
        let mut causes: Vec<_> =
            causes.into_iter().map(|((standing, _), failed)| (standing, failed)).collect();
        causes.sort_by_key(|(_, failed)| Reverse(failed.len()));
        for (standing, failed) in causes.iter_mut().take(SHORT) {
            failed.sort_by_key(|failure| failure.row.detail.index);
            let rows: Vec<&ItemRow> = failed.iter().map(|failure| &failure.row).collect();
            let why = failed.first().map(|failure| failure.why()).unwrap_or_default();
            let input = |row: &&ItemRow| format!("{} ({})", row.detail.index, cut(&look::clean(&row.key)));
            let inputs: Vec<String> = rows.iter().take(FEW).map(input).collect();
            let more = rows.len().saturating_sub(FEW);
            let more = if more == 0 { String::new() } else { format!(", … {more} more (see --gaps)") };
            page.line(&format!("  {} {standing}{why}", rows.len()))?;
            page.line(&format!("    input {}{more}", inputs.join(", ")))?;
        }
        if causes.len() > SHORT {
            page.line(&format!("  … {} more causes (see --gaps)", causes.len() - SHORT))?;
        }
        Ok(())
    }

    fn loss(&self, a: &Attempt) -> Option<Loss> {
        self.drivers.loss(&self.view, &self.attempts, a)
    }

    fn attempts_table(&self) -> Table {
        let mut table = Table::new([">attempt", "began", ">took", ">results", ">farthest", "end"]);
        for a in &self.attempts {
            let (results, farthest) = self.by_attempt.get(&a.no.0).copied().unwrap_or_default();
            table.row(vec![
                a.no.0.to_string().into(),
                time::moment(a.started_at).into(),
                time::span(self.drivers.up_ms(a, self.now)).into(),
                results.to_string().into(),
                if results > 0 { farthest.to_string() } else { String::new() }.into(),
                a.exit
                    .as_ref()
                    .map_or_else(|| "runs".to_owned(), |exit| end_words(exit, self.loss(a)))
                    .into(),
            ]);
        }
        table
    }
}

shape! {
    /// Job as `outlast inspect --json` prints it.
    ShownJob(report: &JobReport, args: &InspectArgs; let (active, wall) = report.times()) {
        #[serde(flatten)] run: view::Run = view::Run::new(&report.view, report.now);
        gaps: Vec<(i64, i64)> = ranges(&report.done);
        active_ms: i64 = active;
        wall_ms: i64 = wall;
        /// Attempt that got farthest in the input, and the index that it reached.
        farthest: Option<Value> =
            report.farthest().map(|(attempt, index)| json!({ "attempt": attempt, "index": index }));
        #[serde(skip_serializing_if = "Option::is_none")]
        attempts: Option<Vec<Value>> =
            args.attempts.then(|| report.attempts.iter().map(|a| shown_attempt(report, a)).collect());
        #[serde(skip_serializing_if = "Vec::is_empty")]
        unheld: Vec<String> = report.unheld.clone();
        /// Items that failed or are dead, with their last exceptions.
        failures: Vec<Value> =
            report.failures.iter().map(|f| with(view::Item::new(&f.row), json!({ "error": f.error }))).collect();
    }
}

/// Returns an attempt with the number of its results and the highest input index among them.
fn shown_attempt(report: &JobReport, a: &Attempt) -> Value {
    let reached = report.by_attempt.get(&a.no.0);
    let results = json!({ "results": reached.map_or(0, |r| r.0), "farthest": reached.map(|r| r.1) });
    with(view::Attempt::new(a, report.loss(a), report.drivers.up_ms(a, report.now)), results)
}

/// Returns a text with each number as `#`: numbers differ between items that failed of one cause.
fn masked(why: &str) -> String {
    let mut out = String::new();
    for c in why.chars() {
        match c.is_ascii_digit() {
            true if out.ends_with('#') => {}
            true => out.push('#'),
            false => out.push(c),
        }
    }
    out
}

/// Returns the gaps in the sorted `done` below its highest index, each as its first and last index.
fn ranges(done: &[i64]) -> Vec<(i64, i64)> {
    let mut next = 0;
    let mut found = Vec::new();
    for &index in done {
        if index > next {
            found.push((next, index - 1));
        }
        next = index + 1;
    }
    found
}

fn gaps(done: &[i64], all: bool) -> String {
    let found = ranges(done);
    let Some(last) = done.last() else { return "no results yet".into() };
    if found.is_empty() {
        return format!("no gaps up to input {last}");
    }
    let shown = if all { found.len() } else { SHORT };
    let texts: Vec<String> = found
        .iter()
        .take(shown)
        .map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") })
        .collect();
    let missing: i64 = found.iter().map(|(a, b)| b - a + 1).sum();
    let more = if found.len() > shown { ", … (see --gaps)" } else { "" };
    format!("{missing} without a result up to input {last}: {}{more}", texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_that_differ_in_numbers_are_of_one_cause() {
        assert_eq!(masked(": ValueError: no text in doc-107"), ": ValueError: no text in doc-#");
        assert_eq!(masked("at 0x7f1"), "at #x#f#");
    }

    #[test]
    fn gaps_are_told_as_ranges() {
        for (done, wanted) in [
            (&[][..], "no results yet"),
            (&[0, 1, 2], "no gaps up to input 2"),
            (&[2], "2 without a result up to input 2: 0-1"),
            (&[0, 2, 6], "4 without a result up to input 6: 1, 3-5"),
            (&[1, 3, 5, 7, 9, 11], "6 without a result up to input 11: 0, 2, 4, 6, 8, … (see --gaps)"),
        ] {
            assert_eq!(gaps(done, false), wanted);
        }
    }
}
