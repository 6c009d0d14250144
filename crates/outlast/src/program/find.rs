//! Finds the run that a word means: by id, by the start of an id, or by name.

use outlast_core::{
    engine,
    reads::{forks::Point, snapshots},
    store::{self, RunFilter, RunView, Store},
    words::id::{RunId, RunNo},
};

use crate::{
    program::{
        error::{Candidate, CliError},
        jsonl,
    },
    render::time,
};

/// Number of runs read at once; `LISTED` is the most candidates that an error lists.
const PAGE: usize = 500;
const LISTED: usize = 10;

/// Returns the run of this number. Errors: `NoSuchRun`.
pub fn view(store: &dyn Store, no: RunNo) -> Result<RunView, CliError> {
    store.run(no)?.ok_or_else(|| CliError::NoSuchRun { asked: format!("#{no}") })
}

/// Finds the run that `asked` names. An exact id always wins, and is found without a search.
///
/// Errors: `NoSuchRun`; `AmbiguousRun` with the candidates, when several ids begin with it or several runs
/// have the name.
pub fn run(store: &dyn Store, asked: &str) -> Result<RunView, CliError> {
    if let Ok(id) = RunId::new(asked)
        && let Some(no) = store.run_no(&id)?
        && let Some(view) = store.run(no)?
    {
        return Ok(view);
    }
    let mut found: Option<RunView> = None;
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut count = 0;
    let mut before: Option<RunNo> = None;
    loop {
        let page = store.runs(&RunFilter { before, limit: PAGE, ..RunFilter::default() })?;
        let Some(last) = page.last() else { break };
        before = Some(last.run.no);
        for view in page {
            if !is_meant(&view, asked) {
                continue;
            }
            count += 1;
            if candidates.len() < LISTED {
                candidates.push(Candidate {
                    run: view.run.id.to_string(),
                    name: view.spec.name.clone(),
                    status: view.run.status.name(),
                });
            }
            found.get_or_insert(view);
        }
    }
    let asked = || asked.chars().take(140).collect();
    match (found, count) {
        (Some(view), 1) => Ok(view),
        (None, _) => Err(CliError::NoSuchRun { asked: asked() }),
        (Some(_), _) => Err(CliError::AmbiguousRun { asked: asked(), candidates, count }),
    }
}

/// Finds the job that `asked` names: by its run's id, by its name (the newest run of it), or by the start of
/// an id.
///
/// For a file of results, the job in it. Errors: `NoSuchRun`, `AmbiguousRun`; `NotAJob`.
pub fn job(store: &dyn Store, asked: &str) -> Result<RunView, CliError> {
    let mut found = jobs(store, asked)?;
    if found.len() > 1 {
        let count = found.len();
        let candidate = |view: &RunView| Candidate {
            run: view.run.id.to_string(),
            name: view.run.job.as_ref().map(|job| job.name.clone()),
            status: view.run.status.name(),
        };
        let candidates = found.iter().take(LISTED).map(candidate).collect();
        return Err(CliError::AmbiguousRun { asked: asked.into(), candidates, count });
    }
    found.pop().ok_or_else(|| CliError::NoSuchRun { asked: asked.chars().take(140).collect() })
}

/// Finds jobs as [`job`] does. For a file of results, returns the newest run of each job in it. A fork has a file of its
/// own.
pub fn jobs(store: &dyn Store, asked: &str) -> Result<Vec<RunView>, CliError> {
    let file = jsonl::is_file(asked);
    if !file
        && let Ok(id) = RunId::new(asked)
        && let Some(no) = store.run_no(&id)?
        && let Some(view) = store.run(no)?
    {
        return is_job(view).map(|view| vec![view]);
    }
    let mut found: Vec<RunView> = Vec::new();
    let mut before: Option<RunNo> = None;
    loop {
        let page = store.runs(&RunFilter { before, jobs: true, limit: PAGE, ..RunFilter::default() })?;
        let Some(last) = page.last() else { break };
        before = Some(last.run.no);
        for view in page {
            let Some(name) = view.run.job.as_ref().map(|job| job.name.clone()) else { continue };
            let known = found.iter().any(|v| v.run.job.as_ref().is_some_and(|job| job.name == name));
            let ours = if file { view.run.parent.is_none() } else { name == asked };
            if ours && !known {
                found.push(view);
            }
        }
    }
    if found.is_empty() && !file {
        return is_job(run(store, asked)?).map(|view| vec![view]);
    }
    Ok(found)
}

fn is_job(view: RunView) -> Result<RunView, CliError> {
    if view.run.job.is_some() {
        return Ok(view);
    }
    Err(store::Error::Engine(engine::Error::NotAJob { id: view.run.id.to_string() }).into())
}

/// Returns the point of a run that a word names: a snapshot's name first, then a time as text.
///
/// Any other word is returned as the name of a snapshot that does not exist. Errors: of the store.
pub fn fork_point(store: &dyn Store, view: &RunView, word: &str) -> Result<Point, store::Error> {
    if snapshots::named(store, &view.run.id, word)?.is_none()
        && let Ok(when) = time::parse_when(word)
    {
        return Ok(Point::Time(when.resolve(store.now()?)));
    }
    Ok(Point::Name(word.to_owned()))
}

/// Returns whether `asked` is the run's name or the start of its id, with or without `run_`.
fn is_meant(view: &RunView, asked: &str) -> bool {
    let id = view.run.id.as_str();
    let begins = !asked.is_empty()
        && (id.starts_with(asked) || id.strip_prefix("run_").is_some_and(|rest| rest.starts_with(asked)));
    begins || view.spec.name.as_deref() == Some(asked)
}
