//! Runs in which nothing was recorded for a while.

use crate::{
    reads::runs,
    run::{Run, Status},
    store::{self, RunFilter, Store},
    words::{Micros, Seq},
};

/// Returns the time of the last change, of the run's status or of its newest entry.
pub fn changed_at(store: &dyn Store, run: &Run) -> Result<Micros, store::Error> {
    let newest = store.entry(run.no, Seq(run.next_seq.0 - 1))?;
    let of_entry = newest.map(|e| e.closed_at.unwrap_or(e.opened_at));
    let times = [Some(run.created_at), run.began_at, run.ended_at, of_entry];
    Ok(times.into_iter().flatten().max().unwrap_or(run.created_at))
}

/// Returns the running runs whose callers name them in an HTTP header, that have not changed since `since`, and in
/// which no call is on its way.
pub fn idle_since(store: &dyn Store, since: Micros) -> Result<Vec<Run>, store::Error> {
    let mut idle = Vec::new();
    let filter = RunFilter { status: Some(Status::Running), ..RunFilter::default() };
    for view in runs::each(store, filter) {
        let view = view?;
        if !view.envelope.has_calls_in_flight()
            && changed_at(store, &view.run)? <= since
            && is_header_callers(store, &view.run, since)?
        {
            idle.push(view.run);
        }
    }
    Ok(idle)
}

/// Returns whether all open attempts are those of header callers, and began before `since`.
fn is_header_callers(store: &dyn Store, run: &Run, since: Micros) -> Result<bool, store::Error> {
    let attempts = store.attempts(run.no)?;
    let mut open = attempts.iter().filter(|a| a.is_open());
    Ok(open.all(|a| a.instance.is_none() && a.started_at <= since) && attempts.iter().any(|a| a.is_open()))
}
