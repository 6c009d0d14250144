//! `outlast ls`: lists the runs, newest first.

use outlast_core::{
    envelope::unit::Unit,
    store::{RunFilter, RunView, Store},
    words::id::{Micros, Seq},
};
use serde_json::{Map, Value, json};

use crate::{
    cli::LsArgs,
    program::error::CliError,
    render::{
        amount::{put_money, usd},
        look::{self, Page},
        next::{Next, is_unmetered, next, next_with},
        short::short,
        table::{Cell, Side, Table},
        time,
    },
};

/// Most entries of a run that are counted for its line.
const FIRST: usize = 200;

pub fn ls(store: &dyn Store, args: &LsArgs, page: &mut Page) -> Result<(), CliError> {
    let now = store.now()?;
    // One more than asked for, to tell whether there are more.
    let limit = args.limit.saturating_add(1);
    let mut runs = store.runs(&RunFilter { status: args.status, limit, ..RunFilter::default() })?;
    let more = runs.len() > args.limit;
    runs.truncate(args.limit);
    let nexts = runs.iter().map(|view| next_of(store, view)).collect::<Result<Vec<Next>, CliError>>()?;
    if page.look.json {
        let runs: Vec<Value> = runs.iter().zip(&nexts).map(|(view, next)| object(view, next)).collect();
        return Ok(page.json(&json!({ "runs": runs, "more": more }))?);
    }
    if runs.is_empty() {
        let which = args.status.map_or_else(String::new, |s| format!("{} ", s.name()));
        return Ok(page.line(&format!("no {which}runs in {}", store.place()))?);
    }
    let look = page.look;
    page.text(&table(&runs, &nexts, now).render(look, 0))?;
    if more {
        page.line(&format!("only the newest {}; see --limit", args.limit))?;
    }
    Ok(())
}

/// Returns the next step for a run. Entries are read of a run alone that called no model, and at most `FIRST` of them.
fn next_of(store: &dyn Store, view: &RunView) -> Result<Next, CliError> {
    if !is_unmetered(view) || view.run.next_seq <= Seq(1) {
        return Ok(next(view));
    }
    let first = store.entries(view.run.no, Seq(0), FIRST)?;
    Ok(next_with(view, &first, first.len() < FIRST))
}

fn table(runs: &[RunView], nexts: &[Next], now: Micros) -> Table {
    let mut table = Table::new(&[
        ("run", Side::Left),
        ("name", Side::Left),
        ("status", Side::Left),
        ("usd", Side::Right),
        ("of", Side::Right),
        ("calls", Side::Right),
        ("age", Side::Right),
        ("next", Side::Left),
    ]);
    for (view, next) in runs.iter().zip(nexts) {
        let (run, e) = (&view.run, &view.envelope);
        table.row(vec![
            Cell::whole(short(view)),
            view.spec.name.clone().unwrap_or_default().into(),
            Cell::painted(run.status.name(), look::of_status(run.status)),
            usd(e.spent.cost()).into(),
            e.limits[Unit::CostNanoUsd].map(usd).unwrap_or_default().into(),
            e.spent[Unit::Calls].to_string().into(),
            time::age(now.ms_since(run.created_at)).into(),
            next.brief.clone().into(),
        ]);
    }
    table
}

fn object(view: &RunView, next: &Next) -> Value {
    let (run, e) = (&view.run, &view.envelope);
    let mut o = Map::new();
    o.insert("run".into(), run.id.as_str().into());
    o.insert("name".into(), view.spec.name.clone().into());
    o.insert("status".into(), run.status.name().into());
    o.insert("tags".into(), json!(view.spec.tags));
    o.insert("created_at".into(), time::rfc3339(run.created_at).into());
    o.insert("began_at".into(), run.began_at.map(time::rfc3339).into());
    o.insert("ended_at".into(), run.ended_at.map(time::rfc3339).into());
    put_money(&mut o, "spent", Some(e.spent.cost()));
    put_money(&mut o, "in_doubt", Some(e.doubt.cost()));
    put_money(&mut o, "limit", e.limits[Unit::CostNanoUsd]);
    o.insert("calls".into(), e.spent[Unit::Calls].into());
    o.insert("wake_at".into(), run.wake_at.map(time::rfc3339).into());
    o.insert("halt_code".into(), run.halt.as_ref().map(|h| h.code.clone()).into());
    o.insert("next".into(), json!(next));
    Value::Object(o)
}
