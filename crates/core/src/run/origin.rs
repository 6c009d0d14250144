//! Forks: a run whose journal begins with a part of another's, shared and never copied.
//!
//! The places of a fork's own entries follow those it shares, so that a place names one entry of the whole.
//! Shared entries were done at the moment of the snapshot; entries that were open, failed or lost then stay the
//! origin's alone. A shared entry costs the fork nothing. A fork that changes a shared entry (an answer is
//! delivered, an item runs anew) gets a row of its own at the same place, which hides the origin's from then
//! on.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    envelope::Amounts,
    journal::{Entry, ItemDetail, ItemRow, State},
    words::{AttemptNo, Micros, RunNo, Seq},
};

/// Part of another run's journal that a fork shares: the entries up to `seq` that were done at the snapshot's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub run: RunNo,
    /// Number of the last entry that may be shared.
    pub seq: Seq,
    pub at: Micros,
}

impl Origin {
    /// Returns the origins of a fork of a run, nearest first: the run itself, then those parts of the run's
    /// own origins that lie before the fork's point.
    pub fn chain(self, of_run: &[Origin]) -> Arc<[Origin]> {
        let before = of_run.iter().map(|o| Origin { seq: o.seq.min(self.seq), at: o.at.min(self.at), ..*o });
        std::iter::once(self).chain(before).collect()
    }

    /// Returns whether an entry is shared: its number is at most `self.seq`, and it was done by the moment of the
    /// snapshot.
    pub fn was_done(&self, seq: Seq, state: State, closed_at: Option<Micros>) -> bool {
        seq <= self.seq && state == State::Done && closed_at.is_some_and(|at| at <= self.at)
    }

    /// Returns the origin's entry as `fork` sees it; `None` if it is not shared.
    pub fn entry(&self, fork: RunNo, e: Entry) -> Option<Entry> {
        self.was_done(e.seq, e.state, e.closed_at).then_some(Entry {
            run: fork,
            attempt: NOBODYS,
            instance: None,
            held: Amounts::default(),
            spent: Amounts::default(),
            delivered_to: None,
            delivered_count: 0,
            taken: None,
            // Any retry in the origin came later than the snapshot, or this entry would not be the newest.
            retried_by: None,
            item: e.item.map(|item| Box::new(ItemDetail { earlier: Amounts::default(), ..*item })),
            ..e
        })
    }

    /// Returns the origin's item row as a fork sees it; `None` if it is not shared.
    pub fn item(&self, row: ItemRow) -> Option<ItemRow> {
        let done = self.was_done(row.seq, row.detail.standing.state(), row.closed_at);
        done.then_some(ItemRow {
            attempt: NOBODYS,
            spent: Amounts::default(),
            detail: ItemDetail { earlier: Amounts::default(), ..row.detail },
            ..row
        })
    }
}

/// Attempt number that no attempt of a fork has: those are counted from 1.
pub const NOBODYS: AttemptNo = AttemptNo(0);
