//! `outlast files`: what a run changed in its files; `outlast undo`: brings them back.

use outlast_files::{Change, Id, Node, Restored};
use outlast_view::FileChange;

use super::prelude::*;
use crate::{
    cli::files::ForceArgs,
    files::{
        Asked,
        history::{self, History},
    },
};

/// Show what a run changed in its files, and bring files back
///
/// For runs that were begun with `outlast run --files`. A snapshot belongs to the entry beside which it was taken: the
/// files are as the tools before that entry left them.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_value_name = "diff|show|restore")]
pub struct FilesArgs {
    /// The run: its id, its name, or the start of its id
    pub run: Option<String>,
    #[command(subcommand)]
    pub verb: Option<FilesVerb>,
}

const EXAMPLES: &str = "\
Examples:
  outlast files nightly                       what changed, entry by entry
  outlast files diff nightly 12               what changed from entry 12 on
  outlast files show nightly src/main.rs@12   a file as it was then
  outlast files restore nightly src/main.rs --at 12
  outlast undo nightly --to 12                all files";

#[derive(Subcommand, Clone, Debug)]
pub enum FilesVerb {
    Diff(FilesDiffArgs),
    Show(FilesShowArgs),
    Restore(FilesRestoreArgs),
}

/// Print the differences between two entries of a run
#[derive(Args, Clone, Debug)]
pub struct FilesDiffArgs {
    /// The run: its id, its name, or the start of its id
    pub run: String,
    /// The entry from which on [default: the run's beginning]
    pub from: Option<i64>,
    /// The entry up to which [default: the newest snapshot]
    pub to: Option<i64>,
}

/// Print a file as it was at an entry of a run
#[derive(Args, Clone, Debug)]
pub struct FilesShowArgs {
    /// The run: its id, its name, or the start of its id
    pub run: String,
    /// The file, below the directory that is kept; without @ENTRY as the newest snapshot has it
    #[arg(value_name = "PATH[@ENTRY]")]
    pub path: String,
}

/// Bring some files back, as they were at an entry of a run
///
/// What is there now is kept first.
#[derive(Args, Clone, Debug)]
pub struct FilesRestoreArgs {
    /// The run: its id, its name, or the start of its id
    pub run: String,
    /// Files and directories, below the directory that is kept
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<String>,
    /// The entry [default: the run's beginning]
    #[arg(long, value_name = "ENTRY")]
    pub at: Option<i64>,
    #[command(flatten)]
    pub force: ForceArgs,
}

/// Bring a run's files back, as they were before the run, or at one of its entries
///
/// What is there now is kept first. Only what the run's snapshots say differs is touched, path by path: no file that no
/// snapshot holds, nothing of a repository. Refused, with the list, where somebody else changed a file since. The run's
/// journal, its conversation and its money stay as they are.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast undo nightly\n  outlast undo nightly --to 12\n  outlast undo nightly --to saved    takes the last undo back"
)]
pub struct UndoArgs {
    /// The run: its id, its name, or the start of its id
    pub run: String,
    /// The entry, as of whose beginning files come back; saved: as they were before the last undo [default: the run's beginning]
    #[arg(long, value_name = "ENTRY|saved")]
    pub to: Option<UndoTo>,
    #[command(flatten)]
    pub force: ForceArgs,
}

/// Files that come back by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoTo {
    /// As they were when an entry began.
    Entry(i64),
    /// As they were before the last restoration by hand.
    Saved,
}

impl std::str::FromStr for UndoTo {
    type Err = String;

    fn from_str(word: &str) -> Result<UndoTo, String> {
        match word {
            "saved" => Ok(UndoTo::Saved),
            entry => {
                entry.parse().map(UndoTo::Entry).map_err(|_| "wanted an entry's number, or saved".into())
            }
        }
    }
}

/// Most effects, and most paths of one entry, that are shown to people.
const SHOWN: usize = 8;

/// A run with its snapshots and their objects.
struct Opened {
    view: RunView,
    history: History,
    files: Files,
}

impl Opened {
    fn new(store: &dyn Store, context: &Context, asked: &str, verb: Verb) -> Result<Opened> {
        let view = find::run_to(store, asked, verb)?;
        let not_kept = || FilesError::NotKept { run: called(&view) };
        let (kept, directory) = of_run(&view).ok_or_else(not_kept)?;
        let history = History::read(store, view.run.no)?;
        let mut files = Files::open(context, &view.run.id, kept, directory, false)?;
        files.bring(store, &history.snapshots())?;
        Ok(Opened { history, files, view })
    }

