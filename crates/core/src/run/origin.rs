//! Forks: a run whose journal begins with a part of another's, shared and never copied.
//!
//! The places of a fork's own entries follow those it shares, so that a place names one entry of the whole. What it
//! shares was done by the moment of the snapshot; what was open, failed or lost then is the origin's alone. A shared
//! entry costs nothing here. Where a fork changes one (an answer is delivered, an item runs anew), it gets a row of
//! its own at the same place, which from then on stands before the origin's.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    envelope::unit::Amounts,
    journal::{Entry, State, job::ItemRow},
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
