//! `outlast watch [RUN]`: runs as they go, on a terminal; plain lines where it is none.
//!
//! `screen` draws what was read of the store, and this file reads it, takes the keys and prints plain lines.

mod screen;

use std::{collections::HashMap, io::Write as _, time::Instant};

use outlast_core::{
    engine::DecideApproval,
    reads::{approvals::View, runs::RunSearch},
};
use outlast_view::Wait;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::{
    approvals::user,
    journal::{self, JournalArgs},
    plan::Shown,
    prelude::*,
};
use crate::{
    files::is_snapshot,
    guard,
    program::actor::actor,
    render::look::{Look as Printed, Unwritten},
};

/// Watch runs as they go, in the terminal
///
/// Lists the runs, or follows one: its attempts, its calls as they happen, its spend. Approvals are decided by a key. Where
/// standard output is no terminal, each change is a plain line.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast watch\n  outlast watch nightly\n  ssh -t host outlast watch\n  outlast watch nightly --plain | tee nightly.log"
)]
pub struct WatchArgs {
    /// The run: its id, its name, or the start of its id; all runs where none is named
    pub run: Option<String>,
    /// Print plain lines, on a terminal too
    #[arg(long)]
    pub plain: bool,
}

/// Interval at which the store is read again.
const LOOK: Duration = Duration::from_millis(500);

/// Screen that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Panel {
    Runs,
    Run(RunNo),
    Approvals,
}

/// State of the display: what the person has chosen and marked.
struct Position {
    place: Panel,
    /// Screen to which `Esc` leads back.
    before: Panel,
    /// Run that is marked in the list. A number of a row would slide as runs come.
    run: Option<RunNo>,
    /// Approval that is marked in the list; `None` if there is none.
    approval: Option<outlast_core::journal::approval::ApprovalId>,
    /// Outcome of the last key, in one line; `None` if there is none.
    said: Option<String>,
}

/// Runs `outlast watch` until the person leaves, or without a terminal until the run has ended. Returns the exit code.
pub fn watch(args: WatchArgs, context: Context) -> Result<u8> {
    let (context, store) = (&context, &*context.reach()?);
    strays::look_after(store, context);
    let run = args.run.as_deref().map(|asked| find::run(store, asked)).transpose()?.map(|view| view.run.no);
    if !context.is_on_terminal || args.plain || context.look.json {
        let mut wait = |_: Duration| {
            std::thread::sleep(LOOK);
            strays::look_after(store, context);
        };
        follow(store, run, context, &mut wait)?;
        return Ok(exit_code::OK);
    }
    let place = run.map_or(Panel::Runs, Panel::Run);
    let mut desk = Position { place, before: Panel::Runs, run, approval: None, said: None };
    // Restores the terminal also when this process panics.
    let mut terminal = ratatui::try_init()?;
    let done = go(store, context, &mut desk, &mut terminal);
    ratatui::restore();
    done.map(|()| exit_code::OK)
}

