//! Entries of a run's journal: pages filtered by kind, state, attempt and key, and the newest of a kind. And the items of
//! a batch job: all of them, and those that a person lets run again.

use std::collections::HashSet;

use bytes::Bytes;

use super::{Bounds, rows};
use crate::{
    body::{BodyRecord, Restoring},
    engine::{InName, ResetItem, checkpoint::OURS, run::iteration::key},
    journal::{Entry, ItemRow, Kind, Payload, Role, State, job::Standing, scope},
    store::{self, Ask as _, Durability, Error, Page, Sought, Store},
    words::{AttemptNo, RunNo, Seq},
};

const PAGE: Bounds = Bounds { chunk: 1_000, looked_at: 20_000 };

/// Filter of a page of entries. What is `None` or empty matches every entry.
#[derive(Clone, Debug, Default)]
pub struct EntrySearch {
    pub kinds: Vec<Kind>,
    pub states: Vec<State>,
    pub attempt: Option<AttemptNo>,
    pub key: Option<String>,
}

impl EntrySearch {
    fn matches(&self, e: &Entry) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&e.kind))
            && (self.states.is_empty() || self.states.contains(&e.state))
            && self.attempt.is_none_or(|attempt| attempt == e.attempt)
            && self.key.as_ref().is_none_or(|key| e.key.as_ref() == Some(key))
    }
}

/// Returns the entries of a run, oldest first, a chunk of them in memory.
pub fn each(store: &dyn Store, run: RunNo) -> impl Iterator<Item = Result<Entry, store::Error>> {
    each_after(store, run, Seq(0))
}

/// Returns the entries of a run after `after`, oldest first, a chunk of them in memory.
pub fn each_after(
    store: &dyn Store,
    run: RunNo,
    mut after: Seq,
) -> impl Iterator<Item = Result<Entry, store::Error>> {
    rows(move || {
        let chunk = store.entries(run, after, PAGE.chunk)?;
        after = chunk.last().map_or(after, |e| e.seq);
        Ok(chunk)
    })
}

/// Entries that are read first where the newest are asked for: most callers want a few. Each later chunk is twice as long.
const NEWEST: usize = 50;

/// Returns the entries of a run before `before`, newest first, a chunk of them in memory.
pub fn each_back(
    store: &dyn Store,
    run: RunNo,
    mut before: Seq,
) -> impl Iterator<Item = Result<Entry, store::Error>> {
    let mut size = NEWEST;
    rows(move || {
        let mut chunk = Vec::new();
        while chunk.is_empty() && before > Seq(1) {
            let from = Seq((before.0 - 1).saturating_sub_unsigned(size as u64).max(0));
            chunk = store.entries(run, from, size)?;
            size = (2 * size).min(PAGE.chunk);
            chunk.retain(|e| e.seq < before);
            before = Seq(from.0 + 1);
        }
        chunk.reverse();
        Ok(chunk)
    })
}

/// Returns at most `limit` entries after `after`, and the number after which the next page begins; `None` where no entry
/// is left. The work of a page is bounded, whatever the filter.
pub fn page(
    store: &dyn Store,
    run: RunNo,
    wanted: &EntrySearch,
    after: Seq,
    limit: usize,
) -> Result<(Vec<Entry>, Option<Seq>), store::Error> {
    PAGE.page(
        after,
        limit,
        |e: &Entry| e.seq,
        |e| wanted.matches(e),
        |after, chunk| store.entries(run, after, chunk),
    )
}

/// Number of entries before a call in which the call before it is looked for.
const BACK: i64 = 500;

/// Returns the newest call within 500 entries before `entry`, one of the same attempt if there is any; `None` if there
/// is none.
pub fn call_before(store: &dyn Store, entry: &Entry) -> Result<Option<Seq>, store::Error> {
    let from = Seq((entry.seq.0 - BACK - 1).max(0));
    let near = usize::try_from(entry.seq.0 - from.0 - 1).unwrap_or(0);
    let entries = store.entries(entry.run, from, near)?;
    let calls = || entries.iter().rev().filter(|e| e.kind == Kind::Call && e.seq < entry.seq);
    let mut nearest = calls().filter(|e| e.attempt == entry.attempt).chain(calls());
    Ok(nearest.next().map(|e| e.seq))
}

