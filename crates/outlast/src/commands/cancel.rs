//! `outlast cancel RUN`: ends a run for good.

use outlast_core::{
    engine::run::tell::{Tell, Word},
    run::status::Status,
    store::{Ask, Durability, Store},
};
use serde_json::json;

use crate::{
    cli::CancelArgs,
    program::{
        error::CliError,
        exit_code,
        find::{self, Verb},
    },
    render::{
        look::{self, Page, Paint},
        next::next,
    },
    supervisor::strays,
};

/// Cancels a run. Returns the exit code: `HALTED` if the run was halted, because a halt outlives a cancel.
pub fn cancel(store: &dyn Store, args: &CancelArgs, page: &mut Page) -> Result<u8, CliError> {
    let found = find::run_to(store, &args.run, Verb::End)?;
    let word = Word::Cancel { reason: args.reason.clone() };
    let status = store.ask(Tell { run: found.run.no, word }, Durability::Synced).wait()?;
    let view = store.run(found.run.no)?.unwrap_or(found);
    strays::sweep(store, &view)?;
    if page.look.json {
        page.json(&json!({
            "run": view.run.id,
            "status": status.name(),
            "reason": view.run.error,
            "next": next(&view),
        }))?;
    } else {
        let id = page.look.paint(Paint::Strong, view.run.id.as_str());
        let shown = page.look.paint(look::of_status(status), status.name());
        let stays = if status == Status::Halted { ": a halt outlives a cancel" } else { "" };
        page.line(&format!("{id}  {shown}{stays}"))?;
    }
    Ok(if status == Status::Halted { exit_code::HALTED } else { exit_code::OK })
}
