//! Reserves and settles calls that do not pass the proxy, for SDKs without a base URL.

use outlast_core::{
    engine::call::admit::Admission,
    envelope::Refusal,
    store::{Ask as _, Durability},
    words::id::Seq,
};
use outlast_server::reservation;

use crate::{
    error::{Failure, refused_hint},
    open_run::OpenRun,
    shared::Core,
};

/// Opens a call entry that reserves the amounts. Returns None if calls in flight hold the room, so that the caller
/// tries again; on the `last` try that is the error `admission_timeout`. Errors: `BudgetExceeded`, which halts the run.
pub fn reserve(
    core: &Core,
    open_run: &OpenRun,
    label: &str,
    nano_usd: i64,
    tokens: i64,
    last: bool,
) -> Result<Option<Seq>, Failure> {
    let at = (open_run.actor(), open_run.slot(), open_run.iteration_of());
    let admit = reservation::admission(at, label, nano_usd, tokens, core.context.entropy.as_ref());
    match core.store.ask(admit, Durability::Synced).wait()? {
        Admission::Go { opening, .. } => {
            open_run.openings().lock().keep(opening);
            Ok(Some(opening.seq))
        }
        Admission::Replay { seq } | Admission::Join { seq, .. } => Ok(Some(seq)),
        Admission::Refused(refusal) => Err(Failure::refused(&refusal, open_run.id_of())),
        Admission::Wait { refusal } if last => Err(no_room(open_run, &refusal)),
        Admission::Wait { .. } => Ok(None),
    }
}

fn no_room(open_run: &OpenRun, refusal: &Refusal) -> Failure {
    // The rest of the run's own budget is held by calls in flight, and comes back when they settle.
    let hint = refusal.whose.is_some().then(|| refused_hint(refusal, open_run.id_of()));
    Failure::new(
        "admission_timeout",
        format!("run {}: no room for the reservation: {}", open_run.id_of(), refusal.message()),
        Some(hint.as_deref().unwrap_or("calls in flight hold the rest of the budget")),
    )
}

/// Settles the call at its cost in nano-USD. None: the call was never sent, and nothing is charged.
pub fn settle(
    core: &Core,
    open_run: &OpenRun,
    seq: Seq,
    nano_usd: Option<i64>,
    tokens: i64,
) -> Result<(), Failure> {
    let (opening, attempt) = (open_run.opening(seq.0), open_run.actor().attempt);
    let settle = reservation::settlement(opening, attempt, nano_usd, tokens);
    core.store.ask(settle, Durability::Synced).wait()?;
    open_run.openings().lock().forget(open_run.actor().run, seq);
    Ok(())
}
