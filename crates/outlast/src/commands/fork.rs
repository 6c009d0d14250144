//! `outlast snapshot RUN NAME` and `outlast fork RUN --from-snapshot …`.

use outlast_core::{
    engine::{self, Amend, Snapshot},
    reads::forks::{Point, id_of, prepare},
    run::KeptFiles,
};
use outlast_view::Fork;

use super::prelude::*;
use crate::agent::conduct::fork::session_words;

/// Give the point where a run is now a name, to fork it from there
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  outlast snapshot research-42 before-the-draft")]
pub struct SnapshotArgs {
    /// The run or job: its id, its name, or the start of its id; or a JSONL file of results
    #[arg(value_name = "RUN|FILE.jsonl")]
    pub run: String,
    /// The snapshot's name, of A-Z a-z 0-9 . _ -; used again, it means the new point
    pub name: String,
}

/// Create a run that continues from an earlier point of another run
///
/// The work that the other run had done by then is shared: it is neither copied nor paid again. The fork is its child: what the fork spends
/// counts against the other's limits, too. Start it with outlast resume.
#[derive(Args, Clone, Debug)]
#[command(
    group(clap::ArgGroup::new("point").required(true)),
    after_help = "Examples:\n  outlast fork research-42 --from-snapshot before-the-draft\n  outlast fork enrich-docs --from-snapshot 2 --name enrich-again\n  outlast fork nightly --from-snapshot 2026-11-20T08:00:00Z\n  outlast fork nightly --at 12 --into ../nightly-again"
)]
pub struct ForkArgs {
    /// The run or job: its id, its name, or the start of its id; or a JSONL file of results
    #[arg(value_name = "RUN|JOB|FILE.jsonl")]
    pub run: String,
    /// Point to continue from: a snapshot's name, an attempt's number (its end is used), or a time
    #[arg(long, value_name = "NAME|ATTEMPT|TIME", group = "point")]
    pub from_snapshot: Option<String>,
    /// Entry to continue from: it is the last one that is shared
    #[arg(long, value_name = "ENTRY", group = "point")]
    pub at: Option<i64>,
    /// Directory that the fork works in, with the run's files as they were when the entry began; it is made, or is empty. For runs of `outlast run --files`
    #[arg(long, value_name = "DIR", requires = "at")]
    pub into: Option<PathBuf>,
    /// The fork's id; by default built from the other run's id and the point
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// The fork's name; by default the other run's with -fork, and a number where that is taken
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Limit in dollars for the fork alone; the other run's limit still holds
    #[arg(long, value_name = "AMOUNT", value_parser = values::usd)]
    pub usd: Option<i64>,
}

pub fn name(args: &SnapshotArgs, Desk { store, page, .. }: Desk) -> Result {
    let view = meant(store, &args.run)?;
    let snapshot = Snapshot { run: view.run.no, id: view.run.id.clone(), name: args.name.clone() };
    let seq = store.ask(snapshot, Durability::Synced).wait()?;
    if page.look.json {
        return Ok(page.json(&json!({ "run": view.run.id, "snapshot": args.name, "seq": seq.0 }))?);
    }
    let id = page.look.paint(Paint::Strong, &called(&view));
    page.line(&format!("{id}  snapshot {} at entry {seq}", look::clean(&args.name)))?;
    let word = if jsonl::is_file(&args.run) { args.run.clone() } else { called(&view) };
    Ok(page.line(&format!("  → outlast fork {word} --from-snapshot {}", look::clean(&args.name)))?)
}

