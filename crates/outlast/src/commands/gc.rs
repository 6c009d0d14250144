//! `outlast gc --older-than TIME`: runs that ended long ago are forgotten.

use std::collections::HashSet;

use outlast_core::{
    engine::forget::Forget,
    id::{Micros, RunNo},
    op::Durability,
    store::{Ask, RunFilter, RunView, Store},
};
use serde_json::json;

use crate::{
    cli::GcArgs,
    error::CliError,
    render::{amount::some, look::Page, time},
};

const PAGE: usize = 500;

/// Each run in a commit of its own, so that others get their turn between.
pub fn gc(store: &dyn Store, args: &GcArgs, page: &mut Page) -> Result<(), CliError> {
    let now = store.now()?;
    let ended_before = Micros(now.0.saturating_sub(args.older_than_ms.saturating_mul(1000)));
    let mut forgotten: Vec<RunView> = Vec::new();
    // Newest first: children come before their parents, and one that stays keeps its parent.
    let mut parents: HashSet<RunNo> = HashSet::new();
    let mut before = None;
    loop {
        let runs = store.runs(&RunFilter { before, limit: PAGE, ..RunFilter::default() })?;
        let newest = before.is_none();
        let whole = runs.len() == PAGE;
        before = runs.last().map(|view| view.run.no);
        for (i, view) in runs.into_iter().enumerate() {
            let run = &view.run;
            let over = run.status.is_ended() && run.ended_at.is_some_and(|at| at < ended_before);
            // The newest one keeps the place of the next number.
            let stays = !over || parents.contains(&run.no) || (newest && i == 0);
            let gone = !stays && (args.dry_run || forget(store, run.no, ended_before)?);
            if gone {
                forgotten.push(view);
            } else {
                parents.extend(run.parent);
            }
        }
        if !whole {
            break;
        }
    }
    if page.look.json {
        let runs: Vec<&str> = forgotten.iter().map(|view| view.run.id.as_str()).collect();
        return Ok(page.json(&json!({ "forgotten": runs, "dry_run": args.dry_run }))?);
    }
    for view in &forgotten {
        let ended = view.run.ended_at.map(time::utc).unwrap_or_default();
        page.line(&format!("{}  {}  {ended}", view.run.id, view.run.status.name()))?;
    }
    let what = if args.dry_run { "would be forgotten" } else { "forgotten" };
    Ok(page.line(&format!("{} {what}", some(forgotten.len() as i64, "run")))?)
}

fn forget(store: &dyn Store, run: RunNo, ended_before: Micros) -> Result<bool, CliError> {
    Ok(store.ask(Forget { run, ended_before }, Durability::Synced).wait()?)
}
