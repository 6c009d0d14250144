//! Prometheus metrics to be woken by: runs by status, what waits for a person, runs without progress, alerts that were not
//! delivered. `docs/alerts.yml` has the rules.

use outlast_core::{
    journal::Entry,
    run::status::Status,
    store::{Error, RunFilter, Store, filter::ApprovalFilter},
    words::id::{Micros, Seq},
};

use crate::proxy::metrics::{family, labels, line, single};

/// Most running runs, and most open approvals, that the metrics read, newest first.
const MOST: usize = 500;

/// Returns the metrics as text, as of now. Errors: the store's.
///
/// The counts read an index of all runs; everything else reads at most [`MOST`] rows.
pub fn text(store: &dyn Store, now: Micros) -> Result<String, Error> {
    let mut out = String::new();
    let runs = store.statuses()?;
    family(&mut out, "outlast_runs", "gauge", "Runs by status.");
    for status in Status::ALL {
        let n = runs.iter().find(|(of, _)| *of == status).map_or(0, |(_, n)| *n);
        line(&mut out, "outlast_runs", &labels(&[("status", status.name())]), n);
    }
    let help = "Time for which the oldest pending approval waits for a person; 0 without one.";
    single(&mut out, "outlast_oldest_approval_seconds", "gauge", help, oldest_approval(store, now)?);
    let help =
        "Time since the newest entry of the running run that has been silent for longest; 0 without one.";
    single(&mut out, "outlast_silence_seconds", "gauge", help, longest_silence(store, now)?);
    let endpoints = store.deliveries()?;
    for (name, help, count) in [
        ("outlast_alerts_waiting", "Alerts that failed and are sent again, by endpoint.", |d| {
            d.waiting.len()
        }),
        ("outlast_alerts_given_up", "Alerts that were given up, by endpoint.", |d| {
            d.dead.len() + usize::try_from(d.dropped).unwrap_or_default()
        }),
    ] as [(_, _, fn(&outlast_core::events::delivery::Delivery) -> usize); 2]
    {
        family(&mut out, name, "gauge", help);
        for endpoint in &endpoints {
            line(&mut out, name, &labels(&[("endpoint", &endpoint.name)]), count(endpoint));
        }
    }
    Ok(out)
}

fn oldest_approval(store: &dyn Store, now: Micros) -> Result<i64, Error> {
    let open = store.approvals(&ApprovalFilter { run: None, open: true, limit: MOST })?;
    let is_pending = |e: &&Entry| e.approval.as_ref().is_some_and(|a| a.blocked || a.expires_at > now);
    Ok(open.iter().filter(is_pending).map(|e| seconds(e.opened_at, now)).max().unwrap_or(0))
}

fn longest_silence(store: &dyn Store, now: Micros) -> Result<i64, Error> {
    let running = RunFilter { status: Some(Status::Running), limit: MOST, ..RunFilter::default() };
    let mut longest = 0;
    for view in store.runs(&running)? {
        let run = &view.run;
        let newest = store.entry(run.no, Seq(run.next_seq.0 - 1))?;
        let moved = newest.map(|e| e.closed_at.unwrap_or(e.opened_at).max(e.opened_at));
        longest = longest.max(seconds(moved.max(run.began_at).unwrap_or(run.created_at), now));
    }
    Ok(longest)
}

fn seconds(since: Micros, now: Micros) -> i64 {
    (now.0 - since.0).max(0) / 1_000_000
}
