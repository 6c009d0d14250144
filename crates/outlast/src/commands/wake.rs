//! `outlast wake RUN`: wakes a run that sleeps until a usage limit is over, and has the provider asked that a run waits for.

use outlast_core::{
    engine::{
        act::InName,
        run::tell::{Tell, Word},
    },
    run::status::Status,
    store::{Ask, Durability, Store},
};

use super::budget::commands;
use crate::{
    cli::WakeArgs,
    program::{
        error::CliError,
        exit_code,
        find::{self, Verb},
    },
    render::{
        look::{self, Page, Paint},
        next::{ChangedRun, next},
        short::called,
    },
};

/// Wakes a sleeping run, or has the provider asked that a run waits for. Returns `REFUSED`, and changes nothing, if the run
/// does neither.
pub fn wake(store: &dyn Store, by: &str, args: &WakeArgs, page: &mut Page) -> Result<u8, CliError> {
    let found = find::run_to(store, &args.run, Verb::Wake)?;
    let before = found.run.status;
    let slept = found.run.wake_at.is_some();
    let asks = before == Status::Waiting && found.run.awaited_outage().is_some();
    if slept || asks {
        let wake = Tell { run: found.run.no, word: Word::Wake };
        store.ask(InName::of(by, wake), Durability::Synced).wait()?;
    }
    let view = store.run(found.run.no)?.unwrap_or(found);
    let run = &view.run;
    if page.look.json {
        page.json(&ChangedRun::new(&view, Some(before), store.now()?))?;
    } else {
        let id = page.look.paint(Paint::Strong, &called(&view));
        let status = page.look.paint(look::of_status(run.status), run.status.name());
        let said = match (slept, run.status) {
            _ if asks => ": its provider is asked now",
            (true, Status::Running) => ": its supervisor starts it now",
            (_, Status::Interrupted) => ": nobody drives it",
            (_, _) => ": it does not sleep, and waits for no provider",
        };
        page.line(&format!("{id}  {status}{said}"))?;
        if run.status == Status::Interrupted {
            page.text(&commands(&next(&view, &called(&view))))?;
        }
    }
    Ok(if slept || asks { exit_code::OK } else { exit_code::REFUSED })
}
