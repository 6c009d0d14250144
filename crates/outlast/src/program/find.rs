//! Finds the run that a word means: by id, by name, or by the start of an id; and the policy of a name.

use std::path::Path;

use outlast_core::{
    engine,
    reads::{
        forks::Point,
        places,
        policies::{self, NamedPolicy},
        runs,
    },
    run::Status,
    store::{self, RunFilter, RunView, Store},
    words::RunNo,
};

use crate::{
    program::{
        error::{Candidate, CliError, InputError, Result, RunError},
        jsonl,
        say::say,
    },
    render::{short, time},
    settings::{policies as settings, surroundings::Surroundings},
};

/// Most candidates that an error lists.
const LISTED: usize = 10;

/// Newest runs among which the one that a mistyped word may mean is looked for.
const LIKELY: usize = 200;

/// Verb for which a run is looked up. It decides which of several runs of one name is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The command reads the run, in any status.
    Look,
    Resume,
    Stop,
    Wake,
    Attach,
    /// The command changes a run that has not ended.
    Change,
    /// Ends a run for good.
    End,
    /// Removes runs that have ended.
    Remove,
    /// Names a point of a run, in any status, or begins another run from it.
    Branch,
    /// Changes the limits of a run, in any status.
    Limit,
    /// Changes the files of a run that nobody drives.
    Restore,
}

impl Verb {
    /// Returns whether the verb can act on the run.
    pub fn fits(self, view: &RunView) -> bool {
        let status = view.run.status;
        match self {
            Verb::Look | Verb::Branch | Verb::Limit => true,
            Verb::Restore => !matches!(status, Status::Running | Status::Waiting | Status::Sleeping),
            Verb::Resume => {
                let resumable = matches!(
                    status,
                    Status::Interrupted | Status::Halted | Status::Sleeping | Status::Failed
                );
                resumable && (view.spec.command.is_some() || view.run.stop_requested)
            }
            Verb::Stop | Verb::Attach => {
                matches!(status, Status::Running | Status::Waiting | Status::Sleeping)
            }
            Verb::Wake => view.run.wake_at.is_some() || view.run.awaited_outage().is_some(),
            Verb::Change | Verb::End => !status.is_ended(),
            Verb::Remove => status.is_ended(),
        }
    }

    /// Returns whether the verb takes the newest of several runs that fit the name as `rank` says: it only reads, or it
    /// can act on none of them. A failed run is resumed alone, too: older ones of its name are history.
    fn guesses(self, rank: Rank) -> bool {
        let acts_on_ended = matches!(self, Verb::Remove | Verb::Branch | Verb::Limit | Verb::Restore);
        let acts = rank.fits && (rank.lives || acts_on_ended);
        rank.is_name && (self == Verb::Look || !acts)
    }
}

/// Measure of how well a run fits the name that was typed. The first field that differs decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_name: bool,
    fits: bool,
    lives: bool,
}

/// Returns the run of this number. Errors: `NoSuchRun`.
pub fn view(store: &dyn Store, no: RunNo) -> Result<RunView> {
    store.run(no)?.ok_or_else(|| CliError::NoSuchRun { asked: format!("#{no}"), like: None, is_job: false })
}

/// Finds the run that `asked` names, in order to read it. See [`run_to`].
pub fn run(store: &dyn Store, asked: &str) -> Result<RunView> {
    run_to(store, asked, Verb::Look)
}

