//! `outlast retry JOB`: makes items of a job pending again; the next start of its script runs them.

use std::collections::HashSet;

use outlast_core::{
    engine::{act::InName, item::reset_item::ResetItem},
    journal::job::Standing,
    store::{Ask, Durability, Store},
};
use serde_json::json;

use super::{inspect::each_item, jobs};
use crate::{
    cli::RetryArgs,
    program::{error::CliError, find},
    render::{
        amount::some,
        look::{self, Page, Paint},
    },
};

/// Resets the named items, each in a commit of its own: if one is refused, the others stay reset.
pub fn retry(store: &dyn Store, by: &str, args: &RetryArgs, page: &mut Page) -> Result<(), CliError> {
    if !args.failed && args.key.is_empty() {
        return Err(CliError::usage("no items are named", Some("give --failed, or --key KEY")));
    }
    let view = find::job(store, &args.job)?;
    let run = view.run.no;
    let mut named = HashSet::new();
    let mut keys: Vec<String> = args.key.iter().filter(|key| named.insert(key.as_str())).cloned().collect();
    if args.failed {
        for row in each_item(store, run) {
            let row = row?;
            if matches!(row.detail.standing, Standing::Failed | Standing::Dead)
                && !named.contains(row.key.as_str())
            {
                keys.push(row.key);
            }
        }
    }
    // All requests are sent before the first is awaited, so that the store commits them together.
    let reset = |key: &String| ResetItem { run, key: key.clone(), reuse_answers: args.reuse_answers };
    let asked: Vec<_> =
        keys.iter().map(|key| store.ask(InName::of(by, reset(key)), Durability::Synced)).collect();
    for pending in asked {
        pending.wait()?;
    }
    if page.look.json {
        return Ok(page.json(&json!({
            "job": jobs::name(&view), "run": view.run.id, "reset": keys, "reuse_answers": args.reuse_answers,
        }))?);
    }
    let name = look::clean(&jobs::name(&view));
    if keys.is_empty() {
        return Ok(page.line(&format!("{name}  nothing of it failed"))?);
    }
    let replayed = if args.reuse_answers { "; answers that were paid for are replayed" } else { "" };
    let name = page.look.paint(Paint::Strong, &name);
    page.line(&format!("{name}  {} will run again{replayed}", some(keys.len() as i64, "item")))?;
    Ok(page.line("  → start its script again")?)
}