    /// Returns the snapshot of an entry; `None`: the run's first.
    fn at(&self, entry: Option<i64>) -> Result<Id, FilesError> {
        match entry {
            Some(entry) => {
                self.known_snapshot(self.history.at(Seq(entry)), &format!("of before entry {entry}"))
            }
            None => self.known_snapshot(self.history.steps.first().map(|step| step.kept.snapshot), "yet"),
        }
    }

    fn newest(&self) -> Result<Id, FilesError> {
        self.known_snapshot(self.history.newest().map(|step| step.kept.snapshot), "yet")
    }

    /// Returns the snapshot that was looked for. Errors: `NoSnapshot`, with the words that tell which one.
    fn known_snapshot(&self, snapshot: Option<Id>, when: &str) -> Result<Id, FilesError> {
        snapshot.ok_or_else(|| FilesError::NoSnapshot { run: called(&self.view), when: when.to_owned() })
    }
}

pub fn files(args: &FilesArgs, Desk { store, context, page, .. }: Desk) -> Result<u8> {
    match (&args.verb, &args.run) {
        (Some(FilesVerb::Diff(args)), _) => diff(store, args, context, page).map(|()| exit_code::OK),
        (Some(FilesVerb::Show(args)), _) => show(store, args, context, page).map(|()| exit_code::OK),
        (Some(FilesVerb::Restore(FilesRestoreArgs { run, paths, at, force })), _) => {
            bring_back(store, context, run, at.map(UndoTo::Entry), paths, force, page)
        }
        (None, Some(run)) => list(store, run, context, page).map(|()| exit_code::OK),
        (None, None) => Err(CliError::usage("wanted a run", Some("`outlast ls` lists runs"))),
    }
}

/// Prints what changed, a block for each snapshot.
fn list(store: &dyn Store, run: &str, context: &Context, page: &mut Page) -> Result {
    let Opened { view, history, mut files } = Opened::new(store, context, run, Verb::Look)?;
    let objects = &mut files.objects;
    let offset = time::offset(view.run.created_at);
    let mut rows = Vec::new();
    for (index, step) in history.steps.iter().enumerate() {
        let mut told = Vec::new();
        if let Some(before) = history.before(index) {
            for change in &outlast_files::diff(objects, &before, &step.kept.snapshot)? {
                told.push(history::describe(objects, change, false)?);
            }
        }
        if page.look.json {
            rows.push(json!({
                "entry": step.at.0, "moment": step.kept.moment, "attempt": step.attempt.0,
                "snapshot": step.kept.snapshot, "late": step.kept.late, "key": step.kept.key, "changes": told,
            }));
            continue;
        }
        let when = time::cell(step.taken_at, &offset);
        let mut what = match index {
            0 => "as the run began".to_owned(),
            _ => format!("{} changed", some(told.len() as i64, "path")),
        };
        if let Some(key) = &step.kept.key {
            what.push_str(&format!(" by {}", clean_line(key, 40)));
        }
        if step.kept.late {
            what.push_str("; taken after its answer: the next tool may have begun");
        }
        let head = format!("{:>5}  {when}  {:<8}  {what}", step.at.0, step.kept.moment.name());
        page.line(&page.look.paint(Paint::Strong, &head))?;
        print_first(
            told.iter().map(|change| format!("       {}", clean_line(&line(change), 73))),
            "       ",
            page,
        )?;
    }
    if page.look.json {
        let root = files.root.to_string_lossy();
        return Ok(page.json(&json!({ "run": view.run.id, "directory": root, "snapshots": rows }))?);
    }
    if history.steps.is_empty() {
        return Ok(page.line("no snapshot yet")?);
    }
    Ok(page.line(&format!(
        "a number is that of the entry before which the files were so; `outlast journal {}` tells the entries",
        called(&view)
    ))?)
}

/// Prints the first few of some lines, and how many more there are.
fn print_first(lines: impl ExactSizeIterator<Item = String>, indent: &str, page: &mut Page) -> Result {
    let more = lines.len().saturating_sub(SHOWN);
    lines.take(SHOWN).try_for_each(|line| page.line(&line))?;
    if more > 0 {
        page.line(&format!("{indent}and {more} more"))?;
    }
    Ok(())
}

/// Returns a change as a line, for people.
fn line(change: &FileChange) -> String {
    let lines = match change.lines_added.zip(change.lines_removed) {
        Some((added, removed)) if added + removed > 0 => format!("  (+{added} -{removed})"),
        _ => String::new(),
    };
    format!("{:<8} {}{lines}", change.what, change.path)
}

