//! Forks: a run whose journal begins with a part of another's, shared and never copied.
//!
//! The places of a fork's own entries follow those it shares, so that a place names one entry of the whole. What it
//! shares was done by the moment of the snapshot; what was open, failed or lost then is the origin's alone. A shared
//! entry costs nothing here. Where a fork changes one (an answer is delivered, an item runs anew), it gets a row of
//! its own at the same place, which from then on stands before the origin's.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    engine::loaded::{Loaded, Need, Row},
    envelope::unit::Amounts,
    journal::{
        Entry, Kind, State,
        job::{ItemRow, SCOPE},
    },
    words::id::{AttemptNo, Micros, RunNo, Seq},
};

/// A part of another run's journal: up to a place, and done by a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub run: RunNo,
    /// The last place that is shared.
    pub seq: Seq,
    pub at: Micros,
}

impl Origin {
    /// What a fork of a run has as its origins, nearest first: the run, and of its own origins as much as
    /// lies before the point.
    pub fn chain(self, of_run: &[Origin]) -> Arc<[Origin]> {
        let before = of_run.iter().map(|o| Origin { seq: o.seq.min(self.seq), at: o.at.min(self.at), ..*o });
        std::iter::once(self).chain(before).collect()
    }

    /// Whether it was done by the moment of the snapshot.
    pub fn was_done(&self, seq: Seq, state: State, closed_at: Option<Micros>) -> bool {
        seq <= self.seq && state == State::Done && closed_at.is_some_and(|at| at <= self.at)
    }

    /// The origin's entry as `fork` sees it; `None` where it is not shared.
    pub fn entry(&self, fork: RunNo, e: Entry) -> Option<Entry> {
        self.was_done(e.seq, e.state, e.closed_at).then_some(Entry {
            run: fork,
            attempt: NOBODYS,
            instance: None,
            held: Amounts::default(),
            spent: Amounts::default(),
            delivered_to: None,
            delivered_count: 0,
            // Whatever followed it in the origin came later, or it would not be the newest.
            retried_by: None,
            ..e
        })
    }

    /// The same of an item.
    pub fn item(&self, row: ItemRow) -> Option<ItemRow> {
        let done = self.was_done(row.seq, row.detail.standing.state(), row.closed_at);
        done.then_some(ItemRow { attempt: NOBODYS, spent: Amounts::default(), ..row })
    }
}

/// No attempt of a fork: its own are counted from 1.
pub const NOBODYS: AttemptNo = AttemptNo(0);

/// Adds to what was loaded for an operation what the forks among its runs share.
///
/// `load` loads one need, and is asked only for what is missing. Stores call it after loading, inside the same
/// transaction; runs that are no forks cost nothing.
pub fn share<E>(
    l: &mut Loaded,
    needs: &[Need],
    mut load: impl FnMut(&[Need]) -> Result<Loaded, E>,
) -> Result<(), E> {
    if l.runs.iter().all(|r| r.value.origins.is_empty()) {
        return Ok(());
    }
    for need in needs {
        let fork = match need {
            Need::Entry(run, _) | Need::Item(run, _) | Need::Matching(run, _) | Need::Keyed(run, ..) => *run,
            _ => continue,
        };
        let Ok(origins) = l.run(fork).map(|run| run.origins.clone()) else { continue };
        for origin in origins.iter() {
            if is_answered(l, fork, need) {
                break;
            }
            let wanted = match need {
                Need::Entry(_, seq) if *seq <= origin.seq => Need::Entry(origin.run, *seq),
                Need::Matching(_, key) => Need::Matching(origin.run, *key),
                Need::Item(_, key) => {
                    Need::KeyedUpTo(origin.run, Kind::Item, SCOPE.to_owned(), key.clone(), origin.seq)
                }
                Need::Keyed(_, kind, scope, key) => {
                    Need::KeyedUpTo(origin.run, *kind, scope.clone(), key.clone(), origin.seq)
                }
                _ => break,
            };
            let found = load(&[wanted])?.entries;
            let is_last = matches!(need, Need::Item(..) | Need::Keyed(..)) && !found.is_empty();
            for row in found {
                if let Some(e) = origin.entry(fork, row.value)
                    && l.entry(fork, e.seq).is_none()
                {
                    l.entries.push(Row::shared(e));
                }
            }
            if is_last {
                // The nearest origin's newest is the newest, whatever became of it.
                break;
            }
        }
        if matches!(need, Need::Matching(..)) {
            l.entries.sort_by_key(|row| (row.value.run, row.value.seq));
        }
    }
    Ok(())
}

/// Whether the fork itself, or a nearer origin, has what is needed. Of calls, all are needed.
fn is_answered(l: &Loaded, fork: RunNo, need: &Need) -> bool {
    let own = |e: &Entry, kind: Kind, scope: &str, key: &str| {
        e.run == fork && e.kind == kind && *e.scope == *scope && e.key.as_deref() == Some(key)
    };
    let any = |kind, scope, key| l.entries.iter().any(|r| own(&r.value, kind, scope, key));
    match need {
        Need::Entry(_, seq) => l.entry(fork, *seq).is_some(),
        Need::Item(_, key) => any(Kind::Item, SCOPE, key.as_str()),
        Need::Keyed(_, kind, scope, key) => any(*kind, scope.as_str(), key.as_str()),
        _ => false,
    }
}
