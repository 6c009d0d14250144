//! Watching without a terminal: a line for each change, as a log has them.

use std::{
    collections::HashMap,
    io::{self, Write as _},
    time::Duration,
};

use outlast_core::{
    envelope::unit::Unit,
    store::{RunView, Store},
    words::id::{Micros, RunNo},
};
use serde_json::json;

use super::{LOOK, Panel, look::Look};
use crate::{
    commands::{
        Desk,
        journal::{self, JournalArgs},
    },
    program::{context::Context, error::CliError},
    render::{
        amount::usd,
        look::{Look as Printed, Page, clean_line},
        time,
    },
};

/// Prints one run's journal until the run has ended; without a run, prints each change of any run's status, without
/// end. `wait` is called between two looks.
pub fn follow(
    store: &dyn Store,
    run: Option<RunNo>,
    context: &Context,
    wait: &mut dyn FnMut(Duration),
) -> Result<(), CliError> {
    let (look, mut out) = (context.look, io::stdout().lock());
    if let Some(view) = run.map(|no| store.run(no)).transpose()?.flatten() {
        let args = JournalArgs { run: Some(view.run.id.to_string()), follow: true, ..JournalArgs::default() };
        let page = &mut Page::new(&mut out, look);
        return journal::journal(&args, Desk { store, by: "", context, page, wait });
    }
    let mut known: HashMap<RunNo, String> = HashMap::new();
    loop {
        let seen = Look::at(store, Panel::Runs)?;
        // Oldest first, as a log goes on.
        for view in seen.runs.iter().rev() {
            let line = line(view, seen.now, look);
            if known.insert(view.run.no, line.clone()).as_ref() != Some(&line) {
                match look.json {
                    true => writeln!(out, "{line}")?,
                    false => writeln!(out, "{}  {line}", time::moment(seen.now))?,
                }
            }
        }
        out.flush()?;
        wait(LOOK);
    }
}

fn line(view: &RunView, now: Micros, look: Printed) -> String {
    let (run, e) = (&view.run, &view.envelope);
    if look.json {
        return json!(outlast_view::Run::new(view, now)).to_string();
    }
    let of = e.limits[Unit::CostNanoUsd].map_or_else(String::new, |limit| format!(" of {}", usd(limit)));
    let name = clean_line(view.spec.name.as_deref().unwrap_or_default(), 40);
    let calls = e.spent[Unit::Calls];
    format!("{}  {name}  {}  {} usd{of}, {calls} calls", run.id, run.status.name(), usd(e.spent.cost()))
}
