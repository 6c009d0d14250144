//! Items of a batch job: all of them, and those that a person lets run again.

use std::collections::HashSet;

use super::{entries, rows};
use crate::{
    engine::{InName, ResetItem},
    journal::{ItemRow, job::Standing, scope},
    store::{Ask as _, Durability, Error, Page, Store},
    words::{RunNo, Seq},
};

/// Number of items that are read at once.
const PAGE: usize = 2000;

/// Returns the newest entry of each item of a job, in the order of entries.
pub fn each(store: &dyn Store, run: RunNo) -> impl Iterator<Item = Result<ItemRow, Error>> {
    each_upto(store, run, Seq(i64::MAX))
}

/// Returns the entry of each item of a job that was its newest at entry `upto`.
pub fn each_upto(store: &dyn Store, run: RunNo, upto: Seq) -> impl Iterator<Item = Result<ItemRow, Error>> {
    let mut after = Seq(0);
    rows(move || {
        let page = store.items(run, &Page { upto, ..Page::new(after, PAGE) })?;
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
    for entry in entries::each_after(store, run, seq) {
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
    for row in again.failed.then(|| each(store, run)).into_iter().flatten() {
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
