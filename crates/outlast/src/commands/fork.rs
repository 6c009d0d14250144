//! `outlast snapshot RUN NAME` and `outlast fork RUN --from-snapshot …`.

use outlast_core::{
    engine::{act::InName, run::fork::Snapshot},
    envelope::unit::{Limits, Unit},
    reads::{
        self,
        forks::{Point, id_of, prepare},
    },
    store::{Ask, Durability, RunView, Store},
    words::id::{AttemptNo, RunId},
};
use outlast_view::Fork;
use serde_json::json;

use crate::{
    cli::{ForkArgs, SnapshotArgs},
    program::{error::CliError, find, jsonl},
    render::{
        amount::some,
        look::{self, Page, Paint},
    },
};

pub fn name(store: &dyn Store, args: &SnapshotArgs, page: &mut Page) -> Result<(), CliError> {
    let view = meant(store, &args.run)?;
    let snapshot = Snapshot { run: view.run.no, id: view.run.id.clone(), name: args.name.clone() };
    let seq = store.ask(snapshot, Durability::Synced).wait()?;
    if page.look.json {
        return Ok(page.json(&json!({ "run": view.run.id, "snapshot": args.name, "seq": seq.0 }))?);
    }
    let id = page.look.paint(Paint::Strong, view.run.id.as_str());
    page.line(&format!("{id}  snapshot {} at entry {seq}", look::clean(&args.name)))?;
    Ok(page.line(&format!("  → outlast fork {} --from-snapshot {}", view.run.id, look::clean(&args.name)))?)
}

pub fn fork(store: &dyn Store, by: &str, args: &ForkArgs, page: &mut Page) -> Result<(), CliError> {
    let view = meant(store, &args.run)?;
    let point = point(store, &view, &args.from_snapshot)?;
    let usage = |message: String| CliError::usage(message, Some("give the fork an id with --id"));
    let id = match &args.id {
        Some(id) => RunId::new(id).map_err(|e| usage(e.to_string()))?,
        None => id_of(&view.run.id, &point).ok_or_else(|| usage("its id would be too long".into()))?,
    };
    let mut limits = Limits::default();
    limits[Unit::CostNanoUsd] = args.usd;
    let fork = prepare(store, view.run.no, &point, id.clone(), limits)?;
    let (origin, has_command) = (fork.origin, fork.spec.command.is_some());
    let started = store.ask(InName::of(by, fork), Durability::Synced).wait()?;
    if page.look.json {
        return Ok(page.json(&Fork::new(id, &view.run.id, origin, started.created))?);
    }
    let strong = page.look.paint(Paint::Strong, id.as_str());
    let shared = some(origin.seq.0, "entry").replace("entrys", "entries");
    let was = if started.created { "" } else { ", which is there already" };
    page.line(&format!("{strong}  a fork of {}{was}: it shares the first {shared}", view.run.id))?;
    if has_command {
        page.line(&format!("  → outlast resume {id}"))?;
    }
    Ok(())
}

/// Finds the job that has this name, or else the run.
fn meant(store: &dyn Store, asked: &str) -> Result<RunView, CliError> {
    match find::job(store, asked) {
        Ok(view) => Ok(view),
        Err(e) if jsonl::is_file(asked) => Err(e),
        Err(_) => find::run(store, asked),
    }
}

/// Reads a fork point from the command line: first as a snapshot's name, then an attempt's number, then a time.
fn point(store: &dyn Store, view: &RunView, word: &str) -> Result<Point, CliError> {
    if reads::snapshots::named(store, &view.run.id, word)?.is_none()
        && let Ok(no) = word.parse::<i64>()
    {
        return Ok(Point::Attempt(AttemptNo(no)));
    }
    Ok(find::fork_point(store, view, word)?)
}
