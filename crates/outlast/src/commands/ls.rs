//! `outlast ls`: lists the runs, newest first.

use std::cell::Cell as Flag;

use outlast_core::reads::runs::RunSearch;
use outlast_view::listed;

use super::prelude::*;
use crate::{
    program::checkout,
    render::{
        did::Did,
        next::{RunWithNext, has_no_call},
    },
};

/// List runs, newest first
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast ls\n  outlast ls --status halted\n  outlast ls --wide --dir . --since 22:00\n  outlast ls --json | jq '.runs[].run'"
)]
pub struct LsArgs {
    /// Only runs of this status
    #[arg(long, value_parser = status, value_name = "STATUS")]
    pub status: Option<Status>,
    /// Only runs with this tag, or with this value of it
    #[arg(long, value_name = "KEY[=VALUE]")]
    pub tag: Option<String>,
    /// Only runs that were started in this directory or below it
    #[arg(long, value_name = "DIRECTORY")]
    pub dir: Option<PathBuf>,
    /// Only runs whose name or id contains this text
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Only runs that were created from this moment on: 22:00, 2026-11-20, 2026-11-20T08:00:00Z, 7d
    #[arg(long, value_name = "WHEN", value_parser = values::when)]
    pub since: Option<When>,
    /// Also their directories, the branches that are checked out there now, and their tags
    #[arg(long)]
    pub wide: bool,
    /// Largest number of runs to list
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: usize,
}

fn status(text: &str) -> Result<Status, String> {
    let all = Status::ALL.map(Status::name).join(", ");
    Status::parse(text).ok_or_else(|| format!("no such status (wanted one of {all})"))
}

/// Most entries of a run that are counted for its line.
const FIRST: usize = 200;

/// Lists runs. `here`: directory in which the command was typed.
pub fn ls(args: &LsArgs, Desk { store, context, page, .. }: Desk) -> Result {
    let now = store.now()?;
    let more = Flag::new(false);
    let directory = args.dir.as_ref().map(|dir| {
        let dir = context.around.directory().join(dir);
        // As a run's own directory is kept, without links and dots; on a server's machine it may be none of here.
        fs::canonicalize(&dir).unwrap_or_else(|_| dir.components().collect()).to_string_lossy().into_owned()
    });
    let wanted = RunSearch {
        name: args.name.clone(),
        tag: args.tag.as_ref().map(|tag| match tag.split_once('=') {
            Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
            None => (tag.clone(), None),
        }),
        directory,
        since: args.since.map(|since| since.resolve(now)),
        ..RunSearch::default()
    };
    let runs = runs::each(store, RunFilter { status: args.status, ..RunFilter::default() })
        .filter(|view| view.as_ref().map_or(true, |view| wanted.matches(view)))
        .enumerate();
    // One more than asked for is read, to tell whether there are more.
    let first = runs.map_while(|(nth, view)| {
        more.set(nth == args.limit);
        (nth < args.limit).then_some(view)
    });
    let shown = first.map(|view| {
        let view = view?;
        let next = next_of(store, &view)?;
        Ok::<_, CliError>((view, next))
    });
    if page.look.json {
        let objects = shown.map(|row| row.map(|(view, next)| RunWithNext::new(&view, next, now)));
        let tail = || Map::from_iter([("more".to_owned(), more.get().into())]);
        return page.json_list(Map::new(), "runs", objects, tail);
    }
    let (mut names, mut reasons) = (BTreeSet::new(), Vec::new());
    let room = if context.is_on_terminal { WIDTH } else { usize::MAX };
    let rows = shown.map(|row| {
        row.map(|(view, next)| {
            if view.run.job.is_some() && view.run.status == Status::Interrupted {
                reasons
                    .extend(view.run.why().map(|why| clean_line(&format!("{}: {why}", called(&view)), room)));
            }
            let place = if args.wide { place(&view) } else { Vec::new() };
            // Nobody's screen ends in a pipe.
            let next = match context.is_on_terminal {
                true => clean_line(&next.brief, NEXT).into(),
                false => Cell::whole(&next.brief),
            };
            [cells(&view, &mut names, now), vec![next], place].concat()
        })
    });
    let is_any = args.tag.is_none() && args.dir.is_none() && args.name.is_none() && args.since.is_none();
    let which = args.status.map_or_else(String::new, |s| format!("{} ", s.name()));
    let such = if is_any { "" } else { "such " };
    page.table(head(), rows, &format!("no {such}{which}runs in {}", store.place()))?;
    for reason in reasons {
        page.line(&reason)?;
    }
    if more.get() {
        page.line(&format!("only the newest {}; see --limit", args.limit))?;
    }
    Ok(())
}

/// Returns the next step for a run. Entries are read of a run alone that called no model, and at most `FIRST` of them.
fn next_of(store: &dyn Store, view: &RunView) -> Result<Next> {
    if !has_no_call(view) {
        return Ok(next(view, view.run.id.as_str()));
    }
    let first = store.entries(view.run.no, Seq(0), FIRST)?;
    let attempts = store.attempts(view.run.no)?;
    Ok(next_with(view, &Did::of(&first, attempts.last()), first.len() < FIRST, view.run.id.as_str()))
}

fn head() -> Table {
    Table::new(
        "run|status|>usd|>with children|>list price|>of|>calls|>failed|>age|next|directory|branch now|tags"
            .split('|'),
    )
}

/// Returns the cells of `--wide`: where the run's command was started, what is checked out there now, and its tags.
fn place(view: &RunView) -> Vec<Cell> {
    let directory = view.spec.begun_in();
    let branch = directory.and_then(|directory| checkout::branch(Path::new(directory)));
    let tags: Vec<String> = view.spec.tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
    vec![
        Cell::whole(directory.unwrap_or_default()),
        branch.map(|branch| branch.to_string()).unwrap_or_default().into(),
        tags.join(" ").into(),
    ]
}

/// Most characters of a name that stands for its run, and on a terminal of the next step: a row fits 80 columns.
const NAME: usize = 24;

const NEXT: usize = 20;

const WIDTH: usize = 80;

/// Returns the word by which commands find the run: its name, unless a newer run in the list has it too, else its short
/// id. `names` are those of the newer runs.
fn word(view: &RunView, names: &mut BTreeSet<String>) -> String {
    let word = called(view);
    let is_free = names.insert(word.clone()) && word.chars().count() <= NAME;
    if is_free { word } else { short(view) }
}

fn cells(view: &RunView, names: &mut BTreeSet<String>, now: Micros) -> Vec<Cell> {
    let (run, e, own, listed) = (&view.run, &view.envelope, view.run.own, listed(view));
    let unless_zero = |nano| if nano == 0 { Cell::default() } else { usd(nano).into() };
    vec![
        Cell::whole(word(view, names)),
        Cell::painted(run.status.name(), look::of_status(run.status)),
        if listed > 0 { unless_zero(own.cost_nano_usd - listed) } else { usd(own.cost_nano_usd).into() },
        with_children(view).map(usd).unwrap_or_default().into(),
        unless_zero(listed),
        e.limits[Unit::CostNanoUsd].map(usd).unwrap_or_default().into(),
        own.paid_calls().to_string().into(),
        if own.unpaid_calls > 0 { own.unpaid_calls.to_string().into() } else { Cell::default() },
        time::age(now.ms_since(run.created_at)).into(),
    ]
}
