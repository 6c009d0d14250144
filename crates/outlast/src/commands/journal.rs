//! `outlast journal RUN [-f]`: prints a run's entries, one a line, and follows them until the run has ended.

use super::prelude::*;
use crate::agent::session;

/// Print a run's journal, one line for each entry, or the content of one entry
#[derive(Args, Clone, Debug, Default)]
#[command(
    after_help = "Examples:\n  outlast journal nightly\n  outlast journal nightly -f\n  outlast journal nightly -f --json\n  outlast journal nightly 47\n  outlast journal nightly 47 --diff\n  outlast journal nightly --grep invoice\n  outlast journal --grep invoice\n  outlast journal nightly --divergence"
)]
pub struct JournalArgs {
    /// The run: its id, its name, or the start of its id; the last run of this directory, with --grep: all runs
    pub run: Option<String>,
    /// Go on until the run has ended; with --json a line of JSON for each change
    #[arg(long, short)]
    pub follow: bool,
    /// Also Outlast's own bookkeeping, such as copies of the agent's session, and a CLI agent's entries in all columns
    #[arg(long)]
    pub all: bool,
    /// One entry, by its number: what was asked and answered, as a person reads it
    #[arg(value_name = "ENTRY", conflicts_with_all = ["follow", "divergence"])]
    pub entry: Option<i64>,
    /// With ENTRY: the recorded bytes of its request and its answer
    #[arg(long, requires = "entry", conflicts_with = "json")]
    pub raw: bool,
    /// With ENTRY: of the request, only what is new since the call before it
    #[arg(long, requires = "entry", conflicts_with = "raw")]
    pub diff: bool,
    /// The lines of requests and answers that hold this text, of ENTRY or of all
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["follow", "divergence", "raw", "diff"])]
    pub grep: Option<String>,
    /// Where a restarted attempt asked for something else than what was recorded: both requests, and the first place in which they differ
    #[arg(long, conflicts_with = "follow")]
    pub divergence: bool,
    /// For each restart: the prompt tokens that were paid again although the provider had cached them, and the first byte in which its request differs from the last one before the restart
    #[arg(long, conflicts_with_all = ["follow", "divergence", "entry", "grep"])]
    pub cache: bool,
}

/// Number of entries that are read at once.
const PAGE: usize = 1000;

/// Prints the journal of a run. With `-f`, `wait` is called between two looks at the run.
pub fn journal(args: &JournalArgs, Desk { store, context, page, wait, .. }: Desk) -> Result {
    if let (None, Some(text)) = (&args.run, &args.grep) {
        return super::exchange::grep_all(store, text, page);
    }
    let view = find::run_or_last(store, args.run.as_deref(), context.around.directory(), Verb::Look)?;
    if let Some(text) = &args.grep {
        return super::exchange::grep(store, &view, args.entry, text, page);
    }
    if let Some(entry) = args.entry {
        return super::exchange::one(store, &view, args, entry, page);
    }
    if args.cache {
        return super::resume_tax::print(store, &view, page);
    }
    if args.divergence {
        return super::divergence::divergence(store, &view, page);
    }
    if args.follow {
        return follow(store, view, args, page, wait);
    }
    let entries = entries::each(store, view.run.no).map(|entry| entry.map_err(CliError::from));
    // Programs are given all that there is.
    if page.look.json {
        let id = &view.run.id;
        let head = [("run", id.as_str()), ("status", view.run.status.name())];
        let head = head.map(|(key, value)| (key.to_owned(), value.into())).into_iter().collect();
        let entries = entries.map(|entry| Ok(view::Entry::new(id, &entry?)));
        return page.json_list(head, "entries", entries, Map::new);
    }
    let is_shown = |e: &Result<Entry>| e.as_ref().map_or(true, |e| args.all || !e.is_bookkeeping());
    if is_told(store, &view, args)? {
        page.line(&entry::told_head(page.look, view.run.created_at))?;
        return entries.filter(is_shown).try_for_each(|entry| tell(store, &entry?, page));
    }
    let offset = time::offset(view.run.created_at);
    let rows = entries
        .filter(is_shown)
        .map(|entry| Ok::<_, CliError>(entry::cells(&gist::as_told(store, entry?)?, &offset)));
    page.table(entry::head(&offset), rows, "no entries yet")
}

