//! `outlast gc` and `outlast rm`: delete ended runs, those of long ago or one by name or tag, with what was kept of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
};

use outlast_core::{
    engine::{Forget, Forgot},
    reads::spend,
    store::LedgerLine,
};

use super::prelude::*;
use crate::{files, program::run_directory::RunDirectory};

/// Delete a run that has ended, with its child runs and all their stored data; or all runs with a tag
///
/// What they have cost stays in `outlast spend`, by day, upstream and model. The newest run of a store is refused until
/// another one has begun.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast rm nightly\n  outlast cancel nightly && outlast rm nightly\n  outlast rm --tag customer=acme"
)]
pub struct RmArgs {
    /// The run: its id, its name, or the start of its id
    #[arg(value_name = "RUN", required_unless_present = "tag")]
    pub run: Option<String>,
    /// All runs with this tag
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::tag, conflicts_with = "run")]
    pub tag: Option<(String, String)>,
}

/// Delete runs that ended long ago, with all that was kept of them
///
/// Completed, failed and cancelled runs are deleted; never one that is interrupted, halted or waiting. A run is also kept
/// while one of its child runs or forks is kept, or while its parent is kept.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  outlast gc --older-than 30d --dry-run\n  outlast gc --older-than 12h")]
pub struct GcArgs {
    /// Delete the runs that ended longer ago than this
    #[arg(long = "older-than", value_name = "TIME", value_parser = values::ms)]
    pub older_than_ms: i64,
    /// Only list the runs that would be deleted
    #[arg(long)]
    pub dry_run: bool,
}

/// Forgets runs that ended long ago, each in a commit of its own, so that other writers get their turn in between.
pub fn gc(args: &GcArgs, Desk { store, context, page, .. }: Desk) -> Result<(), CliError> {
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
    if !args.dry_run {
        files::collect(store, context)?;
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

/// Forgets runs and the runs below them, and removes their files. `directory` returns the directory of a run's logs and
/// state.
///
/// Errors: `run_stays` for the newest run of a store, or if a run of its family has not ended; of one run also
/// `run_not_ended` and `call_in_flight`. Of runs with a tag, those that can go are gone by then.
pub fn rm(args: &RmArgs, Desk { store, context, page, .. }: Desk) -> Result<(), CliError> {
    let wanted: BTreeSet<RunNo> = match &args.tag {
        Some((key, value)) => {
            let tagged = |view: &RunView| view.spec.tags.get(key) == Some(value);
            let all = runs::each(store, RunFilter::default());
            let all = all.filter(|view| view.as_ref().map_or(true, tagged));
            all.map(|view| view.map(|view| view.run.no)).collect::<Result<_, _>>()?
        }
        None => [one(store, args.run.as_deref().unwrap_or_default())?].into(),
    };
    let mut family = Families::of(store, &wanted)?;
    let mut gone = Vec::new();
    for no in family.numbers() {
        if family.goes(no) && family.forget(store, no)? {
            gone.extend(family.take(no));
        } else {
            family.keep_above(no);
        }
    }
    for run in &gone {
        match fs::remove_dir_all(RunDirectory::of(&context.place, run, &context.around)?.path()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
    }
    files::collect(store, context)?;
    let stays = wanted.iter().find_map(|no| family.id(*no));
    match stays {
        Some(run) if gone.is_empty() => return Err(CommandError::RunStays { run: run.to_string() }.into()),
        _ if page.look.json => {
            let ids: Vec<&str> = gone.iter().map(RunId::as_str).collect();
            page.json(&json!({ "forgotten": ids }))?;
        }
        _ => {
            let below = gone.len() as i64 - wanted.len() as i64;
            let below =
                if below > 0 { format!(", with {} below", some(below, "run")) } else { String::new() };
            match (&args.tag, gone.last()) {
                (None, Some(id)) => page.line(&format!("{id}  deleted{below}"))?,
                _ => page.line(&format!("{} deleted", some(gone.len() as i64, "run")))?,
            }
        }
    }
    match stays {
        Some(run) => Err(CommandError::RunStays { run: run.to_string() }.into()),
        None => Ok(()),
    }
}

/// Returns a run that has ended and is at rest. Errors: `run_not_ended`; `call_in_flight`.
fn one(store: &dyn Store, run: &str) -> Result<RunNo, CliError> {
    let view = find::run_to(store, run, Verb::Remove)?;
    let id = view.run.id.to_string();
    if !view.run.status.is_ended() {
        return Err(CommandError::NotEnded { run: id, status: view.run.status }.into());
    }
    match view.envelope.has_calls_in_flight() {
        true => Err(CommandError::CallInFlight { run: id }.into()),
        false => Ok(view.run.no),
    }
}