fn diff(store: &dyn Store, args: &FilesDiffArgs, context: &Context, page: &mut Page) -> Result {
    let mut opened = Opened::new(store, context, &args.run, Verb::Look)?;
    let from = opened.at(args.from)?;
    let to = args.to.map_or_else(|| opened.newest(), |to| opened.at(Some(to)))?;
    let objects = &mut opened.files.objects;
    for change in outlast_files::diff(objects, &from, &to)? {
        let change = history::describe(objects, &change, true)?;
        let Some(text) = &change.diff else {
            page.line(&clean(&line(&change)))?;
            continue;
        };
        for line in text.lines() {
            let paint = match line.as_bytes().first() {
                Some(b'+') => Paint::Good,
                Some(b'-') => Paint::Bad,
                Some(b'@') => Paint::Calm,
                _ => Paint::Plain,
            };
            // What an agent wrote must not write to the terminal.
            page.line(&page.look.paint(paint, &clean(line)))?;
        }
    }
    Ok(())
}

fn show(store: &dyn Store, args: &FilesShowArgs, context: &Context, page: &mut Page) -> Result {
    let mut opened = Opened::new(store, context, &args.run, Verb::Look)?;
    let asked = args.path.rsplit_once('@').and_then(|(path, entry)| Some((path, entry.parse::<i64>().ok()?)));
    let (path, snapshot) = match asked {
        Some((path, entry)) => (path, opened.at(Some(entry))?),
        None => (args.path.as_str(), opened.newest()?),
    };
    let objects = &mut opened.files.objects;
    match outlast_files::at(objects, &snapshot, path.as_bytes())? {
        Some(Node::File { parts, .. }) => Ok(page.bytes(&objects.content(&parts)?)?),
        Some(Node::Link { target }) => Ok(page.bytes(&target)?),
        _ => {
            let newest = || opened.history.newest().map_or(0, |step| step.at.0);
            let entry = asked.map_or_else(newest, |(_, entry)| entry);
            Err(FilesError::NoPath { path: path.to_owned(), entry }.into())
        }
    }
}

pub fn undo(args: &UndoArgs, Desk { store, context, page, .. }: Desk) -> Result<u8> {
    bring_back(store, context, &args.run, args.to, &[], &args.force, page)
}

fn bring_back(
    store: &dyn Store,
    context: &Context,
    run: &str,
    to: Option<UndoTo>,
    only: &[String],
    ForceArgs { force }: &ForceArgs,
    page: &mut Page,
) -> Result<u8> {
    let mut opened = Opened::new(store, context, run, Verb::Restore)?;
    let status = opened.view.run.status;
    if matches!(status, Status::Running | Status::Waiting | Status::Sleeping) {
        return Err(FilesError::InUse { run: called(&opened.view), status }.into());
    }
    let begun = opened.history.steps.first().map_or(Seq(1), |step| step.at);
    let (to, from) = match to {
        None => (opened.at(None)?, begun),
        Some(UndoTo::Entry(entry)) => (opened.at(Some(entry))?, Seq(entry)),
        Some(UndoTo::Saved) => {
            let saved = opened.files.saved()?;
            (opened.known_snapshot(saved, "of before an undo")?, opened.view.run.next_seq)
        }
    };
    let known = opened.files.known(store, opened.view.run.no, &opened.history)?;
    let restored = opened.files.restore(&Asked { to, known: known.as_ref(), only, force })?;
    let effects = history::since(store, opened.view.run.no, from)?;
    print(&opened.view, &restored, &effects, page)
}

fn print(view: &RunView, restored: &Restored, effects: &[history::Effect], page: &mut Page) -> Result<u8> {
    let code = if restored.left.is_empty() { exit_code::OK } else { exit_code::REFUSED };
    if page.look.json {
        let changed: Vec<String> = restored.changed.iter().map(Change::shown).collect();
        page.json(&json!({
            "run": view.run.id, "restored": restored.to, "saved": restored.saved, "changed": changed,
            "left": restored.left, "not_undone": effects,
        }))?;
        return Ok(code);
    }
    let count = some(restored.changed.len() as i64, "path");
    page.line(&format!("{}  {count} brought back", page.look.paint(Paint::Strong, &called(view))))?;
    let changed = restored.changed.iter().map(|change| format!("  {}", clean_line(&change.shown(), 76)));
    print_first(changed, "  ", page)?;
    for path in &restored.left {
        let why = "left: somebody changed it meanwhile, or files that are not kept are in it";
        page.line(&format!("  {}  {why}", clean(path)))?;
    }
    if !effects.is_empty() {
        let calls = some(effects.len() as i64, "call");
        page.line(&format!("not undone: {calls} that may have had effects elsewhere"))?;
        for effect in effects.iter().take(SHOWN) {
            let line = format!("  entry {}  {} {}", effect.entry, effect.tool, effect.input);
            page.line(&clean_line(&line, 80))?;
        }
        if effects.len() > SHOWN {
            page.line(&format!("  and {} more: `outlast journal {}`", effects.len() - SHOWN, called(view)))?;
        }
    }
    Ok(code)
}
