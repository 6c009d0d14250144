//! `outlast cancel RUN`: ends a run for good.

use outlast_core::{
    engine::{
        act::InName,
        run::tell::{Tell, Word},
    },
    run::status::Status,
    store::{Ask, Durability, Store},
};

use crate::{
    cli::CancelArgs,
    program::{
        error::CliError,
        exit_code,
        find::{self, Verb},
    },
    render::{
        look::{self, Page, Paint},
        next::ChangedRun,
        short::called,
    },
    supervisor::strays,
};

/// Cancels a run. Returns `HALTED` when the run stays halted: a halt outlives a cancel, and only a raise ends it.
pub fn cancel(store: &dyn Store, by: &str, args: &CancelArgs, page: &mut Page) -> Result<u8, CliError> {
    let found = find::run_to(store, &args.run, Verb::End)?;
    let before = found.run.status;
    let word = Word::Cancel { reason: args.reason.clone() };
    let status = store.ask(InName::of(by, Tell { run: found.run.no, word }), Durability::Synced).wait()?;
    let view = store.run(found.run.no)?.unwrap_or(found);
    strays::sweep(store, &view)?;
    if page.look.json {
        page.json(&ChangedRun::new(&view, Some(before), store.now()?))?;
    } else {
        let id = page.look.paint(Paint::Strong, &called(&view));
        let shown = page.look.paint(look::of_status(status), status.name());
        let stays = if status == Status::Halted { ": a halt outlives a cancel" } else { "" };
        page.line(&format!("{id}  {shown}{stays}"))?;
    }
    Ok(if status == Status::Halted { exit_code::HALTED } else { exit_code::OK })
}