/// Returns the standard input of an iteration (counted from 0): `None` when it has not begun, `Some(None)` when it has
/// no input of its own.
pub fn iteration_input(
    store: &dyn Store,
    run: RunNo,
    iteration: i64,
) -> Result<Option<Option<Payload>>, store::Error> {
    let Some(entry) = store.newest(run, &Sought::done(Kind::Iteration, &key(iteration)))? else {
        return Ok(None);
    };
    Ok(Some(store.payload(run, entry.seq, Role::Stdin)?))
}

/// Returns the newest checkpoint that an agent saved in a run, whatever its name; `None` without one.
///
/// Outlast's own checkpoints are skipped. The time grows with the number of entries after the checkpoint.
pub fn newest_saved(store: &dyn Store, run: RunNo) -> Result<Option<Entry>, store::Error> {
    let Some(view) = store.run(run)? else { return Ok(None) };
    let saved = |e: &Entry| {
        e.kind == Kind::Checkpoint && !e.key.as_deref().is_some_and(|name| name.starts_with(OURS))
    };
    each_back(store, run, view.run.next_seq).find(|e| e.as_ref().map_or(true, saved)).transpose()
}

/// Returns the bytes of an entry's payload; `None` where none is kept.
///
/// Errors: those of the store; `Corrupt` where the payload is damaged.
pub fn kept(store: &dyn Store, run: RunNo, seq: Seq, role: Role) -> Result<Option<Bytes>, Error> {
    let payload = store.payload(run, seq, role)?;
    payload.map(|payload| payload.decode()).transpose().map_err(|e| damaged(seq, role, &e))
}

/// Makes the error for an entry's payload that is not one that Outlast writes.
pub fn damaged(seq: Seq, role: Role, why: &dyn std::fmt::Display) -> Error {
    Error::Corrupt { what: format!("the {} of entry {seq}: {why}", role.name()) }
}

/// Returns the body that entry `seq` of `run` sent; `None` where none is kept (`record` is `answers` or `digests`).
///
/// Errors: those of the store; `Corrupt` where a base record is missing, or the restored bytes are not what was sent.
pub fn request_body(store: &dyn Store, run: RunNo, seq: Seq) -> Result<Option<Vec<u8>>, Error> {
    let Some(newest) = request_record(store, run, seq)? else { return Ok(None) };
    restored(store, run, seq, &newest).map(Some)
}

/// Returns the record of the body that entry `seq` of `run` sent; `None` where none is kept.
pub fn request_record(store: &dyn Store, run: RunNo, seq: Seq) -> Result<Option<BodyRecord>, Error> {
    let bytes = kept(store, run, seq, Role::Request)?;
    bytes.map(BodyRecord::from_bytes).transpose().map_err(|e| damaged(seq, Role::Request, &e))
}

/// Restores the body whose record is that of entry `seq`. Errors: as [`request_body`].
pub fn restored(store: &dyn Store, run: RunNo, seq: Seq, newest: &BodyRecord) -> Result<Vec<u8>, Error> {
    let corrupt = |e: &dyn std::fmt::Display| damaged(seq, Role::Request, e);
    let mut restoring = Restoring::new(newest).map_err(|e| corrupt(&e))?;
    while let Some(wanted) = restoring.wants() {
        let below = request_record(store, run, wanted)?;
        let below = below.ok_or_else(|| corrupt(&format_args!("that of entry {wanted} is missing")))?;
        restoring.give(&below).map_err(|e| corrupt(&e))?;
    }
    restoring.finish().map_err(|e| corrupt(&e))
}

/// Number of items that are read at once.
const ITEMS: usize = 2000;

/// Returns the newest entry of each item of a job, in the order of entries.
pub fn items(store: &dyn Store, run: RunNo) -> impl Iterator<Item = Result<ItemRow, Error>> {
    items_upto(store, run, Seq(i64::MAX))
}

