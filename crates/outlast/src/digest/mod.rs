//! Digests: what happened in a span of time, for a person who was away. `outlast digest` prints one, and `[notify] digest`
//! sends one a day.

mod words;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use outlast_core::{
    events::{Event, Kind},
    journal::{self, approval::MOST_PENDING},
    reads::{
        approvals::{self, View},
        entries, happened,
        spend::Sum,
    },
    run::Status,
    store::{self, ApprovalFilter, RunView, Store},
    words::{Micros, RunId, RunNo},
};
use outlast_server::api::read::{exchange, gist};
use outlast_view::{
    Approval, Digest, DigestCost, DigestOutage, DigestRun, Run, Standing, Time,
    money::{Billed, Listed, Rebought},
};

pub use self::words::{text, title};
use crate::{
    logs::read,
    program::resume_tax::{self, Tax},
    program::{
        checkout::{self, Commits},
        context::Context,
        error::CliError,
        run_directory::RunDirectory,
    },
    render::{next::next, short::called},
};

/// Most calls of a run, the newest ones, among which its last words are looked for.
const CALLS: usize = 50;

/// Number of last lines that are told of what a run printed.
const LINES: usize = 3;

/// Function that returns the directory of a run's logs; `None` if it has none.
type Logs = Box<dyn Fn(&RunId) -> Option<PathBuf> + Send + Sync>;

/// Machine that makes a digest: what is there besides the store.
pub struct Ground {
    pub host: String,
    /// Address of the page, with a slash at its end.
    pub page: Option<String>,
    pub logs: Logs,
}

impl Ground {
    pub fn of(context: &Context, page: Option<String>) -> Ground {
        let host = outlast_process::identity::of_self().map(|own| own.host).unwrap_or_default();
        // What tells machines of one name apart is no word for people.
        let host = host.split('/').next().unwrap_or_default().to_owned();
        let (place, around) = (context.place.clone(), context.around.clone());
        let logs = move |id: &RunId| Some(RunDirectory::of(&place, id, &around).ok()?.logs());
        Ground { host, page, logs: Box::new(logs) }
    }

    /// Returns the address at which the page shows a run, or all runs; `None` if no setting says where the page is.
    pub fn link_to(&self, run: Option<&RunId>) -> Option<String> {
        let place = run.map_or_else(|| "runs".to_owned(), |id| format!("run/{id}"));
        Some(format!("{}#/{place}", self.page.as_ref()?))
    }
}

/// What the events and calls of a span of time tell of one run.
#[derive(Default)]
struct Facts {
    deaths: i64,
    sum: Sum,
    asks: bool,
}

/// Gathers what happened from `since` to `until`. A run that did nothing in this time is left out, unless it asks a person
/// for something.
///
/// Errors: those of the store. What its machine does not have, such as logs that were removed, is left out.
pub fn gather(
    store: &dyn Store,
    ground: &Ground,
    since: Micros,
    until: Micros,
) -> Result<Digest, store::Error> {
    let mut facts: BTreeMap<RunNo, Facts> = BTreeMap::new();
    let mut outages = Outages::default();
    for event in happened::each(store, None, happened::before(store, since)?) {
        let event = event?;
        let Some(run) = event.run.filter(|_| event.at < until) else { continue };
        let died = event.kind == Kind::AttemptEnded && event.about["died"] == true;
        facts.entry(run).or_default().deaths += i64::from(died);
        outages.add(run, &event);
    }
    let mut sums: BTreeMap<RunNo, Vec<store::LedgerLine>> = BTreeMap::new();
    for line in store.ledger(since, until)? {
        facts.entry(line.run).or_default();
        sums.entry(line.run).or_default().push(line);
    }
    let pending = ApprovalFilter { run: None, open: true, limit: MOST_PENDING };
    let asked: Vec<View> = approvals::list(store, &pending, Some(journal::approval::Status::Pending))?;
    for view in &asked {
        facts.entry(view.id.run).or_default().asks = true;
    }
    let (mut runs, mut total) = (Vec::new(), Sum::default());
    let (mut deaths, mut rebought) = (0, 0);
    for (no, mut of_run) in facts {
        // A run that was removed since is told by what is left of it: nothing.
        let Some(view) = store.run(no)? else { continue };
        for line in sums.get(&no).into_iter().flatten() {
            of_run.sum.add(line, view.spec.login.is_some());
            total.add(line, view.spec.login.is_some());
        }
        deaths += of_run.deaths;
        let bought_again = bought_again(store, &view, since, until)?;
        rebought += bought_again;
        let standing = standing(&view, of_run.asks);
        // What a run began inside of its own is told with that one.
        if view.run.parent.is_none() || standing < Standing::GoesOn {
            runs.push(run(store, ground, &view, (standing, &of_run, bought_again), (since, until))?);
        }
    }
    runs.sort_by_key(|run| (run.standing, run.run.created_at));
    Ok(Digest {
        since: Time(since),
        until: Time(until),
        host: ground.host.clone(),
        link: ground.link_to(None),
        calls: total.calls,
        cost: cost(&total, deaths, rebought),
        outages: outages.told,
        approvals: asked.iter().map(Approval::new).collect(),
        runs,
    })
}

