//! Pages of a run's journal, filtered by kind, state, attempt and key.

use super::rows;
use crate::{
    journal::{Entry, Kind, State},
    store::{self, Store},
    words::{AttemptNo, RunNo, Seq},
};

/// Most entries that one page looks at. A filter that matches few of them gives a short page with a cursor.
const LOOKED_AT: usize = 20_000;

/// Number of entries that are read at a time.
const CHUNK: usize = 1_000;

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
    let mut after = Seq(0);
    rows(move || {
        let chunk = store.entries(run, after, CHUNK)?;
        after = chunk.last().map_or(after, |e| e.seq);
        Ok(chunk)
    })
}

/// Returns the entries of a run before `before`, newest first, a chunk of them in memory.
pub fn each_back(
    store: &dyn Store,
    run: RunNo,
    mut before: Seq,
) -> impl Iterator<Item = Result<Entry, store::Error>> {
    rows(move || {
        let mut chunk = Vec::new();
        while chunk.is_empty() && before > Seq(1) {
            let from = Seq((before.0 - 1).saturating_sub_unsigned(CHUNK as u64).max(0));
            chunk = store.entries(run, from, CHUNK)?;
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
    let (mut found, mut after, mut looked_at) = (Vec::new(), after, 0);
    loop {
        let chunk = CHUNK.min((limit - found.len()).max(100));
        let entries = store.entries(run, after, chunk)?;
        let last = entries.len() < chunk;
        let mut rest = entries.into_iter();
        for entry in rest.by_ref() {
            after = entry.seq;
            if wanted.matches(&entry) {
                found.push(entry);
            }
            if found.len() == limit {
                break;
            }
        }
        looked_at += chunk;
        if last && rest.next().is_none() {
            return Ok((found, None));
        }
        if found.len() == limit || looked_at >= LOOKED_AT {
            return Ok((found, Some(after)));
        }
    }
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
