//! Items of a batch job: all of them, and those that a person lets run again.

use std::collections::HashSet;

use super::rows;
use crate::{
    engine::{InName, ResetItem},
    journal::{ItemRow, job::Standing},
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
