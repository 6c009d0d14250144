//! Reads of items and steps in memory, as a resume needs them.

use super::Tables;
use crate::{
    journal::{Entry, Kind, Role, State, job::ItemRow, payload::Payload},
    store::filter::ApprovalFilter,
    store::{INLINE_VALUE, Page, StepRow, WHOLE_VALUE},
    words::id::{RunNo, Seq},
};

impl Tables {
    /// Returns the newest entry of each item, in order.
    pub fn items_of(&self, run: RunNo, page: Page) -> impl Iterator<Item = (ItemRow, Option<Payload>)> {
        let upto = page.upto;
        let newest = move |e: &&Entry| e.kind == Kind::Item && e.retried_by.is_none_or(|by| by > upto);
        let all = self.entries_of(run).filter(move |e| e.seq > page.after && e.seq <= upto).filter(newest);
        let value = move |seq| page.values.then(|| self.value_of(run, seq, WHOLE_VALUE)).flatten();
        all.filter_map(ItemRow::of).take(page.limit).map(move |row| (row.clone(), value(row.seq)))
    }

    pub fn approvals(&self, filter: &ApprovalFilter) -> Vec<Entry> {
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

    /// Returns the recorded value of an entry; `None` if there is none, or if it is stored in more than `most` bytes.
    pub fn value_of(&self, run: RunNo, seq: Seq, most: i64) -> Option<Payload> {
        self.payloads.get(&(run, seq, Role::Value, 0)).filter(|p| p.bytes.len() as i64 <= most).cloned()
    }
}