fn run(
    store: &dyn Store,
    ground: &Ground,
    view: &RunView,
    (standing, facts, bought_again): (Standing, &Facts, i64),
    (since, until): (Micros, Micros),
) -> Result<DigestRun, store::Error> {
    let row = &view.run;
    let directory = view.spec.command.as_ref().map(|command| PathBuf::from(&command.directory));
    let Commits { commits, files } = directory.as_ref().map_or_else(Commits::default, |directory| {
        let began = row.began_at.unwrap_or(row.created_at);
        checkout::commits(directory, began.max(since), row.ended_at.unwrap_or(until).min(until))
    });
    let last = store.attempts(row.no)?.last().map(|attempt| attempt.no);
    let printed =
        last.zip((ground.logs)(&row.id)).and_then(|(no, logs)| read::last_lines(&logs, no, LINES).ok());
    Ok(DigestRun {
        run: Run::new(view, until),
        standing,
        commands: if standing < Standing::GoesOn { next(view, &called(view)).commands } else { Vec::new() },
        link: ground.link_to(Some(&row.id)),
        in_this_time: cost(&facts.sum, facts.deaths, bought_again),
        last_words: if row.job.is_some() { None } else { last_words(store, view)? },
        last_output: printed.unwrap_or_default(),
        branch: directory.and_then(|directory| checkout::branch(&directory)).map(|branch| branch.name),
        commits,
        files,
    })
}

fn cost(sum: &Sum, deaths: i64, rebought: i64) -> DigestCost {
    let (spent, listed) = (sum.spent_nano_usd, sum.listed_nano_usd);
    let rebought = Rebought::new(rebought);
    DigestCost { billed: Billed::new(spent - listed), listed: Listed::new(listed), deaths, rebought }
}

fn standing(view: &RunView, asks: bool) -> Standing {
    let needs_a_person =
        |view: &RunView| view.run.awaited_outage().is_some_and(|(outage, _)| outage.cause.needs_a_person());
    match view.run.status {
        _ if asks => Standing::Asks,
        Status::Interrupted | Status::Halted | Status::Failed => Standing::Stands,
        Status::Waiting if needs_a_person(view) => Standing::Asks,
        Status::Running | Status::Waiting | Status::Sleeping => Standing::GoesOn,
        Status::Completed | Status::Cancelled => Standing::Ended,
    }
}

/// Returns the price of what the attempts that began in a span of time bought again, in nano-USD.
fn bought_again(
    store: &dyn Store,
    view: &RunView,
    since: Micros,
    until: Micros,
) -> Result<i64, store::Error> {
    let attempts = store.attempts(view.run.no)?;
    let mut all = match resume_tax::resumptions(store, view, &attempts) {
        Ok(all) => all,
        Err(CliError::Store(e)) => return Err(e),
        // Without the run's prices nothing has a price.
        Err(_) => return Ok(0),
    };
    let began = |no| attempts.iter().find(|attempt| attempt.no == no).map(|attempt| attempt.started_at);
    all.retain(|one| began(one.attempt).is_some_and(|at| (since..until).contains(&at)));
    Ok(Tax::of(&all).cost_nano_usd)
}

/// Returns the last text that the run's model said, among its newest calls; `None` if it said none, or it is not kept.
fn last_words(store: &dyn Store, view: &RunView) -> Result<Option<String>, store::Error> {
    let newest = entries::each_back(store, view.run.no, view.run.next_seq);
    let is_answer = |e: &journal::Entry| e.kind == journal::Kind::Call && e.state == journal::State::Done;
    for entry in newest.filter(|e| e.as_ref().map_or(true, is_answer)).take(CALLS) {
        if let Some(words) = gist::words(&exchange::answered(store, &entry?)?) {
            return Ok(Some(words));
        }
    }
    Ok(None)
}

/// Outages of providers, each from the first run that waited to the last.
#[derive(Default)]
struct Outages {
    told: Vec<DigestOutage>,
    waiting: BTreeMap<String, BTreeSet<RunNo>>,
}

impl Outages {
    fn add(&mut self, run: RunNo, event: &Event) {
        let Some(upstream) = event.about["upstream"].as_str() else { return };
        let current =
            self.told.iter_mut().rev().find(|outage| outage.upstream == upstream && outage.to.is_none());
        let waiting = self.waiting.entry(upstream.to_owned()).or_default();
        match (event.kind, current) {
            (Kind::OutageBegan, Some(current)) => current.runs += usize::from(waiting.insert(run)),
            (Kind::OutageBegan, None) => {
                waiting.insert(run);
                self.told.push(DigestOutage {
                    upstream: upstream.to_owned(),
                    why: event.about["message"].as_str().unwrap_or_default().to_owned(),
                    from: Time(event.at),
                    to: None,
                    runs: 1,
                });
            }
            (Kind::OutageEnded, Some(current)) => {
                waiting.remove(&run);
                current.to = waiting.is_empty().then_some(Time(event.at));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
