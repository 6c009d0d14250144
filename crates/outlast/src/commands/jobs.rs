//! `outlast jobs`: lists the batch jobs, newest first.

use outlast_core::{
    store::{RunFilter, RunView, Store},
    words::id::Micros,
};
use outlast_view as view;
use serde_json::json;

use crate::{
    cli::JobsArgs,
    program::error::CliError,
    render::{
        amount::usd,
        look::{self, Page},
        table::{Cell, Side, Table},
        time,
    },
};

pub fn jobs(store: &dyn Store, args: &JobsArgs, page: &mut Page) -> Result<(), CliError> {
    let now = store.now()?;
    let limit = args.limit.saturating_add(1);
    let mut jobs = store.runs(&RunFilter { jobs: true, limit, ..RunFilter::default() })?;
    let more = jobs.len() > args.limit;
    jobs.truncate(args.limit);
    if page.look.json {
        let jobs: Vec<view::Run> = jobs.iter().map(|view| view::Run::new(view, now)).collect();
        return Ok(page.json(&json!({ "jobs": jobs, "more": more }))?);
    }
    if jobs.is_empty() {
        return Ok(page.line(&format!("no jobs in {}", store.place()))?);
    }
    let look = page.look;
    page.text(&table(&jobs, now).render(look, 0))?;
    if more {
        page.line(&format!("only the newest {}; see --limit", args.limit))?;
    }
    Ok(())
}

fn table(jobs: &[RunView], now: Micros) -> Table {
    let mut table = Table::new(&[
        ("job", Side::Left),
        ("run", Side::Left),
        ("status", Side::Left),
        ("done", Side::Right),
        ("failed", Side::Right),
        ("dead", Side::Right),
        ("skipped", Side::Right),
        ("open", Side::Right),
        ("of", Side::Right),
        ("per min", Side::Right),
        ("left", Side::Right),
        ("usd", Side::Right),
        ("age", Side::Right),
    ]);
    for view in jobs {
        let (run, Some(job)) = (&view.run, view::job(view)) else { continue };
        let mut row = vec![
            job.name.into(),
            Cell::whole(run.id.as_str()),
            Cell::painted(run.status.name(), look::of_status(run.status)),
        ];
        let counts = [job.done, job.failed, job.dead, job.skipped, job.open, job.items];
        row.extend(counts.map(|n| n.to_string().into()));
        row.push(job.per_minute.map(|rate| format!("{rate:.1}")).unwrap_or_default().into());
        row.push(job.left_ms.map(time::about).unwrap_or_default().into());
        row.push(usd(view.envelope.spent.cost()).into());
        row.push(time::age(now.ms_since(run.created_at)).into());
        table.row(row);
    }
    table
}

/// Returns the job's name, or the run's id if it has none.
pub fn name(view: &RunView) -> String {
    view.run.job.as_ref().map_or_else(|| view.run.id.to_string(), |job| job.name.clone())
}
