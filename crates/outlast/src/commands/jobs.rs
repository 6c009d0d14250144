//! `outlast jobs`: lists the batch jobs, newest first.

use outlast_core::{
    envelope::unit::Unit,
    journal::job::Counts,
    store::{RunFilter, RunView, Store},
    words::id::Micros,
};
use serde_json::{Map, Value, json};

use crate::{
    cli::JobsArgs,
    program::error::CliError,
    render::{
        amount::{put_money, usd},
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
        let jobs: Vec<Value> = jobs.iter().map(|view| Value::Object(object(view))).collect();
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
        let run = &view.run;
        let c = counts(view);
        let mut row = vec![
            name(view).into(),
            Cell::whole(run.id.as_str()),
            Cell::painted(run.status.name(), look::of_status(run.status)),
        ];
        row.extend([c.done, c.failed, c.dead, c.skipped, c.open].map(|n| n.to_string().into()));
        row.push(c.wanted().to_string().into());
        row.push(per_minute(view).map(|rate| format!("{rate:.1}")).unwrap_or_default().into());
        row.push(left_ms(view).map(time::about).unwrap_or_default().into());
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

pub fn counts(view: &RunView) -> Counts {
    view.run.job.as_ref().map(|job| job.counts).unwrap_or_default()
}

/// Returns how many items finish per minute of the job's active time; `None` if it has no active time yet.
pub fn per_minute(view: &RunView) -> Option<f64> {
    let (c, active_ms) = (counts(view), view.envelope.spent[Unit::ActiveMs]);
    (active_ms > 0).then(|| (c.done + c.failed + c.dead) as f64 * 60_000.0 / active_ms as f64)
}

/// Returns the time until the last item is finished, in milliseconds of active time at the rate so far; `None` for a
/// job that has ended, has no item left or has finished nothing.
pub fn left_ms(view: &RunView) -> Option<i64> {
    let (c, rate) = (counts(view), per_minute(view)?);
    let left = c.wanted() - c.ended();
    (!view.run.status.is_ended() && left > 0 && rate > 0.0).then(|| (left as f64 * 60_000.0 / rate) as i64)
}

/// Returns the JSON fields that describe every job, with stable keys.
pub fn object(view: &RunView) -> Map<String, Value> {
    let (run, c) = (&view.run, counts(view));
    let mut o = Map::new();
    o.insert("job".into(), name(view).into());
    o.insert("run".into(), run.id.as_str().into());
    o.insert("status".into(), run.status.name().into());
    for (key, n) in
        [("done", c.done), ("failed", c.failed), ("dead", c.dead), ("skipped", c.skipped), ("open", c.open)]
    {
        o.insert(key.into(), n.into());
    }
    o.insert("items".into(), c.wanted().into());
    o.insert("per_minute".into(), json!(per_minute(view)));
    o.insert("left_ms".into(), left_ms(view).into());
    put_money(&mut o, "spent", Some(view.envelope.spent.cost()));
    o.insert("created_at".into(), time::rfc3339(run.created_at).into());
    o.insert("ended_at".into(), run.ended_at.map(time::rfc3339).into());
    o
}
