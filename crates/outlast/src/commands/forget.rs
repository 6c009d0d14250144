//! `outlast gc` and `outlast rm`: delete ended runs, those of long ago or one by name or tag, with what was kept of them.

use outlast_core::{
    engine::{Forget, Forgot},
    reads::spend,
};

use super::prelude::*;
use crate::files;

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
/// Completed, failed and cancelled runs are deleted, and what is left of runs that moved to another store; never one
/// that is interrupted, halted or waiting. A run is also kept while one of its child runs or forks is kept, or while
/// its parent is kept.
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

/// Forgets runs that ended long ago.
pub fn gc(args: &GcArgs, Desk { store, context, page, .. }: Desk) -> Result {
    let now = store.now()?;
    let ended_before = Micros(now.0.saturating_sub(args.older_than_ms.saturating_mul(1000)));
    let mut families = Families::of(store, ended_before, None)?;
    let forgotten = families.forget_all(store, args.dry_run)?;
    if !args.dry_run {
        remove_files(&forgotten, store, context)?;
    }
    if page.look.json {
        let runs: Vec<&str> = forgotten.iter().map(|run| run.id.as_str()).collect();
        return Ok(page.json(&json!({ "forgotten": runs, "dry_run": args.dry_run }))?);
    }
    for run in &forgotten {
        let ended = run.ended_at.map(time::moment).unwrap_or_default();
        page.line(&format!("{}  {}  {ended}", run.word, run.status.name()))?;
    }
    let what = if args.dry_run { "would be deleted" } else { "deleted" };
    Ok(page.line(&format!("{} {what}", some(forgotten.len() as i64, "run")))?)
}

/// Facts about a run that decide whether it is deleted.
struct Member {
    id: RunId,
    /// Short id of the run: other runs may have the same name.
    word: String,
    parent: Option<RunNo>,
    status: Status,
    ended_at: Option<Micros>,
    stays: bool,
}

/// All runs of the store with their parents, and whether each is to be forgotten.
struct Families {
    runs: BTreeMap<RunNo, Member>,
    ended_before: Micros,
}

impl Families {
    /// Selects the runs that ended before a time; of these only `wanted` and all below them, if that is given.
    fn of(store: &dyn Store, ended_before: Micros, wanted: Option<&BTreeSet<RunNo>>) -> Result<Families> {
        let mut families = Families { runs: BTreeMap::new(), ended_before };
        families.look(store)?;
        if let Some(wanted) = wanted {
            for no in families.numbers() {
                let goes =
                    wanted.contains(&no) || families.above(no).iter().any(|above| wanted.contains(above));
                families.runs.entry(no).and_modify(|member| member.stays |= !goes);
            }
        }
        families.settle();
        Ok(families)
    }

    /// Forgets the runs that may go, children before their parents: a child that stays keeps its parent. Each goes in a
    /// commit of its own, so that other writers get their turn in between. Returns them; `dry_run`: they stay.
    fn forget_all(&mut self, store: &dyn Store, dry_run: bool) -> Result<Vec<Member>> {
        let mut gone = Vec::new();
        for no in self.numbers() {
            if self.goes(no) && (dry_run || self.forget(store, no)?) {
                gone.extend(self.runs.remove(&no));
            } else {
                self.keep_above(no);
            }
        }
        Ok(gone)
    }

    /// Returns the refusal of a run that was not forgotten: `run_not_ended`, `call_in_flight`, else `run_stays`.
    fn why_it_stays(&self, store: &dyn Store, no: RunNo) -> Result<CliError> {
        let Some(view) = store.run(no)? else {
            return Ok(CliError::NoSuchRun { asked: no.to_string(), like: None, is_job: false });
        };
        if let Err(why) = check_rests(&view) {
            return Ok(why.into());
        }
        let run = called(&view);
        let is_newest = no == self.newest();
        Ok(if is_newest { CommandError::NewestStays { run } } else { CommandError::RunStays { run } }.into())
    }

