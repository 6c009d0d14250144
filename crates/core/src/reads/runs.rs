//! Lists of runs, filtered by what their rows and specs say, newest first; and what a row alone does not say of its run.

use super::{Bounds, lives, rows};
use crate::{
    run::{Masks, Run, Status},
    store::{self, RunFilter, RunView, Store},
    words::{Micros, RunId, RunNo, Seq},
};

const PAGE: Bounds = Bounds { chunk: 500, looked_at: 5_000 };

/// Filter of a list of runs. What is `None` or empty matches every run.
#[derive(Clone, Debug, Default)]
pub struct RunSearch {
    pub statuses: Vec<Status>,
    /// Text that the run's id or name contains, ignoring case.
    pub name: Option<String>,
    /// Key of a tag, with its value unless any will do.
    pub tag: Option<(String, Option<String>)>,
    /// Restricts to runs that were begun in this directory or below it.
    pub directory: Option<String>,
    /// Restricts to runs created at this time or later.
    pub since: Option<Micros>,
    /// Restricts to runs created before this time.
    pub until: Option<Micros>,
    pub jobs: bool,
    /// Restricts to runs with a smaller number: the cursor of the page before.
    pub before: Option<RunNo>,
}

/// Page of a list of runs.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    pub runs: Vec<RunView>,
    /// Cursor of the next page; `None` on the last one.
    pub next: Option<RunNo>,
}