fn go(
    store: &dyn Store,
    context: &Context,
    desk: &mut Position,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result {
    let mut seen = Look::at(store, desk.place)?;
    let mut looked = Instant::now();
    loop {
        desk.mark(&seen);
        terminal.draw(|frame| screen::draw(frame, desk, &seen, &store.place()))?;
        let typed = event::poll(LOOK.saturating_sub(looked.elapsed()))?;
        if typed
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
            && desk.take(key, &seen, store, context)
        {
            return Ok(());
        }
        if typed || looked.elapsed() >= LOOK {
            // A supervisor that died since is told at once.
            strays::look_after(store, context);
            seen = Look::at(store, desk.place)?;
            looked = Instant::now();
        }
    }
}

impl Position {
    /// Marks the first row of a list whose marked row is no longer there.
    fn mark(&mut self, seen: &Look) {
        if !seen.runs.iter().any(|view| Some(view.run.no) == self.run) {
            self.run = seen.runs.first().map(|view| view.run.no);
        }
        if !seen.approvals.iter().any(|view| Some(view.id) == self.approval) {
            self.approval = seen.approvals.first().map(|view| view.id);
        }
    }

    /// Handles a key. Returns whether the person leaves the display.
    fn take(&mut self, key: KeyEvent, seen: &Look, store: &dyn Store, context: &Context) -> bool {
        self.said = None;
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Char('q') => return true,
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => match self.place {
                Panel::Runs => {}
                Panel::Run(_) => self.place = Panel::Runs,
                Panel::Approvals => self.place = self.before,
            },
            KeyCode::Char('p') if self.place != Panel::Approvals => {
                (self.before, self.place) = (self.place, Panel::Approvals);
            }
            KeyCode::Char('r') => self.place = Panel::Runs,
            KeyCode::Down | KeyCode::Char('j') => self.step(seen, 1),
            KeyCode::Up | KeyCode::Char('k') => self.step(seen, -1),
            KeyCode::Enter | KeyCode::Right if self.place == Panel::Runs => {
                self.place = self.run.map_or(Panel::Runs, Panel::Run);
            }
            KeyCode::Char('a') if self.place == Panel::Approvals => self.decide(true, seen, store, context),
            KeyCode::Char('d') if self.place == Panel::Approvals => self.decide(false, seen, store, context),
            _ => {}
        }
        false
    }

    fn step(&mut self, seen: &Look, by: isize) {
        fn next<T: Copy + PartialEq>(all: &[T], at: Option<T>, by: isize) -> Option<T> {
            let now = all.iter().position(|one| Some(*one) == at).unwrap_or(0);
            all.get(now.saturating_add_signed(by).min(all.len().saturating_sub(1))).copied()
        }
        match self.place {
            Panel::Approvals => {
                let all: Vec<_> = seen.approvals.iter().map(|view| view.id).collect();
                self.approval = next(&all, self.approval, by);
            }
            _ => {
                let all: Vec<_> = seen.runs.iter().map(|view| view.run.no).collect();
                self.run = next(&all, self.run, by);
            }
        }
    }

    /// Decides the marked approval, as `outlast approve` does: over the arguments that are on the screen, or not at all.
    fn decide(&mut self, approve: bool, seen: &Look, store: &dyn Store, context: &Context) {
        let Some(view) = seen.approvals.iter().find(|view| Some(view.id) == self.approval) else { return };
        let decision = DecideApproval {
            id: view.id,
            digest: Some(view.detail.digest),
            approve,
            reason: None,
            by: user(&context.around),
        };
        let may = guard::check_persons("approve", context);
        let done = may.and_then(|()| {
            Ok(store.ask(InName::of(actor(&context.around), decision), Durability::Synced).wait()?)
        });
        let word = if approve { "approved" } else { "denied" };
        self.said = Some(match done {
            Ok(_) => format!("{word} {} ({})", view.id, view.detail.tool),
            Err(e) => e.to_string(),
        });
        let all: Vec<_> = seen.approvals.iter().map(|view| view.id).collect();
        let at = all.iter().position(|id| *id == view.id).unwrap_or(0);
        self.approval = all.get(at + 1).or(all.get(at.wrapping_sub(1))).copied();
    }
}

/// Most runs in the list, most entries and attempts of a run that are read.
const RUNS: usize = 200;

const ENTRIES: i64 = 200;

/// Most entries whose gist is read, the newest ones: a screen has room for few more.
const GISTS: usize = 40;

/// Rows of the store that one screen of `outlast watch` shows.
#[derive(Default)]
pub struct Look {
    pub now: Micros,
    pub runs: Vec<RunView>,
    /// Approvals that wait for a person, over all runs, newest first.
    pub approvals: Vec<View>,
    pub run: Option<Watched>,
}

/// Run with its attempts and newest entries, as the screen shows it.
pub struct Watched {
    pub view: RunView,
    pub attempts: Vec<Attempt>,
    pub drivers: Drivers,
    /// Last text of its model.
    pub last_words: Option<String>,
    /// Spans of time in which it waited, oldest first.
    pub waits: Vec<Wait>,
    /// Plans of the logins that it made calls under.
    pub plans: Vec<Shown>,
    /// Newest entries, oldest first, without Outlast's own bookkeeping except files that were changed.
    pub entries: Vec<Entry>,
    /// Lines that say what the newest entries are about, by the entries' numbers.
    pub gists: BTreeMap<Seq, String>,
}

