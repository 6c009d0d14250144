//! Lists of runs, filtered by what their rows and specs say, newest first.

use super::rows;
use crate::{
    run::Status,
    store::{self, RunFilter, RunView, Store},
    words::{Micros, RunNo},
};

/// Most runs that one page looks at. A filter that matches few of them gives a short page with a cursor.
const LOOKED_AT: usize = 5_000;

/// Number of runs that are read at a time.
const CHUNK: usize = 500;

/// Filter of a list of runs. What is `None` or empty matches every run.
#[derive(Clone, Debug, Default)]
pub struct RunSearch {
    pub statuses: Vec<Status>,
    /// Text that the run's id or name contains, ignoring case.
    pub name: Option<String>,
    /// Key of a tag, with its value unless any will do.
    pub tag: Option<(String, Option<String>)>,
    /// Restricts to runs whose command was started in this directory or below it.
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
            let own = spec.command.as_ref().and_then(|command| below(&command.directory));
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
    filter.limit = CHUNK;
    rows(move || {
        let chunk = store.runs(&filter)?;
        filter.before = chunk.last().map(|view| view.run.no);
        Ok(chunk)
    })
}

/// Returns a page of at most `limit` runs. The work of a page is bounded, whatever the filter.
pub fn page(store: &dyn Store, wanted: &RunSearch, limit: usize) -> Result<Listed, store::Error> {
    let mut listed = Listed { next: wanted.before, ..Listed::default() };
    // One status is an index; several are looked for among all runs.
    let status = if wanted.statuses.len() == 1 { wanted.statuses.first().copied() } else { None };
    let mut looked_at = 0;
    loop {
        let chunk = CHUNK.min((limit - listed.runs.len()).max(100));
        let filter =
            RunFilter { status, before: listed.next, jobs: wanted.jobs, limit: chunk, command_key: None };
        let found = store.runs(&filter)?;
        let last = found.len() < chunk;
        let mut rest = found.into_iter();
        for view in rest.by_ref() {
            listed.next = Some(view.run.no);
            if wanted.matches(&view) {
                listed.runs.push(view);
            }
            if listed.runs.len() == limit {
                break;
            }
        }
        looked_at += chunk;
        let more = rest.next().is_some();
        if last && !more {
            listed.next = None;
            return Ok(listed);
        }
        if listed.runs.len() == limit || looked_at >= LOOKED_AT {
            return Ok(listed);
        }
    }
}
