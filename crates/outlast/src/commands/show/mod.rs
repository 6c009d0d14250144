//! `outlast show RUN`: tells the run's story on one screen: what happened, what it cost, what is next. `-v` tells all of
//! it, `--json` is for programs.

mod brief;
mod full;
mod journal;
mod money;
mod object;

use outlast_core::{
    reads::{budgets::told_with_above, called::called_now},
    words::Outage,
};
use outlast_view::Wait;

use self::journal::Journal;
use super::{evidence::Evidence, plan::Shown, prelude::*};
use crate::{
    agent::{
        self,
        servers::{self, ServerNames},
        session, truth,
    },
    files::history::last_call,
    program::resume_tax::{self, Tax},
    render::quote,
};

/// Tell a run's story on one screen: what happened, what it cost, what is next
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast show\n  outlast show nightly -v\n  outlast show run_0190 --json"
)]
pub struct ShowArgs {
    /// The run: its id, its name, or the start of its id; the last run of this directory
    pub run: Option<String>,
    /// All of it: every limit, how each attempt died, money, tools, the last entries
    #[arg(long, short)]
    pub verbose: bool,
    /// Number of last lines of output to show of each attempt that died; without -v of the last one only, and fewer where the screen ends
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub lines: usize,
}

/// Number of newest entries and of newest tool calls that are shown.
const ENTRIES: usize = 6;

/// Prints a run's story. `logs` returns the directory of a run's logs, `None` if it has none. If `args` names no run,
/// the last run of the directory `here` is shown.
pub fn show(args: &ShowArgs, Desk { store, context, page, .. }: Desk) -> Result {
    let view = find::run_or_last(store, args.run.as_deref(), context.around.directory(), Verb::Look)?;
    let directory = RunDirectory::of(&context.place, &view.run.id, &context.around);
    let logs = directory.ok().filter(|_| context.server.is_none()).map(|directory| directory.logs());
    let story = Story::gather(store, view, logs.as_deref(), (args.lines, page.place.as_str()))?;
    let look = page.look;
    match (look.json, args.verbose) {
        (true, _) => page.json(&object::ShownRun::new(&story))?,
        (false, true) => page.text(&story.full(look))?,
        (false, false) => page.text(&story.brief(look))?,
    }
    Ok(())
}

/// Everything that `outlast show` knows about a run when it describes the run.
struct Story {
    view: RunView,
    /// Word by which commands find this run, and no newer one.
    called: String,
    /// Options by which commands find the store of the run, before other words; empty if they find it without.
    place: String,
    parent: Option<RunId>,
    /// Origin of a fork: the word by which commands find it, and the last entry that the fork shares.
    origin: Option<(String, Seq)>,
    attempts: Vec<Attempt>,
    drivers: Drivers,
    /// Spans of time in which it waited, oldest first.
    waits: Vec<Wait>,
    /// Last text of its model.
    last_words: Option<String>,
    journal: Journal,
    /// Evidence for each attempt, in the order of `attempts`.
    evidence: Vec<Evidence>,
    /// Number of last log lines that are shown to people.
    lines: usize,
    /// Input that restarts paid for again although the provider's cache had held it.
    tax: Tax,
    /// Plans of the logins that the run made calls under.
    plans: Vec<Shown>,
    /// Session id of a CLI agent and the path of its transcript; `None` if the run has no session.
    session: Option<(String, Option<PathBuf>)>,
    /// MCP servers of a CLI agent.
    servers: Option<ServerNames>,
    /// Approvals that wait for a decision.
    approvals: Vec<reads::approvals::View>,
    /// Line about requests that passed Outlast by; `None` without one.
    unmetered: Option<String>,
    /// Newest tool calls, oldest first.
    tools: Vec<truth::ToolLine>,
    /// Changes of the run in its files, in words; `None` if none are kept, or nothing was changed.
    files: Option<String>,
    /// End of the newest life, of a run that is over or stands still; `None` while it goes on.
    still_since: Option<Micros>,
    now: Micros,
}

/// Tells how many changes of files a run has made, and how many of them after its last call.
fn changed_files(store: &dyn Store, view: &RunView, place: &str) -> Result<Option<String>> {
    if of_run(view).is_none() {
        return Ok(None);
    }
    let history = History::read(store, view.run.no)?;
    let (all, after) = history.changed(last_call(store, view)?);
    let after = match after {
        0 => String::new(),
        after => format!(", {after} since its last call"),
    };
    let changes = some(all as i64, "change");
    Ok((all > 0).then(|| format!("{changes} of files{after} → outlast {place}files {}", called(view))))
}

/// Reads the run's pending approvals.
fn pending(store: &dyn Store, run: &Run) -> Result<Vec<reads::approvals::View>> {
    if run.approvals.as_ref().is_none_or(|a| a.is_empty()) {
        return Ok(Vec::new());
    }
    Ok(reads::approvals::pending(store, Some(run.no))?)
}

/// Returns the word by which commands find a fork's origin, and the last entry that the fork shares; `None` for any other
/// run, and where the origin is gone.
fn origin_of(store: &dyn Store, run: &Run) -> Result<Option<(String, Seq)>, store::Error> {
    let Some(origin) = run.origins.first() else { return Ok(None) };
    let word = store.run(origin.run)?.map(|view| called_now(store, &view)).transpose()?;
    Ok(word.map(|word| (word, origin.seq)))
}

