//! Reading items and steps, as a resume does.

use super::Tables;
use crate::{
    journal::{Entry, Kind, Role, State, approval, job::ItemRow, payload::Payload},
    store::{INLINE_VALUE, StepRow},
    words::id::{RunNo, Seq},
};

impl Tables {
    /// The newest entry of each item, in order.
    pub fn items_of(&self, run: RunNo, after: Seq) -> impl Iterator<Item = ItemRow> {
        let newest = |e: &&Entry| e.kind == Kind::Item && e.retried_by.is_none();
        self.entries_of(run).filter(move |e| e.seq > after).filter(newest).filter_map(ItemRow::of)
    }

    pub fn approvals(&self, filter: &approval::Filter) -> Vec<Entry> {
        let wanted = |e: &&Entry| {
            e.kind == Kind::Approval
                && (e.state == State::Open || !filter.open)
                && filter.run.is_none_or(|run| run == e.run)
        };
        let mut found: Vec<Entry> = self.entries.values().filter(wanted).cloned().collect();
        found.sort_by_key(|e| std::cmp::Reverse((e.opened_at, e.run, e.seq)));
        found.truncate(filter.limit);
        found
    }

    pub fn steps_of(&self, run: RunNo, after: Seq) -> impl Iterator<Item = (StepRow, Option<Payload>)> {
        let steps = self.entries_of(run).filter(move |e| e.seq > after && e.kind == Kind::Step);
        steps.map(move |e| {
            let row = StepRow {
                seq: e.seq,
                scope: e.scope.clone(),
                key: e.key.clone().unwrap_or_default(),
                state: e.state,
                closed_at: e.closed_at,
            };
            (row, self.value_of(run, e.seq, INLINE_VALUE))
        })
    }

    /// What was recorded, if it is stored in at most `most` bytes.
    pub fn value_of(&self, run: RunNo, seq: Seq, most: i64) -> Option<Payload> {
        self.payloads.get(&(run, seq, Role::Value, 0)).filter(|p| p.bytes.len() as i64 <= most).cloned()
    }
}
