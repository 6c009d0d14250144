//! `outlast ls`: lists the runs, newest first.

use std::cell::Cell as Flag;

use outlast_core::{
    envelope::unit::Unit,
    reads::runs,
    store::{RunFilter, RunView, Store},
    words::id::{Micros, Seq},
};
use serde_json::Map;

use crate::{
    cli::LsArgs,
    program::error::CliError,
    render::{
        amount::usd,
        did::Did,
        look::{self, Page},
        next::{Next, RunWithNext, is_unmetered, next, next_with},
        short::short,
        table::{Cell, Side, Table},
        time,
    },
};

/// Most entries of a run that are counted for its line.
const FIRST: usize = 200;

pub fn ls(store: &dyn Store, args: &LsArgs, page: &mut Page) -> Result<(), CliError> {
    let now = store.now()?;
    let more = Flag::new(false);
    let runs = runs::each(store, RunFilter { status: args.status, ..RunFilter::default() }).enumerate();
    // One more than asked for is read, to tell whether there are more.
    let first = runs.map_while(|(nth, view)| {
        more.set(nth == args.limit);
        (nth < args.limit).then_some(view)
    });
    let shown = first.map(|view| {
        let view = view?;
        let next = next_of(store, &view)?;
        Ok::<_, CliError>((view, next))
    });
    if page.look.json {
        let objects = shown.map(|row| row.map(|(view, next)| RunWithNext::new(&view, next, now)));
        let tail = || Map::from_iter([("more".to_owned(), more.get().into())]);
        return page.json_list(Map::new(), "runs", objects, tail);
    }
    let rows = shown.map(|row| row.map(|(view, next)| cells(&view, &next, now)));
    if page.table(head(), 0, rows)? == 0 {
        let which = args.status.map_or_else(String::new, |s| format!("{} ", s.name()));
        return Ok(page.line(&format!("no {which}runs in {}", store.place()))?);
    }
    if more.get() {
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
    Ok(next_with(view, &Did::of(&first), first.len() < FIRST))
}

fn head() -> Table {
    Table::new(&[
        ("run", Side::Left),
        ("name", Side::Left),
        ("status", Side::Left),
        ("usd", Side::Right),
        ("of", Side::Right),
        ("calls", Side::Right),
        ("age", Side::Right),
        ("next", Side::Left),
    ])
}

fn cells(view: &RunView, next: &Next, now: Micros) -> Vec<Cell> {
    let (run, e) = (&view.run, &view.envelope);
    vec![
        Cell::whole(short(view)),
        view.spec.name.clone().unwrap_or_default().into(),
        Cell::painted(run.status.name(), look::of_status(run.status)),
        usd(e.spent.cost()).into(),
        e.limits[Unit::CostNanoUsd].map(usd).unwrap_or_default().into(),
        e.spent[Unit::Calls].to_string().into(),
        time::age(now.ms_since(run.created_at)).into(),
        next.brief.clone().into(),
    ]
}