impl Story {
    fn gather(
        store: &dyn Store,
        mut view: RunView,
        logs: Option<&Path>,
        (lines, place): (usize, &str),
    ) -> Result<Story> {
        let no = view.run.no;
        let halt = view.run.halt.clone().map(|halt| told_with_above(store, halt)).transpose()?;
        view.run.halt = halt;
        let attempts = lives::attempts(store, &view.run)?;
        let drivers = Drivers::read(store, &attempts, identity::of_self().ok())?;
        let parent = view.run.parent.map(|p| store.run(p)).transpose()?.flatten();
        // Until it begins, a fork has only what its origin had.
        let has_session = view.run.origins.is_empty() || view.run.began_at.is_some();
        let session = session::find(store, no, &session::key(None, view.run.iteration))?;
        let evidence = attempts.iter().map(|a| Evidence::of(a, logs));
        let mut evidence = evidence.collect::<Result<Vec<_>, _>>()?;
        let journal = Journal::read(store, &view.run, &attempts, &mut evidence)?;
        let tools = journal.tools.iter().map(|e| truth::tool_line(store, no, e));
        Ok(Story {
            tools: tools.collect::<Result<_, _>>()?,
            files: changed_files(store, &view, place)?,
            unmetered: unheld::unmetered(store, no)?,
            tax: Tax::of(&resume_tax::of_restarts(store, &view, &journal.restarts)?),
            journal,
            evidence,
            lines,
            parent: parent.map(|p| p.run.id),
            origin: origin_of(store, &view.run)?,
            drivers,
            session: session.filter(|_| has_session).map(|s| (s.id.clone(), agent::transcript_of(&s.id))),
            servers: servers::find(store, no, None)?,
            approvals: pending(store, &view.run)?,
            plans: Shown::of_run(store, &view, store.now()?)?,
            still_since: reads::runs::still_since(store, &view.run)?,
            attempts,
            now: store.now()?,
            called: called_now(store, &view)?,
            place: place.to_owned(),
            waits: reads::waits::list(store, no)?.iter().map(Wait::new).collect(),
            last_words: gist::last_words(store, &view)?,
            view,
        })
    }

    /// Formats how many iterations are finished and what ends the loop; `None` if the run is no loop.
    fn looping(&self) -> Option<String> {
        let (looping, turns) = (self.view.spec.looping()?, self.view.run.turns.as_deref()?);
        let finished = some(turns.finished, "iteration");
        let mut parts = vec![match looping.max_iterations {
            Some(max) => format!("{finished} of at most {max} finished"),
            None => format!("{finished} finished"),
        }];
        parts.extend(looping.until.as_ref().map(|until| format!("until {}", quote::word(until))));
        parts.extend(looping.input.as_ref().map(|input| format!("each reads {}", quote::word(input))));
        if turns.unchanged > 0 {
            parts.push(format!("the last {} changed nothing", turns.unchanged));
        }
        Some(clean(&parts.join(", ")).replace('\n', "\u{fffd}"))
    }

    /// Tells what a fork shares with which run; `None` for any other run.
    fn forked(&self) -> Option<String> {
        let (origin, seq) = self.origin.as_ref()?;
        let yet = if self.view.run.began_at.is_none() { "; it has not begun" } else { "" };
        Some(format!("a fork of {origin}: it shares the first {}{yet}", some(seq.0, "entry")))
    }

    fn moment(&self, at: Micros) -> String {
        format!("{}, {} ago", time::moment(at), time::age(self.now.ms_since(at)))
    }

    /// Returns since when the run waits for its provider, as words that follow the reason; empty if it does not.
    fn waits_since(&self) -> String {
        let awaited = self.view.run.awaited_outage();
        awaited.map_or_else(String::new, |(_, since)| {
            let cause = format!(" since {}", self.moment(since.cause));
            match since.cause > since.began {
                true => format!("{cause}, out since {}", self.moment(since.began)),
                false => cause,
            }
        })
    }

    /// Returns the calls of an attempt, and how many of them failed and cost nothing.
    fn calls_of(&self, a: &Attempt) -> (i64, i64) {
        self.journal.calls.by_attempt.get(&a.no).copied().unwrap_or_default()
    }

    /// Returns the calls of an attempt that people are told: as everywhere, those that were paid.
    fn paid_calls_of(&self, a: &Attempt) -> i64 {
        let (calls, unpaid) = self.calls_of(a);
        calls - unpaid
    }

    fn how(&self, a: &Attempt) -> String {
        match (&a.exit, self.drivers.of(a)) {
            (Some(exit), _) => end_words(exit, self.drivers.loss(&self.view, &self.attempts, a)),
            (None, Some(i)) => format!("open, driven by pid {} on {}", i.identity.pid, i.identity.host),
            (None, None) => "open".into(),
        }
    }
}

/// Row of a table of attempts: one attempt, or several in a row that ended by themselves in the same outage of a provider.
/// Not empty.
pub struct Life<'a>(pub &'a [Attempt]);

impl<'a> Life<'a> {
    /// Groups a run's attempts, given oldest first, into rows.
    pub fn fold(attempts: &'a [Attempt]) -> Vec<Life<'a>> {
        attempts.chunk_by(|a, b| outage(a).is_some() && outage(a) == outage(b)).map(Life).collect()
    }

    pub fn first(&self) -> &'a Attempt {
        &self.0[0]
    }

    pub fn last(&self) -> &'a Attempt {
        &self.0[self.0.len() - 1]
    }

    /// Returns the numbers of the row's attempts, as `@3` or `@3 to @9`.
    pub fn name(&self) -> String {
        match self.0 {
            [only] => format!("@{}", only.no),
            _ => format!("@{} to @{}", self.first().no, self.last().no),
        }
    }

    /// Returns the time for which the attempts ran, in milliseconds, without the pauses between them.
    pub fn up_ms(&self, drivers: &Drivers, now: Micros) -> i64 {
        self.0.iter().map(|a| drivers.up_ms(a, now)).sum()
    }
}

fn outage(attempt: &Attempt) -> Option<&Outage> {
    attempt.exit.as_ref().filter(|exit| !exit.lost)?.outage.as_ref()
}