/// Finds the run that `asked` names: by its exact id, else by its name, else by the start of its id, with or without
/// `run_`.
///
/// Runs on which `verb` can act take precedence over others, and of these the ones that have not ended. If
/// several runs of one name are left, a verb that reads takes the newest, and a printed line says so.
///
/// Errors: `NoSuchRun`; `AmbiguousRun` with the candidates, if several ids begin like `asked`, or the verb would change
/// one of several runs.
pub fn run_to(store: &dyn Store, asked: &str, verb: Verb) -> Result<RunView> {
    if let Some(view) = runs::with_id(store, asked)? {
        return Ok(view);
    }
    let mut found: Vec<RunView> = Vec::new();
    let (mut best, mut count, mut all) = (Rank::default(), 0, 0);
    for view in runs::each(store, RunFilter::of_word(asked)) {
        let view = view?;
        // The short id of a run is the start of its forks' ids, too, and means the run.
        let is_name = view.spec.name.as_deref() == Some(asked) || short::short(&view) == asked;
        if is_name || begins(&view, asked) {
            let rank = Rank { is_name, fits: verb.fits(&view), lives: !view.run.status.is_ended() };
            if rank > best {
                all = if rank.is_name == best.is_name { all } else { 0 };
                found.clear();
                (best, count) = (rank, 0);
            }
            all += usize::from(rank.is_name == best.is_name);
            if rank == best {
                count += 1;
                if found.len() < LISTED {
                    found.push(view);
                }
            }
        }
    }
    if count > 1 && !verb.guesses(best) {
        return Err(ambiguous(store, asked, &found, count)?);
    }
    let Some(view) = found.into_iter().next() else {
        let newest = runs::each(store, RunFilter::default()).take(LIKELY);
        let words = newest.map(|view| Ok(short::called(&view?))).collect::<Result<Vec<_>, store::Error>>()?;
        let like = nearest(asked, words.iter().map(String::as_str)).map(str::to_owned);
        let asked = asked.chars().take(140).collect();
        return Err(CliError::NoSuchRun { asked, like, is_job: false });
    };
    tell_taken(store, asked, &view, all)?;
    Ok(view)
}

/// Returns the known word most similar to the one that was typed, if any is similar enough.
pub fn nearest<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let best = known.map(|word| (strsim::levenshtein(typed, word), word)).min_by_key(|(edits, _)| *edits)?;
    (best.0 <= 1 + typed.len() / 3).then_some(best.1)
}

/// Prints which run was taken of `all` that `asked` may mean.
fn tell_taken(store: &dyn Store, asked: &str, view: &RunView, all: usize) -> Result<(), store::Error> {
    if all > 1 {
        let age = time::age(store.now()?.ms_since(view.run.created_at));
        let (id, status) = (short::short(view), view.run.status.name());
        say(&format!("{asked:?} is {id}, {status}, begun {age} ago: one of {all} runs that it may mean"));
    }
    Ok(())
}

/// Finds the last run that was begun in `directory` and on which `verb` can act, else the last run there, and prints
/// which run it is. A failed run is resumed by name only.
///
/// Errors: `NoRunHere`; `NothingToResume`.
pub fn last_in(store: &dyn Store, directory: &Path, verb: Verb) -> Result<RunView> {
    let mut last = None;
    let mut fitting = None;
    let here = directory.to_string_lossy();
    let is_passed_over = |view: &RunView| verb == Verb::Resume && view.run.status == Status::Failed;
    for view in runs::each(store, RunFilter::default()) {
        let view = view?;
        // What a program began inside of another run is that run's.
        let is_own = view.spec.command.is_some() || view.run.parent.is_none();
        if is_own && view.spec.begun_in() == Some(&*here) {
            if verb.fits(&view) && !is_passed_over(&view) {
                fitting = Some(view);
                break;
            }
            last.get_or_insert(view);
        }
    }
    let here = || here.clone().into_owned();
    let view = match (fitting, last) {
        (Some(view), _) => view,
        (None, Some(last)) if verb == Verb::Resume => {
            let (run, status) = (short::called(&last), last.run.status);
            return Err(RunError::NothingToResume { directory: here(), run, status }.into());
        }
        (None, last) => last.ok_or_else(|| CliError::NoRunHere { directory: here() })?,
    };
    let age = time::age(store.now()?.ms_since(view.run.created_at));
    let (run, status) = (short::called(&view), view.run.status.name());
    let which = if verb == Verb::Resume {
        "newest run of this directory that can go on"
    } else {
        "last run of this directory"
    };
    say(&format!("{run}, {status}, begun {age} ago: the {which}"));
    Ok(view)
}

/// Finds the run that `asked` names, as [`run_to`]; for `None` the last run of the directory, as [`last_in`].
pub fn run_or_last(store: &dyn Store, asked: Option<&str>, directory: &Path, verb: Verb) -> Result<RunView> {
    match asked {
        Some(asked) => run_to(store, asked, verb),
        // A directory of the other machine may have the same name, and means nothing here.
        None if store.is_remote() => Err(CliError::Usage {
            message: "over a server a run has to be named".into(),
            hint: Some("list them with `outlast ls`".into()),
        }),
        None => last_in(store, directory, verb),
    }
}

