//! `outlast retry JOB`: makes items of a job pending again; the next start of its script runs them.

use outlast_core::{
    reads::items::{self, Again},
    store::Store,
};
use serde_json::json;

use super::jobs;
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
    let again = Again { keys: args.key.clone(), failed: args.failed, reuse_answers: args.reuse_answers };
    let keys = items::reset(store, by, view.run.no, &again)?;
    if page.look.json {
        return Ok(page.json(&json!({
            "run": view.run.id, "reset": keys, "reuse_answers": args.reuse_answers,
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