impl Look {
    fn at(store: &dyn Store, place: Panel) -> Result<Look> {
        Ok(Look {
            now: store.now()?,
            runs: match place {
                Panel::Runs => reads::runs::page(store, &RunSearch::default(), RUNS)?.runs,
                _ => Vec::new(),
            },
            approvals: reads::approvals::pending(store, None)?,
            run: match place {
                Panel::Run(no) => watched(store, no)?,
                _ => None,
            },
        })
    }
}

fn watched(store: &dyn Store, no: RunNo) -> Result<Option<Watched>> {
    let Some(view) = store.run(no)? else { return Ok(None) };
    let from = Seq((view.run.next_seq.0 - 1 - ENTRIES).max(0));
    let mut entries = store.entries(no, from, usize::try_from(2 * ENTRIES).unwrap_or(0))?;
    entries.retain(|e| !e.is_bookkeeping() || is_snapshot(e));
    let mut gists = BTreeMap::new();
    for entry in entries.iter_mut().rev().take(GISTS) {
        gists.extend(gist::gist(store, entry)?.map(|gist| (entry.seq, gist)));
        *entry = gist::as_told(store, entry.clone())?;
    }
    // A snapshot before which nothing was changed has no gist.
    entries.retain(|e| !e.is_bookkeeping() || gists.contains_key(&e.seq));
    let (attempts, plans) = (lives::attempts(store, &view.run)?, Shown::of_run(store, &view, store.now()?)?);
    Ok(Some(Watched {
        drivers: Drivers::read(store, &attempts, identity::of_self().ok())?,
        last_words: gist::last_words(store, &view)?,
        waits: reads::waits::list(store, no)?.iter().map(Wait::new).collect(),
        attempts,
        plans,
        entries,
        gists,
        view,
    }))
}

/// Prints one run's journal until the run has ended; without a run, prints each change of any run's status, without
/// end. `wait` is called between two looks.
fn follow(
    store: &dyn Store,
    run: Option<RunNo>,
    context: &Context,
    wait: &mut dyn FnMut(Duration),
) -> Result {
    let (look, mut out) = (context.look, io::stdout().lock());
    if let Some(view) = run.map(|no| store.run(no)).transpose()?.flatten() {
        let args = JournalArgs { run: Some(view.run.id.to_string()), follow: true, ..JournalArgs::default() };
        let page = &mut Page::new(&mut out, look);
        return journal::journal(&args, super::Desk { store, by: "", context, page, wait });
    }
    let mut known: HashMap<RunNo, String> = HashMap::new();
    loop {
        let seen = Look::at(store, Panel::Runs)?;
        // Oldest first, as a log goes on.
        for view in seen.runs.iter().rev() {
            let line = line(view, seen.now, look);
            if known.insert(view.run.no, line.clone()).as_ref() != Some(&line) {
                match look.json {
                    true => writeln!(out, "{line}"),
                    false => writeln!(out, "{}  {line}", time::moment(seen.now)),
                }
                .map_err(Unwritten)?;
            }
        }
        out.flush().map_err(Unwritten)?;
        wait(LOOK);
    }
}

fn line(view: &RunView, now: Micros, look: Printed) -> String {
    let (run, e) = (&view.run, &view.envelope);
    if look.json {
        return json!(outlast_view::Run::new(view, now)).to_string();
    }
    let of = e.limits[Unit::CostNanoUsd].map_or_else(String::new, |limit| format!(" of {}", usd(limit)));
    let own = view.run.own;
    let calls = format!("{}{}", some(own.paid_calls(), "call"), unpaid(own.unpaid_calls));
    format!("{}  {}  {}{of}, {calls}", called(view), run.status.name(), cost(view))
}
