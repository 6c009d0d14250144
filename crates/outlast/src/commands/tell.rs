//! `outlast stop`, `outlast wake` and `outlast cancel`: tell a run to stop, to go on at once, or to end for good.

use outlast_core::engine::{Tell, Word};

use super::{budget::commands, prelude::*};

/// Stop a run's agent and leave the run to be resumed
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  outlast stop nightly && outlast resume nightly")]
pub struct StopArgs {
    /// The run: its id, its name, or the start of its id; the last run of this directory
    pub run: Option<String>,
    /// Longest time to wait until its supervisor has stopped it; 0s asks and does not wait
    #[arg(long = "wait", value_name = "TIME", default_value = "30s", value_parser = values::ms)]
    pub wait_ms: i64,
}

/// Start a run now that sleeps until its provider's usage limit resets, or ask the provider now that it waits for
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  outlast wake nightly")]
pub struct WakeArgs {
    /// The run: its id, its name, or the start of its id
    pub run: String,
}

/// End a run for good
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  outlast cancel nightly --reason \"wrong input file\"")]
pub struct CancelArgs {
    /// The run: its id, its name, or the start of its id
    pub run: String,
    /// Why, for `outlast show`
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

/// Interval at which a run that is stopping is read again.
const POLL: Duration = Duration::from_millis(200);

/// Asks a run to stop, in the name of `by`. Returns `REFUSED` when its supervisor has not stopped it in time; the request stays.
pub fn stop(args: &StopArgs, mut desk: Desk) -> Result<u8> {
    let here = desk.context.around.directory();
    let found = find::run_or_last(desk.store, args.run.as_deref(), here, Verb::Stop)?;
    check_goes_on(&found, "stop")?;
    let longest = Duration::from_millis(args.wait_ms.max(0).unsigned_abs());
    let (view, stopping) = ask_to_stop(&mut desk, &found, longest)?;
    let run = &view.run;
    let waited_in_vain = stopping && args.wait_ms > 0;
    let driver = if run.job.is_some() { "its script" } else { "its supervisor" };
    let said = match stopping {
        true if waited_in_vain => format!("{driver} was asked to stop it, and has not yet"),
        true => format!("{driver} was asked to stop it"),
        false => run.status.name().to_owned(),
    };
    print(desk.store, &view, found.run.status, &said, desk.page)?;
    Ok(if waited_in_vain { exit_code::REFUSED } else { exit_code::OK })
}

/// Asks a run to stop, and waits for it. Returns the run as it is then, and whether it has not stopped yet.
pub fn ask_to_stop(desk: &mut Desk, found: &RunView, longest: Duration) -> Result<(RunView, bool)> {
    let (store, no) = (desk.store, found.run.no);
    store.ask(InName::of(desk.by, Tell { run: no, word: Word::Stop }), Durability::Synced).wait()?;
    let look_again = || -> Result<RunView> { Ok(store.run(no)?.unwrap_or_else(|| found.clone())) };
    let (mut view, mut left) = (look_again()?, longest);
    let mut stopping = is_stopping(store, &view)?;
    while stopping && !left.is_zero() {
        let nap = POLL.min(left);
        (desk.wait)(nap);
        left -= nap;
        view = look_again()?;
        stopping = is_stopping(store, &view)?;
    }
    if !stopping {
        strays::sweep(store, &view, desk.context)?;
    }
    Ok((view, stopping))
}

/// Refuses a run that has ended. Errors: `Ended`.
fn check_goes_on(view: &RunView, verb: &'static str) -> Result<(), RunError> {
    match view.run.status {
        status if status.is_ended() => Err(RunError::Ended { run: called(view), status, verb }),
        _ => Ok(()),
    }
}

/// Returns whether a live driver has still to end the run. A run without one has stopped at once.
fn is_stopping(store: &dyn Store, view: &RunView) -> Result<bool> {
    if !view.run.stop_requested || view.run.status.is_ended() {
        return Ok(false);
    }
    if matches!(view.run.status, Status::Running | Status::Waiting | Status::Sleeping) {
        // Also between two attempts: the supervisor sees the request before the next one.
        return Ok(true);
    }
    let driven = |a: &Attempt| a.is_open() && a.instance.is_some();
    Ok(store.attempts(view.run.no)?.iter().any(driven))
}

/// Wakes a sleeping run, or has the provider asked that a run waits for. Returns `REFUSED`, and changes nothing, if the run
/// does neither.
pub fn wake(args: &WakeArgs, Desk { store, by, page, .. }: Desk) -> Result<u8> {
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
    let status = page.look.paint(look::of_status(run.status), run.status.name());
    let said = match (slept, run.status) {
        _ if asks => ": its provider is asked now",
        (true, Status::Running) => ": its supervisor starts it now",
        (_, Status::Interrupted) => ": nobody drives it",
        (_, _) => ": it does not sleep, and waits for no provider",
    };
    print(store, &view, before, &format!("{status}{said}"), page)?;
    Ok(if slept || asks { exit_code::OK } else { exit_code::REFUSED })
}

/// Cancels a run. Returns `HALTED` when the run stays halted: a halt outlives a cancel, and only a raise ends it.
pub fn cancel(args: &CancelArgs, Desk { store, by, context, page, .. }: Desk) -> Result<u8> {
    let found = find::run_to(store, &args.run, Verb::End)?;
    let before = found.run.status;
    if before != Status::Cancelled {
        check_goes_on(&found, "cancel")?;
    }
    let word = Word::Cancel { reason: args.reason.clone() };
    let status = store.ask(InName::of(by, Tell { run: found.run.no, word }), Durability::Synced).wait()?;
    let view = store.run(found.run.no)?.unwrap_or(found);
    strays::sweep(store, &view, context)?;
    let shown = page.look.paint(look::of_status(status), status.name());
    let stays = if status == Status::Halted { ": a halt outlives a cancel" } else { "" };
    print(store, &view, before, &format!("{shown}{stays}"), page)?;
    Ok(if status == Status::Halted { exit_code::HALTED } else { exit_code::OK })
}

/// Prints a run that was told something, and what is next where nobody drives it. `before`: its status until then.
fn print(store: &dyn Store, view: &RunView, before: Status, said: &str, page: &mut Page) -> Result {
    if page.look.json {
        return Ok(page.json(&ChangedRun::new(view, Some(before), store.now()?))?);
    }
    let word = called(view);
    page.line(&format!("{}  {said}", page.look.paint(Paint::Strong, &word)))?;
    if view.run.status == Status::Interrupted {
        page.text(&commands(&next(view, &word)))?;
    }
    Ok(())
}
