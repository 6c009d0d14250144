//! Preparation of forks: the point at which a fork begins, and the state it takes along.

use std::collections::BTreeSet;

use crate::{
    engine::{Change, Error, Fork},
    envelope::Limits,
    journal::Counts,
    reads::{entries, places, runs},
    run::{Origin, Spec},
    state::{At, Name, run_namespace},
    store::{self, RunFilter, RunView, Store},
    words::{AttemptNo, Micros, RunId, RunNo, Seq},
};

/// Point of a run's journal at which a fork begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Point {
    /// Name of a snapshot.
    Name(String),
    Seq(Seq),
    /// The end of an attempt.
    Attempt(AttemptNo),
    Time(Micros),
    /// Entry and time that a point was found to be, by a reader of the same store.
    Found(Seq, Micros),
}

/// Looks up `point` in the journal of `run`. Returns the part of the journal that a fork from there shares. Errors:
/// `UnknownRun`, `UnknownSnapshot`, `UnknownAttempt`.
pub fn find(store: &dyn Store, run: RunNo, point: &Point) -> Result<Origin, store::Error> {
    let unknown = || Error::UnknownRun { id: format!("#{run}") };
    let view = store.run(run)?.ok_or_else(unknown)?;
    let missing = |name: String| Error::UnknownSnapshot { id: view.run.id.to_string(), name };
    let last = Seq(view.run.next_seq.0 - 1);
    let at = match point {
        Point::Name(name) => {
            let found = places::snapshot(store, &view.run.id, name)?;
            return Ok(found
                .map(|(seq, at)| Origin { run, seq, at })
                .ok_or_else(|| missing(name.clone()))?);
        }
        Point::Found(seq, at) => return Ok(Origin { run, seq: *seq, at: *at }),
        Point::Seq(seq) => return Ok(Origin { run, seq: *seq, at: store.now()? }),
        Point::Attempt(no) => {
            let attempts = store.attempts(run)?;
            let unknown = || Error::UnknownAttempt { id: view.run.id.to_string(), attempt: no.0 };
            let attempt = attempts.iter().find(|a| a.no == *no).ok_or_else(unknown)?;
            // An attempt that died ended at its last heartbeat, and may have worked on after it: all entries opened
            // before the next attempt began are its work.
            let after =
                |end: Micros| attempts.iter().map(|a| a.started_at).filter(move |at| *at >= end).min();
            match attempt.ended_at {
                Some(end) => match after(end.max(Micros(attempt.started_at.0 + 1))) {
                    Some(next) => Micros(next.0 - 1),
                    None => store.now()?,
                },
                None => store.now()?,
            }
        }
        Point::Time(at) => *at,
    };
    // Entries are ordered by time: a binary search finds the last one opened by then.
    let (mut low, mut high) = (0, last.0);
    while low < high {
        let middle = low + (high - low + 1) / 2;
        let opened = store.entry(run, Seq(middle))?.is_none_or(|e| e.opened_at <= at);
        if opened { low = middle } else { high = middle - 1 }
    }
    Ok(Origin { run, seq: Seq(low), at })
}

/// Builds the fork of `run` from `point`, ready to be submitted. Reads pages of items to count the shared ones.
/// Errors: those of [`find`]; `RunExists` where another run has the id; `Compacted` where versions of that time are
/// no longer kept.
pub fn prepare(
    store: &dyn Store,
    run: RunNo,
    point: &Point,
    id: RunId,
    limits: Limits,
) -> Result<Fork, store::Error> {
    let origin = find(store, run, point)?;
    let unknown = || Error::UnknownRun { id: format!("#{run}") };
    let view = store.run(run)?.ok_or_else(unknown)?;
    let mut counts = Counts::default();
    if view.run.job.is_some() {
        for row in entries::items_upto(store, run, origin.seq) {
            if let Some(row) = origin.item(row?) {
                *counts.of_mut(row.detail.standing) += 1;
            }
        }
    }
    let state = match runs::with_id(store, id.as_str())? {
        Some(there) => is_of(&there.run.origins, &origin, point)
            .then_some(Vec::new())
            .ok_or_else(|| Error::RunExists { id: id.to_string() })?,
        // The server prepares the fork once more, with the state.
        None if store.is_remote() => Vec::new(),
        None => known(store, &view.run.id, At::Time(origin.at), &id)?,
    };
    let name = free_name(store, &view)?;
    Ok(Fork { id, origin, limits, name: None, spec: Spec { name, ..view.spec }, counts, state })
}

/// Returns the name of a run's next fork, which no run has: the run's with `-fork`, and a number where that is taken. `None`
/// if the run has no name.
fn free_name(store: &dyn Store, view: &RunView) -> Result<Option<String>, store::Error> {
    let Some(first) = view.spec.name.as_ref().map(|name| format!("{name}-fork")) else { return Ok(None) };
    let mut taken = BTreeSet::new();
    for other in runs::each(store, RunFilter::of_word(&first)) {
        taken.extend(other?.spec.name.filter(|name| name.starts_with(&first)));
    }
    let numbered = (2..).map(|no| format!("{first}-{no}"));
    Ok(std::iter::once(first.clone()).chain(numbered).find(|name| !taken.contains(name)))
}

/// Returns whether an existing run is this fork. A name that has moved to another point makes another fork.
fn is_of(origins: &[Origin], origin: &Origin, point: &Point) -> bool {
    let named = matches!(point, Point::Name(_) | Point::Found(..));
    origins.first().is_some_and(|had| had.run == origin.run && (!named || had.seq == origin.seq))
}

/// Returns the run's state at that time, as changes of the fork's own namespace.
fn known(store: &dyn Store, run: &RunId, at: At, fork: &RunId) -> Result<Vec<Change>, store::Error> {
    let (namespace, own) = (run_namespace(run), run_namespace(fork));
    let mut changes = Vec::new();
    for agent in places::agents(store, &namespace)? {
        for item in places::keys(store, &namespace, &agent, at)? {
            changes.extend(item.value.map(|value| Change::set(Name::new(&own, &agent, item.key), &value)));
        }
    }
    Ok(changes)
}

/// Builds the default id of a fork: the same for the same point, so that a restart finds the fork. `None` if it would
/// be no valid run id.
pub fn id_of(origin: &RunId, point: &Point) -> Option<RunId> {
    let word = match point {
        Point::Name(name) => name.clone(),
        Point::Seq(seq) | Point::Found(seq, _) => format!("seq-{seq}"),
        Point::Attempt(no) => format!("attempt-{no}"),
        Point::Time(at) => format!("at-{}", at.0),
    };
    let plain: String =
        word.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect();
    RunId::new(&format!("{origin}:{plain}")).ok()
}