    /// Reads the runs that are newer than the newest known one, and marks those that must not be deleted.
    fn look(&mut self, store: &dyn Store) -> Result {
        let known = self.newest();
        for view in runs::each(store, RunFilter::default()) {
            let view = view?;
            if view.run.no <= known {
                break;
            }
            let word = short(&view);
            let RunView { run, envelope, .. } = view;
            let over_since = run.over_since();
            let is_long_ago = over_since.is_some_and(|at| at < self.ended_before);
            let stays = !is_long_ago || envelope.has_calls_in_flight();
            let (id, parent, status, ended_at) = (run.id, run.parent, run.status, over_since);
            self.runs.insert(run.no, Member { id, word, parent, status, ended_at, stays });
        }
        Ok(())
    }

    fn newest(&self) -> RunNo {
        self.runs.last_key_value().map_or(RunNo(0), |(no, _)| *no)
    }

    /// Returns the runs, children before their parents.
    fn numbers(&self) -> Vec<RunNo> {
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

    fn goes(&self, no: RunNo) -> bool {
        self.runs.get(&no).is_some_and(|run| !run.stays)
    }

    /// Keeps the parent of a run that stays.
    fn keep_above(&mut self, no: RunNo) {
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
    fn forget(&mut self, store: &dyn Store, no: RunNo) -> Result<bool> {
        loop {
            let verb = Forget {
                run: no,
                above: self.above(no),
                ended_before: self.ended_before,
                seen: self.newest(),
            };
            // A server keeps what a run has cost, and removes its files, itself.
            let forgot = match store.is_remote() {
                true => store.ask(verb, Durability::Synced).wait()?,
                false => spend::forget(store, verb)?,
            };
            match forgot {
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

/// Removes what is beside the store for runs that were forgotten. A server has done so for its own store.
fn remove_files(gone: &[Member], store: &dyn Store, context: &Context) -> Result {
    if store.is_remote() {
        return Ok(());
    }
    for run in gone {
        RunDirectory::of(&context.place, &run.id, &context.around)?.remove()?;
    }
    files::collect(store, context)?;
    Ok(())
}

/// Forgets runs and the runs below them, and removes their files.
///
/// Errors: why the first of them stays: `run_not_ended`, `call_in_flight`, else `run_stays`. Of runs with a tag, those that
/// can go are gone by then.
pub fn rm(args: &RmArgs, Desk { store, context, page, .. }: Desk) -> Result {
    let wanted: BTreeSet<RunNo> = match &args.tag {
        Some((key, value)) => {
            let tagged = |view: &RunView| view.spec.tags.get(key) == Some(value);
            let all = runs::each(store, RunFilter::default());
            let all = all.filter(|view| view.as_ref().map_or(true, tagged));
            all.map(|view| view.map(|view| view.run.no)).collect::<Result<_, _>>()?
        }
        None => {
            let view = find::run_to(store, args.run.as_deref().unwrap_or_default(), Verb::Remove)?;
            check_rests(&view)?;
            [view.run.no].into()
        }
    };
    // Whoever has ended by now has ended before.
    let mut family = Families::of(store, store.now()?.plus_ms(1), Some(&wanted))?;
    let gone = family.forget_all(store, false)?;
    remove_files(&gone, store, context)?;
    let stays =
        wanted.iter().find(|no| family.runs.contains_key(*no)).map(|no| family.why_it_stays(store, *no));
    let stays = stays.transpose()?;
    match (&args.tag, gone.last()) {
        (_, None) if stays.is_some() => {}
        _ if page.look.json => {
            let ids: Vec<&str> = gone.iter().map(|run| run.id.as_str()).collect();
            page.json(&json!({ "forgotten": ids }))?;
        }
        (None, Some(run)) => {
            let below = gone.len() as i64 - 1;
            let below =
                if below > 0 { format!(", with {} below", some(below, "run")) } else { String::new() };
            page.line(&format!("{}  deleted{below}", run.word))?;
        }
        _ => page.line(&format!("{} deleted", some(gone.len() as i64, "run")))?,
    }
    stays.map_or(Ok(()), Err)
}

/// Refuses a run that has not ended, or is not at rest. Errors: `run_not_ended`; `call_in_flight`.
fn check_rests(view: &RunView) -> Result<(), CommandError> {
    let id = called(view);
    if view.run.over_since().is_none() {
        return Err(CommandError::NotEnded { run: id, status: view.run.status });
    }
    if view.envelope.has_calls_in_flight() { Err(CommandError::CallInFlight { run: id }) } else { Ok(()) }
}