/// Creates a fork with the files of its point, in a directory of its own.
///
/// Files come first: if they cannot be had, there is no fork. Typed again after a kill, it goes on.
pub fn fork_into(args: &ForkArgs, Desk { store, by, context, page, .. }: Desk) -> Result {
    let (Some(into), Some(at)) = (&args.into, args.at.map(Seq)) else {
        return Err(CliError::usage("--into wants --at ENTRY", None));
    };
    let view = find::run_to(store, &args.run, Verb::Branch)?;
    let run = || called(&view);
    let not_kept = || FilesError::NotKept { run: run() };
    let (kept, works_in) = of_run(&view).ok_or_else(not_kept)?;
    let when = format!("of before entry {at}");
    let snapshot = History::read(store, view.run.no)?.at(at);
    let snapshot = snapshot.ok_or_else(|| FilesError::NoSnapshot { run: run(), when })?;
    let into = context.around.directory().join(into);
    fs::create_dir_all(&into)?;
    let directory = into.canonicalize()?.to_string_lossy().into_owned();
    let there = KeptFiles { directory: Some(directory.clone()), ..kept.clone() };
    let mut files = Files::open(context, &view.run.id, &there, works_in, false)?;
    files.bring(store, &[snapshot])?;
    let restored = files.put_down(snapshot)?;
    let no = forked(store, by, args, context, page)?;
    let mut fork = find::view(store, no)?;
    match (&mut fork.spec.files, &mut fork.spec.command) {
        (Some(kept), _) => kept.directory = Some(directory),
        (None, Some(command)) => match &mut command.supervision.files {
            Some(KeptFiles { directory: Some(other), .. }) => *other = directory,
            _ => command.directory = directory,
        },
        (None, None) => {}
    }
    store.ask(Amend { run: no, spec: fork.spec, unpriced: None }, Durability::Synced).wait()?;
    if !page.look.json {
        let count = some(restored.changed.len() as i64, "path");
        page.line(&format!("  {count} as of entry {at} in {}", look::clean(&into.to_string_lossy())))?;
    }
    Ok(())
}

/// Creates a fork, prints it and returns its number.
pub fn fork(args: &ForkArgs, Desk { store, by, context, page, .. }: Desk) -> Result {
    forked(store, by, args, context, page).map(drop)
}

fn forked(store: &dyn Store, by: &str, args: &ForkArgs, context: &Context, page: &mut Page) -> Result<RunNo> {
    let view = meant(store, &args.run)?;
    let point = match (args.at, &args.from_snapshot) {
        (Some(at), _) => Point::Seq(Seq(at)),
        (None, word) => point(store, &view, word.as_deref().unwrap_or_default())?,
    };
    let usage = |message: String| CliError::usage(message, Some("give the fork an id with --id"));
    let id = match &args.id {
        Some(id) => RunId::new(id).map_err(|e| usage(e.to_string()))?,
        None => id_of(&view.run.id, &point).ok_or_else(|| usage("its id would be too long".into()))?,
    };
    let mut limits = Limits::default();
    limits[Unit::CostNanoUsd] = args.usd;
    let prepared = prepare(store, view.run.no, &point, id.clone(), limits)?;
    let fork = engine::Fork { name: args.name.clone(), ..prepared };
    let (origin, has_command) = (fork.origin, fork.spec.command.is_some());
    let started = store.ask(InName::of(by, fork), Durability::Synced).wait()?;
    if page.look.json {
        page.json(&Fork::new(id, &view.run.id, origin, started.created))?;
        return Ok(started.run);
    }
    let word = called(&find::view(store, started.run)?);
    let strong = page.look.paint(Paint::Strong, &word);
    let shared = some(origin.seq.0, "entry");
    let was = if started.created { "" } else { ", which is there already" };
    page.line(&format!("{strong}  a fork of {}{was}: it shares the first {shared}", called(&view)))?;
    if let Some(words) = session_words(&view, &context.around) {
        page.line(&format!("  {words}"))?;
    }
    if has_command {
        page.line(&format!("  → outlast resume {word}"))?;
    }
    Ok(started.run)
}

/// Finds the job that has this name, or else the run.
fn meant(store: &dyn Store, asked: &str) -> Result<RunView> {
    match find::job(store, asked, Verb::Branch) {
        Err(CliError::Store(store::Error::Engine(engine::Error::NotAJob { id }))) => find::run(store, &id),
        // Its hint is not for jobs alone.
        Err(CliError::NoSuchRun { .. }) => find::run(store, asked),
        found => found,
    }
}

/// Reads a fork point from the command line: first as a snapshot's name, then an attempt's number, then a time.
fn point(store: &dyn Store, view: &RunView, word: &str) -> Result<Point> {
    if reads::places::snapshot(store, &view.run.id, word)?.is_none()
        && let Ok(no) = word.parse::<i64>()
    {
        return Ok(Point::Attempt(AttemptNo(no)));
    }
    Ok(find::fork_point(store, view, word)?)
}
