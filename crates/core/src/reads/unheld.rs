//! Calls that a run's limits or sums do not hold as billed: requests that passed Outlast by, calls without a price, and
//! estimates.

use crate::{
    engine::checkpoint::Name,
    envelope::Unit,
    journal::{Kind, Role},
    reads::entries,
    run::Unpriced,
    store::{self, RunView, Sought, Store},
    words::RunNo,
};

/// Returns lines for people about what no limit of the run holds; empty if there is nothing of the kind.
///
/// Calls without a price are looked for where one may leave now: the time then grows with the number of entries.
pub fn lines(store: &dyn Store, view: &RunView) -> Result<Vec<String>, store::Error> {
    let is_limited = view.envelope.limits[Unit::CostNanoUsd].is_some();
    let mut count = 0;
    if !is_limited || view.run.policy.unpriced == Unpriced::Free {
        for entry in entries::each(store, view.run.no) {
            count += i64::from(entry?.call.is_some_and(|call| call.unpriced.is_some()));
        }
    }
    Ok(unmetered(store, view.run.no)?.into_iter().chain(unpriced(count)).collect())
}

/// Returns the line about requests that were seen to pass Outlast by; `None` without one.
pub fn unmetered(store: &dyn Store, run: RunNo) -> Result<Option<String>, store::Error> {
    let noted = Sought::done(Kind::Checkpoint, &Name::unmetered());
    let Some(entry) = store.newest(run, &noted)? else { return Ok(None) };
    let text = entries::kept(store, run, entry.seq, Role::Value)?;
    Ok(text.map(|text| format!("unmetered {} (attempt {})", String::from_utf8_lossy(&text), entry.attempt.0)))
}

/// Returns the line about `count` calls without a price; `None` if there are none.
pub fn unpriced(count: i64) -> Option<String> {
    (count > 0).then(|| format!("unpriced  {}: what has no known price is in no sum", calls(count)))
}

/// Returns the line about `count` calls whose charge is an estimate; `None` if there are none.
pub fn estimated(count: i64) -> Option<String> {
    (count > 0).then(|| format!("estimated {} without usage, charged at the reservation", calls(count)))
}

fn calls(count: i64) -> String {
    if count == 1 { "1 call".into() } else { format!("{count} calls") }
}