/// Returns the entry of each item of a job that was its newest at entry `upto`.
pub fn items_upto(store: &dyn Store, run: RunNo, upto: Seq) -> impl Iterator<Item = Result<ItemRow, Error>> {
    let mut after = Seq(0);
    rows(move || {
        let page = store.items(run, &Page { upto, ..Page::new(after, ITEMS) })?;
        after = page.last().map_or(after, |(row, _)| row.seq);
        Ok(page.into_iter().map(|(row, _)| row).collect())
    })
}

/// Returns whether a call of the item's newest try was paid in vain, and was not repeated since: the item begun again
/// would pay for it twice. `seq` is the item's entry.
pub fn has_paid_in_vain(store: &dyn Store, run: RunNo, seq: Seq) -> Result<bool, Error> {
    let item = store.entry(run, seq)?;
    let Some((key, detail)) = item.as_ref().and_then(|e| e.key.as_deref().zip(e.item.as_deref())) else {
        return Ok(false);
    };
    let (calls, steps) = (scope::item_calls(key, detail.try_no), scope::calls_of_steps(key, detail.root));
    for entry in each_after(store, run, seq) {
        let entry = entry?;
        let is_of_try = *entry.scope == *calls || entry.scope.starts_with(&steps);
        if is_of_try && entry.is_paid_in_vain() && entry.retried_by.is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Items that a person lets run again.
#[derive(Debug, Default)]
pub struct Again {
    pub keys: Vec<String>,
    /// Whether every failed or dead item is meant, besides `keys`.
    pub failed: bool,
    pub reuse_answers: bool,
}

/// Makes items of a job pending again, in the name of `by`. Returns their keys.
///
/// Each has a commit of its own: if one is refused, the others stay reset.
pub fn reset(store: &dyn Store, by: &str, run: RunNo, again: &Again) -> Result<Vec<String>, Error> {
    let mut named = HashSet::new();
    let mut keys: Vec<String> = again.keys.iter().filter(|key| named.insert(key.as_str())).cloned().collect();
    for row in again.failed.then(|| items(store, run)).into_iter().flatten() {
        let row = row?;
        let failed = matches!(row.detail.standing, Standing::Failed | Standing::Dead);
        if failed && !named.contains(row.key.as_str()) {
            keys.push(row.key);
        }
    }
    // All are submitted before the first is awaited, so that the store commits them together.
    let reset = |key: &String| ResetItem { run, key: key.clone(), reuse_answers: again.reuse_answers };
    let asked: Vec<_> =
        keys.iter().map(|key| store.ask(InName::of(by, reset(key)), Durability::Synced)).collect();
    for pending in asked {
        pending.wait()?;
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use super::*;
    use crate::{
        engine::Op,
        memory::MemoryStore,
        store::{Answer, Question, Ticket},
        words::{ManualClock, Micros},
    };

    /// Store that counts the entries that are asked for.
    struct Counting(MemoryStore, AtomicUsize);

    impl Store for Counting {
        fn submit(&self, op: Op, durability: Durability) -> Ticket {
            self.0.submit(op, durability)
        }

        fn answer(&self, question: &Question) -> Result<Answer, Error> {
            if let Question::Entries { limit, .. } = question {
                self.1.fetch_add(*limit, Relaxed);
            }
            self.0.answer(question)
        }

        fn place(&self) -> String {
            self.0.place()
        }
    }

    /// Bug: `show` and the page read a thousand entries to tell the newest six.
    #[test]
    fn the_newest_entries_are_found_among_few_and_all_come_in_order() {
        const ALL: i64 = 3_000;
        let run = RunNo(1);
        let memory = MemoryStore::new(Arc::new(ManualClock::new(Micros(0))));
        memory.tamper(|tables| {
            let entry = |seq| Entry { run, seq, ..Entry::default() };
            tables.entries.extend((1..=ALL).map(Seq).map(|seq| ((run, seq), entry(seq))));
        });
        let store = Counting(memory, AtomicUsize::default());
        let seqs = || each_back(&store, run, Seq(ALL + 1)).map(|entry| entry.unwrap().seq.0);
        assert_eq!(seqs().take(6).collect::<Vec<_>>(), (ALL - 5..=ALL).rev().collect::<Vec<_>>());
        assert_eq!(store.1.load(Relaxed), NEWEST);
        assert_eq!(seqs().collect::<Vec<_>>(), (1..=ALL).rev().collect::<Vec<_>>());
    }
}