impl RunSearch {
    /// Returns whether the run is one that is looked for. `jobs` and `before` are the store's to judge.
    pub fn matches(&self, view: &RunView) -> bool {
        let (run, spec) = (&view.run, &view.spec);
        let holds = |text: &str, wanted: &str| text.to_lowercase().contains(wanted);
        let named = |wanted: &String| {
            let wanted = wanted.to_lowercase();
            holds(run.id.as_str(), &wanted) || spec.name.as_ref().is_some_and(|name| holds(name, &wanted))
        };
        let tagged = |(key, value): &(String, Option<String>)| {
            spec.tags.get(key).is_some_and(|had| value.as_ref().is_none_or(|wanted| wanted == had))
        };
        let started_in = |directory: &String| {
            let below = |own: &str| own.strip_prefix(directory.trim_end_matches('/')).map(str::to_owned);
            let own = spec.begun_in().and_then(below);
            own.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        (self.statuses.is_empty() || self.statuses.contains(&run.status))
            && self.name.as_ref().is_none_or(named)
            && self.tag.as_ref().is_none_or(tagged)
            && self.directory.as_ref().is_none_or(started_in)
            && self.since.is_none_or(|since| run.created_at >= since)
            && self.until.is_none_or(|until| run.created_at < until)
    }
}

/// Returns the runs that `filter` matches, newest first, a chunk of them in memory. The filter's limit has no effect.
pub fn each(store: &dyn Store, mut filter: RunFilter) -> impl Iterator<Item = Result<RunView, store::Error>> {
    filter.limit = PAGE.chunk;
    rows(move || {
        let chunk = store.runs(&filter)?;
        filter.before = chunk.last().map(|view| view.run.no);
        Ok(chunk)
    })
}

/// Returns a page of at most `limit` runs. The work of a page is bounded, whatever the filter.
pub fn page(store: &dyn Store, wanted: &RunSearch, limit: usize) -> Result<Listed, store::Error> {
    // One status is an index; several are looked for among all runs.
    let status = if wanted.statuses.len() == 1 { wanted.statuses.first().copied() } else { None };
    let matches = |view: &RunView| wanted.matches(view);
    let (runs, next) = PAGE.page(
        wanted.before,
        limit,
        |view| Some(view.run.no),
        matches,
        |before, limit| {
            store.runs(&RunFilter { status, before, jobs: wanted.jobs, limit, ..RunFilter::default() })
        },
    )?;
    Ok(Listed { runs, next: next.flatten() })
}

/// Returns the time of the last change, of the run's status or of its newest entry.
pub fn changed_at(store: &dyn Store, run: &Run) -> Result<Micros, store::Error> {
    let newest = store.entry(run.no, Seq(run.next_seq.0 - 1))?;
    let of_entry = newest.map(|e| e.closed_at.unwrap_or(e.opened_at));
    let times = [Some(run.created_at), run.began_at, run.ended_at, of_entry];
    Ok(times.into_iter().flatten().max().unwrap_or(run.created_at))
}

/// Returns the running runs whose callers name them in an HTTP header, that have not changed since `since`, and in
/// which no call is on its way.
pub fn idle_since(store: &dyn Store, since: Micros) -> Result<Vec<Run>, store::Error> {
    let mut idle = Vec::new();
    let filter = RunFilter { status: Some(Status::Running), ..RunFilter::default() };
    for view in each(store, filter) {
        let view = view?;
        if !view.envelope.has_calls_in_flight()
            && changed_at(store, &view.run)? <= since
            && is_header_callers(store, &view.run, since)?
        {
            idle.push(view.run);
        }
    }
    Ok(idle)
}

/// Returns whether all open attempts are those of header callers, and began before `since`.
fn is_header_callers(store: &dyn Store, run: &Run, since: Micros) -> Result<bool, store::Error> {
    let attempts = store.attempts(run.no)?;
    let mut open = attempts.iter().filter(|a| a.is_open());
    Ok(open.all(|a| a.instance.is_none() && a.started_at <= since) && attempts.iter().any(|a| a.is_open()))
}

/// Returns the end of the run's last attempt, if the run is over or stands still; `None` while it goes on, or will by
/// itself.
///
/// A run that is cancelled long after its last attempt stood still since that. A completed run's end is its own.
pub fn still_since(store: &dyn Store, run: &Run) -> Result<Option<Micros>, store::Error> {
    match run.status {
        Status::Running | Status::Waiting | Status::Sleeping => Ok(None),
        Status::Completed => Ok(run.ended_at),
        Status::Interrupted | Status::Halted | Status::Failed | Status::Cancelled => {
            let mut attempts = store.attempts(run.no)?;
            if let Some(newest) = attempts.last_mut() {
                newest.ended_at = lives::end(store, run, newest, None)?;
            }
            let ends: Option<Vec<Micros>> = attempts.iter().map(|a| a.ended_at).collect();
            // A halted run's agent lives on until it is stopped.
            Ok(ends.map_or(run.ended_at, |ends| ends.into_iter().max().or(run.ended_at)))
        }
    }
}

/// Returns the commands of which each alone takes up a run that stands still; empty for a run that goes on, for one
/// that no command begins again, and where a command alone does not help.
///
/// `word` is what the commands call the run. A halt by a limit names the flag that gives the run room, so that one command does both.
pub fn resume_commands(view: &RunView, word: &str) -> Vec<String> {
    let run = &view.run;
    // A run of header callers, or of a program with the engine inside, has no command that Outlast could start again.
    if view.spec.command.is_none() {
        return Vec::new();
    }
    let resume = format!("outlast resume {word}");
    match (run.status, &run.halt) {
        (Status::Interrupted | Status::Failed, _) | (Status::Halted, None) => vec![resume],
        (Status::Halted, Some(halt)) if halt.whose.is_some() => Vec::new(),
        (Status::Halted, Some(halt)) if halt.unit.is_some() => {
            // The hint names the command that raises the limit between its first two backquotes. A resumption takes
            // the same flag.
            let hint = halt.hint(word);
            match hint.split('`').nth(1).map(|raise| (raise, raise.split_once(" --"))) {
                Some((_, Some((_, flag)))) => vec![format!("{resume} --{flag}")],
                Some((raise, None)) => vec![raise.to_owned(), resume],
                None => vec![resume],
            }
        }
        (Status::Halted, Some(halt)) if halt.code == "price_unknown" => {
            let ways = halt.ways_out(word).into_iter().map(|(_, command)| command);
            ways.filter(|command| command.starts_with(&resume)).collect()
        }
        (Status::Halted, Some(halt)) if halt.is_accepted_by_resuming() => vec![resume],
        _ => Vec::new(),
    }
}

/// Returns the run with exactly this id; `None` if there is none, also of a text that can be no id.
pub fn with_id(store: &dyn Store, id: &str) -> Result<Option<RunView>, store::Error> {
    let Ok(id) = RunId::new(id) else { return Ok(None) };
    Ok(store.run_no(&id)?.map(|no| store.run(no)).transpose()?.flatten())
}

/// Returns the runs above a run, nearest first.
pub fn above(store: &dyn Store, view: &RunView) -> impl Iterator<Item = Result<RunView, store::Error>> {
    let mut next = view.run.parent;
    std::iter::from_fn(move || {
        let found = store.run(next?).transpose();
        next = found.as_ref().and_then(|above| above.as_ref().ok()?.run.parent);
        found
    })
}

/// Returns the masks of a run: its own, or else those of the nearest run above it that has some. A child run is part
/// of its parent's work.
pub fn masks(store: &dyn Store, view: &RunView) -> Result<Masks, store::Error> {
    if let Some(own) = &view.spec.masks {
        return Ok(own.clone());
    }
    let masks = above(store, view).find_map(|above| above.map(|above| above.spec.masks).transpose());
    Ok(masks.transpose()?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        engine::{
            Tell, Word,
            tests::bench::{Bench, usd},
        },
        memory::MemoryStore,
        run::Policy,
        store::{Ask as _, Durability},
        words::ManualClock,
    };

    #[test]
    fn a_run_stands_still_since_its_last_life_ended_whatever_a_person_did_later() {
        let clock = Arc::new(ManualClock::new(Micros(1)));
        let b = Bench { store: MemoryStore::new(clock.clone()) };
        let run = b.start("r", usd(5), None, Policy::default());
        let told = || still_since(&b.store, &b.store.run(run).unwrap().unwrap().run).unwrap();
        let instance = b.register();
        b.claim(run, instance).unwrap().unwrap();
        assert_eq!(told(), None);
        b.die(instance);
        let end = b.store.attempts(run).unwrap()[0].ended_at;
        assert!(end.is_some() && told() == end);
        clock.advance_ms(60_000);
        let cancel = Tell { run, word: Word::Cancel { reason: None } };
        b.store.ask(cancel, Durability::Synced).wait().unwrap();
        assert_eq!(told(), end);
    }

    #[test]
    fn a_run_that_never_lived_ends_when_it_is_cancelled() {
        let b = Bench::new();
        let run = b.start("r", usd(5), None, Policy::default());
        let cancel = Tell { run, word: Word::Cancel { reason: None } };
        b.store.ask(cancel, Durability::Synced).wait().unwrap();
        let row = b.store.run(run).unwrap().unwrap().run;
        assert_eq!(still_since(&b.store, &row).unwrap(), row.ended_at);
    }
}