/// Returns whether the entries are told by what was said and done: those of a CLI agent, unless all of it is wanted.
fn is_told(store: &dyn Store, view: &RunView, args: &JournalArgs) -> Result<bool> {
    let key = session::key(None, view.run.iteration);
    Ok(!args.all && session::find(store, view.run.no, &key)?.is_some())
}

/// Prints an entry by its gist.
fn tell(store: &dyn Store, e: &Entry, page: &mut Page) -> Result {
    let gist = gist::gist(store, e)?;
    Ok(page.line(&entry::told_line(&gist::as_told(store, e.clone())?, gist.as_deref(), page.look))?)
}

/// Prints each entry when it opens and again when its state changes.
fn follow(
    store: &dyn Store,
    mut view: RunView,
    args: &JournalArgs,
    page: &mut Page,
    wait: &mut dyn FnMut(Duration),
) -> Result {
    let (no, id) = (view.run.no, view.run.id.clone());
    let mut last = Seq(0);
    // Entries that may still change.
    let mut pending: Vec<(Seq, State)> = Vec::new();
    let mut status: Option<Status> = None;
    loop {
        // The status is read before the entries, so that the last entries of an ended run are not missed.
        if let Some(now) = store.run(no)? {
            view = now;
        }
        let mut changed: Vec<Entry> = Vec::new();
        for (seq, state) in &mut pending {
            if let Some(e) = store.entry(no, *seq)?.filter(|e| e.state != *state) {
                *state = e.state;
                changed.push(e);
            }
        }
        pending.retain(|(_, state)| may_change(*state));
        let is_told = !page.look.json && is_told(store, &view, args)?;
        let mut print = |e: &Entry| match is_told {
            _ if !page.look.json && !args.all && e.is_bookkeeping() => Ok(()),
            true => tell(store, e, page),
            false => print(store, &id, e, page),
        };
        for e in changed {
            print(&e)?;
        }
        loop {
            let more = store.entries(no, last, PAGE)?;
            let Some(newest) = more.last() else { break };
            last = newest.seq;
            for e in more {
                if may_change(e.state) {
                    pending.push((e.seq, e.state));
                }
                print(&e)?;
            }
        }
        if status.replace(view.run.status) != Some(view.run.status) {
            say(&view, page)?;
        }
        page.flush()?;
        if view.run.status.is_ended() {
            return Ok(());
        }
        wait(FOLLOW);
    }
}

fn may_change(state: State) -> bool {
    matches!(state, State::Open | State::Unknown)
}

fn print(store: &dyn Store, run: &RunId, e: &Entry, page: &mut Page) -> Result {
    match page.look.json {
        true => page.json_line(&view::Entry::new(run, e))?,
        false => page.line(&entry::line(&gist::as_told(store, e.clone())?, page.look))?,
    }
    Ok(())
}

/// Prints a change of status as a line of its own. Its JSON line has no `seq`.
fn say(view: &RunView, page: &mut Page) -> Result {
    let run = &view.run;
    if page.look.json {
        return Ok(page.json_line(&json!({
            "run": run.id,
            "status": run.status.name(),
            "halt_code": run.halt.as_ref().map(|h| &h.code),
        }))?);
    }
    let why = run.halt.as_ref().map_or_else(String::new, |h| format!(": {}", h.message()));
    let text = format!("-- {}{why}", run.status.name());
    let painted = page.look.paint(Paint::Faint, &text);
    Ok(page.line(&painted)?)
}
