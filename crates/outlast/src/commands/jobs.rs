//! `outlast jobs`: lists the batch jobs, newest first. `outlast retry`: has items of one run again.

use outlast_core::reads::entries::Again;

use super::prelude::*;

/// List batch jobs, newest first
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast jobs\n  outlast jobs --store runs/docs.jsonl.outlast.db\n  outlast jobs --json | jq '.jobs[].job.failed'"
)]
pub struct JobsArgs {
    /// Largest number of jobs to list
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: usize,
}

/// Make items of a job pending again; its script runs them
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast retry enrich-docs --failed\n  outlast retry enrich-docs --key doc-17 --key doc-18\n  outlast retry enrich-docs --failed --reuse-answers"
)]
pub struct RetryArgs {
    /// The job: its name, its run's id or the start of it; or a JSONL file of results
    #[arg(value_name = "JOB|FILE.jsonl")]
    pub job: String,
    /// Items that failed, and items that are dead: given up after repeated failures
    #[arg(long)]
    pub failed: bool,
    /// The item of this key, a finished one too; can be repeated
    #[arg(long, value_name = "KEY")]
    pub key: Vec<String>,
    /// Replay the answers that were paid for, to repaired code
    #[arg(long)]
    pub reuse_answers: bool,
}

pub fn jobs(args: &JobsArgs, Desk { store, page, .. }: Desk) -> Result {
    let now = store.now()?;
    let limit = args.limit.saturating_add(1);
    let mut jobs = store.runs(&RunFilter { jobs: true, limit, ..RunFilter::default() })?;
    let more = jobs.len() > args.limit;
    jobs.truncate(args.limit);
    let unheld = jobs.iter().map(|view| unheld::lines(store, view)).collect::<Result<Vec<_>, _>>()?;
    if page.look.json {
        let jobs: Vec<Listed> =
            jobs.iter().zip(unheld).map(|(view, unheld)| Listed::new(view, unheld, now)).collect();
        return Ok(page.json(&json!({ "jobs": jobs, "more": more }))?);
    }
    if jobs.is_empty() {
        return Ok(page.line(&format!("no jobs in {}", store.place()))?);
    }
    page.text(&table(&jobs, now).render(page.look, 0))?;
    for (view, lines) in jobs.iter().zip(&unheld) {
        let estimated = unheld::estimated(view.run.own.estimated_calls);
        for line in view.run.why().iter().chain(lines).chain(&estimated) {
            page.line(&look::clean_line(&format!("{}: {line}", name(view)), usize::MAX))?;
        }
    }
    if more {
        page.line(&format!("only the newest {}; see --limit", args.limit))?;
    }
    Ok(())
}

shape! {
    /// Job as `outlast jobs --json` lists it.
    Listed(view: &RunView, lines: Vec<String>, now: Micros) {
        #[serde(flatten)] run: view::Run = view::Run::new(view, now);
        /// Lines about what no limit of the job holds.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        unheld: Vec<String> = lines;
    }
}

fn table(jobs: &[RunView], now: Micros) -> Table {
    let mut table = Table::new(
        "job|run|status|>done|>failed|>dead|>skipped|>open|>of|>per min|>left|>usd|>with children|>in doubt|>age"
            .split('|'),
    );
    for view in jobs {
        let (run, Some(job)) = (&view.run, view::job(view)) else { continue };
        let mut row = vec![
            job.name.into(),
            Cell::whole(short(view)),
            Cell::painted(run.status.name(), look::of_status(run.status)),
        ];
        let counts = [job.done, job.failed, job.dead, job.skipped, job.open];
        row.extend(counts.map(|n| n.to_string().into()));
        row.push(if job.is_at_least { format!("≥ {}", job.items) } else { job.items.to_string() }.into());
        row.push(job.per_minute.map(|rate| format!("{rate:.1}")).unwrap_or_default().into());
        row.push(job.left_ms.map(time::about).unwrap_or_default().into());
        row.push(usd(view.run.own.cost_nano_usd).into());
        row.push(with_children(view).map(usd).unwrap_or_default().into());
        row.push(match view.run.own.doubt_nano_usd {
            0 => String::new().into(),
            doubt => usd(doubt).into(),
        });
        row.push(time::age(now.ms_since(run.created_at)).into());
        table.row(row);
    }
    table
}

/// Returns the job's name, or the run's id if it has none.
pub fn name(view: &RunView) -> String {
    view.run.job.as_ref().map_or_else(|| view.run.id.to_string(), |job| job.name.clone())
}

/// Resets the named items, each in a commit of its own: if one is refused, the others stay reset.
pub fn retry(args: &RetryArgs, Desk { store, by, page, .. }: Desk) -> Result {
    if !args.failed && args.key.is_empty() {
        return Err(CliError::usage("no items are named", Some("give --failed, or --key KEY")));
    }
    let view = find::job(store, &args.job, Verb::Change)?;
    let again = Again { keys: args.key.clone(), failed: args.failed, reuse_answers: args.reuse_answers };
    let keys = entries::reset(store, by, view.run.no, &again)?;
    if page.look.json {
        return Ok(page.json(&json!({
            "run": view.run.id, "reset": keys, "reuse_answers": args.reuse_answers,
        }))?);
    }
    let name = look::clean(&name(&view));
    if keys.is_empty() {
        return Ok(page.line(&format!("{name}  nothing of it failed"))?);
    }
    let replayed = if args.reuse_answers { "; answers that were paid for are replayed" } else { "" };
    let name = page.look.paint(Paint::Strong, &name);
    page.line(&format!("{name}  {} will run again{replayed}", some(keys.len() as i64, "item")))?;
    Ok(page.line("  → start its script again")?)
}