/// Returns the error that lists the first of the `count` runs that `asked` may mean.
fn ambiguous(
    store: &dyn Store,
    asked: &str,
    first: &[RunView],
    count: usize,
) -> Result<CliError, store::Error> {
    let now = store.now()?;
    let candidates = first.iter().take(LISTED).map(|view| Candidate::of(view, now)).collect();
    Ok(CliError::AmbiguousRun { asked: asked.chars().take(140).collect(), candidates, count })
}

/// Finds the job that `asked` names: by its run's id, by its name (the newest run of it), or by the start of an id. If
/// `asked` is a file of results, finds the job in it.
///
/// Errors: `NoSuchRun`, `AmbiguousRun`, `NotAJob`.
pub fn job(store: &dyn Store, asked: &str, verb: Verb) -> Result<RunView> {
    let mut found = jobs(store, asked, verb)?;
    if found.len() > 1 {
        return Err(ambiguous(store, asked, &found, found.len())?);
    }
    let asked: String = asked.chars().take(140).collect();
    found.pop().ok_or(CliError::NoSuchRun { asked, like: None, is_job: true })
}

/// Finds jobs as [`job`] does. For a file of results, returns the newest run of each job in it, without forks: a fork
/// has a file of its own.
pub fn jobs(store: &dyn Store, asked: &str, verb: Verb) -> Result<Vec<RunView>> {
    let file = jsonl::is_file(asked);
    if let Some(view) = if file { None } else { runs::with_id(store, asked)? } {
        return is_job(view).map(|view| vec![view]);
    }
    let mut found: Vec<RunView> = Vec::new();
    let (mut named, mut count) = (Vec::new(), 0);
    for view in runs::each(store, RunFilter { jobs: true, ..RunFilter::default() }) {
        let view = view?;
        let Some(name) = view.run.job.as_ref().map(|job| job.name.clone()) else { continue };
        let known = found.iter().any(|v| v.run.job.as_ref().is_some_and(|job| job.name == name));
        let ours = if file { view.run.parent.is_none() } else { name == asked };
        if ours && !file {
            count += 1;
            named.extend((count <= LISTED).then(|| view.clone()));
        }
        if ours && !known {
            found.push(view);
        }
    }
    if found.is_empty() && !file {
        let view = run_to(store, asked, verb).map_err(|e| match e {
            CliError::NoSuchRun { asked, like, .. } => CliError::NoSuchRun { asked, like, is_job: true },
            e => e,
        })?;
        return is_job(view).map(|view| vec![view]);
    }
    if count > 1 && verb == Verb::Branch {
        return Err(ambiguous(store, asked, &named, count)?);
    }
    if let [view] = found.as_slice() {
        tell_taken(store, asked, view, count)?;
    }
    Ok(found)
}

fn is_job(view: RunView) -> Result<RunView> {
    if view.run.job.is_some() {
        return Ok(view);
    }
    Err(store::Error::Engine(engine::Error::NotAJob { id: view.run.id.to_string() }).into())
}

/// Returns the point in a run's history that `word` names: a snapshot of that name, else a time as text.
///
/// Any other word is returned as the name of a snapshot, which does not exist. Errors: of the store.
pub fn fork_point(store: &dyn Store, view: &RunView, word: &str) -> Result<Point, store::Error> {
    if places::snapshot(store, &view.run.id, word)?.is_none()
        && let Ok(when) = time::parse_when(word)
    {
        return Ok(Point::Time(when.resolve(store.now()?)));
    }
    Ok(Point::Name(word.to_owned()))
}

/// Finds the policy of this name: in a settings file, else in the store. Errors: `UnknownPolicy`.
pub fn policy(around: &Surroundings, store: &dyn Store, name: &str) -> Result<NamedPolicy> {
    let configured = settings::load(around)?;
    if let Some(policy) = configured.iter().find(|p| p.name() == name) {
        return Ok(policy.clone());
    }
    if let Some(policy) = policies::find(store, name)? {
        return Ok(policy);
    }
    let mut known: Vec<String> = configured.iter().map(|p| p.name().to_owned()).collect();
    known.extend(policies::list(store)?.iter().map(|p| p.name().to_owned()));
    Err(InputError::UnknownPolicy { name: name.to_owned(), known }.into())
}

/// Returns whether the run's id begins with `asked`, with or without `run_`.
fn begins(view: &RunView, asked: &str) -> bool {
    let id = view.run.id.as_str();
    !asked.is_empty() && [id, id.strip_prefix("run_").unwrap_or(id)].iter().any(|id| id.starts_with(asked))
}
