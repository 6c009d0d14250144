//! `outlast stop RUN`: ends a run's agent; the run can be resumed.

use std::{path::Path, time::Duration};

use outlast_core::{
    engine::{
        act::InName,
        run::tell::{Tell, Word},
    },
    run::status::Status,
    store::{Ask, Durability, RunView, Store},
};

use super::budget::commands;
use crate::{
    cli::StopArgs,
    program::{
        error::CliError,
        exit_code,
        find::{self, Verb},
    },
    render::{
        look::{Page, Paint},
        next::{ChangedRun, next},
        short::called,
    },
    supervisor::strays,
};

/// Interval at which a run that is stopping is read again.
const POLL: Duration = Duration::from_millis(200);

/// Asks a run to stop, in the name of `by`. Returns `REFUSED` when its supervisor has not stopped it in time; the request stays.
pub fn stop(
    store: &dyn Store,
    by: &str,
    here: &Path,
    args: &StopArgs,
    page: &mut Page,
    sleep: &mut dyn FnMut(Duration),
) -> Result<u8, CliError> {
    let found = find::run_or_last(store, args.run.as_deref(), here, Verb::Stop)?;
    let no = found.run.no;
    store.ask(InName::of(by, Tell { run: no, word: Word::Stop }), Durability::Synced).wait()?;
    let look_again = || -> Result<RunView, CliError> { Ok(store.run(no)?.unwrap_or_else(|| found.clone())) };
    let mut view = look_again()?;
    let mut left = Duration::from_millis(args.wait_ms.max(0).unsigned_abs());
    let mut stopping = is_stopping(store, &view)?;
    while stopping && !left.is_zero() {
        let nap = POLL.min(left);
        sleep(nap);
        left -= nap;
        view = look_again()?;
        stopping = is_stopping(store, &view)?;
    }
    if !stopping {
        strays::sweep(store, &view)?;
    }
    let run = &view.run;
    let waited_in_vain = stopping && args.wait_ms > 0;
    if page.look.json {
        page.json(&ChangedRun::new(&view, Some(found.run.status), store.now()?))?;
    } else {
        let id = page.look.paint(Paint::Strong, &called(&view));
        let driver = if run.job.is_some() { "its script" } else { "its supervisor" };
        let said = match stopping {
            true if waited_in_vain => format!("{driver} was asked to stop it, and has not yet"),
            true => format!("{driver} was asked to stop it"),
            false => run.status.name().to_owned(),
        };
        page.line(&format!("{id}  {said}"))?;
        if run.status == Status::Interrupted {
            page.text(&commands(&next(&view, &called(&view))))?;
        }
    }
    Ok(if waited_in_vain { exit_code::REFUSED } else { exit_code::OK })
}

/// Returns whether a live driver has still to end the run. A run without one has stopped at once.
fn is_stopping(store: &dyn Store, view: &RunView) -> Result<bool, CliError> {
    if !view.run.stop_requested || view.run.status.is_ended() {
        return Ok(false);
    }
    if matches!(view.run.status, Status::Running | Status::Waiting | Status::Sleeping) {
        // Also between two attempts: the supervisor sees the request before the next one.
        return Ok(true);
    }
    let driven = |a: &outlast_core::run::attempt::Attempt| a.is_open() && a.instance.is_some();
    Ok(store.attempts(view.run.no)?.iter().any(driven))
}
