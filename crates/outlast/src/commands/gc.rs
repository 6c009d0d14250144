//! `outlast gc --older-than TIME`: forgets runs that ended long ago.

use std::collections::{BTreeMap, BTreeSet};

use outlast_core::{
    engine::run::forget::{Forget, Forgot},
    reads::{runs, spend},
    run::status::Status,
    store::{Ask, Durability, LedgerLine, RunFilter, RunView, Store},
    words::id::{Micros, RunId, RunNo},
};
use serde_json::json;

use crate::{
    cli::GcArgs,
    program::error::CliError,
    render::{amount::some, look::Page, time},
};

/// Forgets runs that ended long ago, each in a commit of its own, so that other writers get their turn in between.
pub fn gc(store: &dyn Store, args: &GcArgs, page: &mut Page) -> Result<(), CliError> {
    let now = store.now()?;
    let ended_before = Micros(now.0.saturating_sub(args.older_than_ms.saturating_mul(1000)));
    let mut families = Families { runs: BTreeMap::new(), ended_before, costs: None };
    families.look(store)?;
    families.settle();
    let mut forgotten = Vec::new();
    // Newest first: children go before their parents, and a child that stays keeps its parent.
    for no in families.numbers() {
        if families.goes(no) && (args.dry_run || families.forget(store, no)?) {
            forgotten.extend(families.runs.remove(&no));
        } else {
            families.keep_above(no);
        }
    }
    if page.look.json {
        let runs: Vec<&str> = forgotten.iter().map(|run| run.id.as_str()).collect();
        return Ok(page.json(&json!({ "forgotten": runs, "dry_run": args.dry_run }))?);
    }
    for run in &forgotten {
        let ended = run.ended_at.map(time::moment).unwrap_or_default();
        page.line(&format!("{}  {}  {ended}", run.id, run.status.name()))?;
    }
    let what = if args.dry_run { "would be deleted" } else { "deleted" };
    Ok(page.line(&format!("{} {what}", some(forgotten.len() as i64, "run")))?)
}

/// Facts about a run that decide whether it is deleted.
struct Member {
    id: RunId,
    parent: Option<RunNo>,
    status: Status,
    ended_at: Option<Micros>,
    stays: bool,
}

/// All runs of the store with their parents, and whether each is to be forgotten.
pub struct Families {
    runs: BTreeMap<RunNo, Member>,
    ended_before: Micros,
    /// What each run has cost; `None` before the first one is forgotten.
    costs: Option<BTreeMap<RunNo, Vec<LedgerLine>>>,
}

impl Families {
    /// Selects these runs and all runs below them to be forgotten; every other run stays.
    pub fn of(store: &dyn Store, wanted: &BTreeSet<RunNo>) -> Result<Families, CliError> {
        // Whoever has ended by now has ended before.
        let ended_before = store.now()?.plus_ms(1);
        let mut families = Families { runs: BTreeMap::new(), ended_before, costs: None };
        families.look(store)?;
        let kept: Vec<RunNo> = families.numbers();
        for no in kept {
            let goes = wanted.contains(&no) || families.above(no).iter().any(|above| wanted.contains(above));
            families.runs.entry(no).and_modify(|member| member.stays |= !goes);
        }
        families.settle();
        Ok(families)
    }

    pub fn id(&self, no: RunNo) -> Option<&RunId> {
        self.runs.get(&no).map(|run| &run.id)
    }

    /// Removes a deleted run from this list, and returns the run's id.
    pub fn take(&mut self, no: RunNo) -> Option<RunId> {
        self.runs.remove(&no).map(|run| run.id)
    }

    /// Reads the runs that are newer than the newest known one, and marks those that must not be deleted.
    fn look(&mut self, store: &dyn Store) -> Result<(), CliError> {
        let known = self.newest();
        for view in runs::each(store, RunFilter::default()) {
            let RunView { run, envelope, .. } = view?;
            if run.no <= known {
                break;
            }
            let ended_long_ago = run.ended_at.is_some_and(|at| at < self.ended_before);
            let stays = !(run.status.is_ended() && ended_long_ago) || envelope.has_calls_in_flight();
            let (id, parent, status, ended_at) = (run.id, run.parent, run.status, run.ended_at);
            self.runs.insert(run.no, Member { id, parent, status, ended_at, stays });
        }
        Ok(())
    }

    fn newest(&self) -> RunNo {
        self.runs.last_key_value().map_or(RunNo(0), |(no, _)| *no)
    }

    /// Returns the runs, children before their parents.
    pub fn numbers(&self) -> Vec<RunNo> {
        self.runs.keys().rev().copied().collect()
    }

    /// Keeps every child whose parent stays, and the newest run, because it holds the place of the next number.
    fn settle(&mut self) {
        for no in self.numbers().into_iter().rev() {
            let above = self.runs[&no].parent.and_then(|parent| self.runs.get(&parent));
            let stays = no == self.newest() || above.is_some_and(|parent| parent.stays);
            self.runs.entry(no).and_modify(|run| run.stays |= stays);
        }
    }

    pub fn goes(&self, no: RunNo) -> bool {
        self.runs.get(&no).is_some_and(|run| !run.stays)
    }

    /// Keeps the parent of a run that stays.
    pub fn keep_above(&mut self, no: RunNo) {
        if let Some(parent) = self.runs.get(&no).and_then(|run| run.parent) {
            self.runs.entry(parent).and_modify(|run| run.stays = true);
        }
    }

    fn above(&self, no: RunNo) -> Vec<RunNo> {
        let parent = |no: &RunNo| self.runs.get(no).and_then(|run| run.parent);
        std::iter::successors(parent(&no), parent).collect()
    }

    /// Forgets a run in the store and returns whether it is gone. New runs are read first: one may be its child. What it has
    /// cost is kept.
    pub fn forget(&mut self, store: &dyn Store, no: RunNo) -> Result<bool, CliError> {
        if self.costs.is_none() {
            self.costs = Some(spend::by_run(store)?);
        }
        if let Some(lines) = self.costs.as_ref().and_then(|costs| costs.get(&no)) {
            store.ask(spend::keep(no, lines)?, Durability::Synced).wait()?;
        }
        loop {
            let verb = Forget {
                run: no,
                above: self.above(no),
                ended_before: self.ended_before,
                seen: self.newest(),
            };
            match store.ask(verb, Durability::Synced).wait()? {
                Forgot::Gone => return Ok(true),
                Forgot::Stays => return Ok(false),
                Forgot::Newer => {
                    let known = self.newest();
                    self.look(store)?;
                    let newer: Vec<RunNo> = self.numbers().into_iter().take_while(|no| *no > known).collect();
                    newer.into_iter().for_each(|new| self.keep_above(new));
                    if !self.goes(no) {
                        return Ok(false);
                    }
                }
            }
        }
    }
}
