//! Digests: what happened in a span of time, for a person who was away. `outlast digest` prints one, and `[notify] digest`
//! sends one a day.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::PathBuf,
};

use outlast_core::{
    events::Kind,
    reads::{
        approvals,
        called::called_now,
        happened,
        lives::Drivers,
        runs::still_since,
        spend::{self, Sum},
        waits::{self, For},
    },
    run::{Attempt, Identity, Status},
    store::{self, RunView, Store},
    words::{AttemptNo, Micros, RunId, RunNo},
};
use outlast_server::api::read::gist;
use outlast_view::{
    Approval, Digest, DigestCost, DigestOutage, DigestRemoved, DigestRun, Run, Standing, Time, Wait,
    end_words,
    money::{self, Billed, InDoubt, Listed, Rebought, WithChildren},
};

use crate::{
    logs,
    program::{
        checkout::{self, Commits},
        context::Context,
        error::CliError,
        resume_tax,
        run_directory::RunDirectory,
    },
    render::{
        amount::{beside, some, unpaid},
        look::{clean, clean_line},
        next::next,
        short::short_id,
        story::{asks, items, last_words, newest, out_of, waited},
        text::is_whole,
        time,
    },
};

/// Number of last lines that are told of what a run printed.
const LINES: usize = 3;

/// Function that returns the directory of a run's logs; `None` if it has none.
type Logs = Box<dyn Fn(&RunId) -> Option<PathBuf> + Send + Sync>;

/// Machine that makes a digest: what is there besides the store.
pub struct Ground {
    pub host: String,
    /// Process that tells it, by which a reboot of its machine is seen.
    pub here: Option<Identity>,
    /// Address of the page, with a slash at its end.
    pub page: Option<String>,
    pub logs: Logs,
}

impl Ground {
    pub fn of(context: &Context, page: Option<String>) -> Ground {
        let here = outlast_process::identity::of_self().ok();
        let host = here.as_ref().map(|own| own.host.clone()).unwrap_or_default();
        // What tells machines of one name apart is no word for people.
        let host = host.split('/').next().unwrap_or_default().to_owned();
        let (place, around) = (context.place.clone(), context.around.clone());
        let logs = move |id: &RunId| Some(RunDirectory::of(&place, id, &around).ok()?.logs());
        Ground { host, here, page, logs: Box::new(logs) }
    }

    /// Returns the address at which the page shows a run, or all runs; `None` if no setting says where the page is.
    pub fn link_to(&self, run: Option<&RunId>) -> Option<String> {
        let place = run.map_or_else(|| "runs".to_owned(), |id| format!("run/{id}"));
        Some(format!("{}#/{place}", self.page.as_ref()?))
    }
}

/// Facts about one run, from the events and calls of a span of time.
#[derive(Default)]
struct Facts {
    /// Attempts that died.
    died: BTreeSet<AttemptNo>,
    waits: Vec<waits::Wait>,
    sum: Sum,
    /// Charge of its children and forks, in nano-USD.
    below_nano_usd: i64,
    asks: bool,
}

impl Facts {
    fn deaths(&self) -> i64 {
        i64::try_from(self.died.len()).unwrap_or(i64::MAX)
    }
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
    for event in happened::each(store, None, happened::before(store, since)?) {
        let event = event?;
        let Some(run) = event.run.filter(|_| event.at < until) else { continue };
        let of_run = facts.entry(run).or_default();
        if event.kind == Kind::AttemptEnded && event.about["died"] == true {
            of_run.died.extend(event.about["attempt"].as_i64().map(AttemptNo));
        }
    }
    let mut sums: BTreeMap<RunNo, Vec<store::LedgerLine>> = BTreeMap::new();
    for line in store.ledger(since, until)? {
        facts.entry(line.run).or_default();
        sums.entry(line.run).or_default().push(line);
    }
    for (no, lines) in &sums {
        let charge: i64 = lines.iter().map(|line| line.spent_nano_usd).sum();
        let mut above = store.run(*no)?.and_then(|view| view.run.parent);
        while let Some(parent) = above {
            facts.entry(parent).or_default().below_nano_usd += charge;
            above = store.run(parent)?.and_then(|view| view.run.parent);
        }
    }
    let asked = approvals::pending(store, None)?;
    for view in &asked {
        facts.entry(view.id.run).or_default().asks = true;
    }
    let (mut runs, mut total, mut gone) = (Vec::new(), Sum::default(), Sum::default());
    // Of what is gone only days are known: added up with the calls of these hours, it would be in each digest of its day.
    for (line, is_listed) in spend::kept(store, since, until)? {
        gone.add(&line, is_listed);
    }
    let (mut deaths, mut rebought, mut waited) = (0, 0, Vec::new());
    for (no, mut of_run) in facts {
        // A run that was removed since is told by what is left of it: nothing.
        let Some(view) = store.run(no)? else { continue };
        for line in sums.get(&no).into_iter().flatten() {
            of_run.sum.add(line, view.spec.login.is_some());
            total.add(line, view.spec.login.is_some());
        }
        // What an imported run lived through in another store, no event of this one tells.
        let in_time = |attempt: &Attempt| attempt.ended_at.is_some_and(|at| (since..until).contains(&at));
        let died = store.attempts(no)?.into_iter().filter(|attempt| attempt.died() && in_time(attempt));
        of_run.died.extend(died.map(|attempt| attempt.no));
        deaths += of_run.deaths();
        of_run.waits = waits::list(store, no)?;
        of_run.waits.retain(|wait| wait.from < until && wait.to.is_none_or(|to| to >= since));
        waited.extend(of_run.waits.iter().map(|wait| (no, wait.clone())));
        // A run whose process died in an outage waits no longer, and the outage goes on for all that is known.
        if let (Some((outage, _)), Some((of, wait))) = (view.run.awaited_outage(), waited.last_mut())
            && *of == no
            && wait.upstream.as_ref() == Some(&outage.upstream)
        {
            wait.to = None;
        }
        let bought_again = bought_again(store, &view, &(since..until))?;
        rebought += bought_again;
        let standing = standing(&view, of_run.asks);
        // What a run began inside of its own is told with that one. A fork is somebody's second try, and a run beside it.
        let is_own = view.run.parent.is_none() || !view.run.origins.is_empty();
        if is_own || standing < Standing::GoesOn {
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
        unpaid_calls: total.unpaid_calls,
        cost: cost(&total, 0, deaths, rebought),
        removed: (gone.calls > 0).then(|| {
            let DigestCost { billed, listed, .. } = cost(&gone, 0, 0, 0);
            DigestRemoved { calls: gone.calls - gone.unpaid_calls, billed, listed }
        }),
        outages: outages(waited),
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
        let head = view.spec.command.as_ref().and_then(|command| command.head.as_deref());
        checkout::commits(directory, head, began.max(since), row.ended_at.unwrap_or(until).min(until))
    });
    let attempts = store.attempts(row.no)?;
    let drivers = Drivers::read(store, &attempts, ground.here.clone())?;
    let died = attempts.iter().filter(|attempt| facts.died.contains(&attempt.no));
    let ends = died.filter_map(|a| Some(end_words(a.exit.as_ref()?, drivers.loss(view, &attempts, a))));
    // Outages are told for all runs, and what waits for a person is told with its question.
    let waits = facts.waits.iter().filter(|wait| matches!(wait.for_what, For::Limit | For::Budget));
    let last = attempts.last().map(|attempt| attempt.no);
    let printed =
        last.zip((ground.logs)(&row.id)).and_then(|(no, logs)| logs::last_lines(&logs, no, LINES).ok());
    Ok(DigestRun {
        run: Run::new(view, until),
        standing,
        commands: if standing < Standing::GoesOn {
            next(view, &called_now(store, view)?).commands
        } else {
            Vec::new()
        },
        link: ground.link_to(Some(&row.id)),
        in_this_time: cost(&facts.sum, facts.below_nano_usd, facts.deaths(), bought_again),
        how_it_died: ends.collect(),
        waits: waits.map(Wait::new).collect(),
        still_since: still_since(store, row)?.map(Time),
        last_words: gist::last_words(store, view)?,
        last_output: printed.unwrap_or_default(),
        branch: directory.and_then(|directory| checkout::branch(&directory)).map(|branch| branch.name),
        commits,
        files,
    })
}

/// Returns what calls cost. `below`: charge of the children and forks of the run whose calls they are, in nano-USD.
fn cost(sum: &Sum, below: i64, deaths: i64, rebought: i64) -> DigestCost {
    let (spent, listed) = (sum.spent_nano_usd, sum.listed_nano_usd);
    let rebought = Rebought::new(rebought);
    let in_doubt = InDoubt::new(sum.doubt_nano_usd);
    DigestCost {
        billed: Billed::new(spent - listed),
        listed: Listed::new(listed),
        with_children: WithChildren::new((below != 0).then_some(spent + below)),
        deaths,
        rebought,
        in_doubt,
    }
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
fn bought_again(store: &dyn Store, view: &RunView, within: &Range<Micros>) -> Result<i64, store::Error> {
    match resume_tax::tax_within(store, view, within) {
        Ok(tax) => Ok(tax.cost_nano_usd),
        Err(CliError::Store(e)) => Err(e),
        // Without the run's prices nothing has a price.
        Err(_) => Ok(0),
    }
}

/// Merges what runs waited for in outages of providers: each outage lasts from the first run that waited to the last, and
/// is told with its newest cause.
fn outages(mut waits: Vec<(RunNo, waits::Wait)>) -> Vec<DigestOutage> {
    waits.sort_by_key(|(_, wait)| wait.from);
    let mut told: Vec<(DigestOutage, BTreeSet<RunNo>)> = Vec::new();
    for (run, waits::Wait { why, why_since, upstream, from, to, .. }) in waits {
        let Some(upstream) = upstream else { continue };
        let goes_on =
            |outage: &DigestOutage| outage.upstream == upstream && outage.to.is_none_or(|to| to.0 >= from);
        match told.iter_mut().find(|(outage, _)| goes_on(outage)) {
            Some((outage, runs)) => {
                runs.insert(run);
                if why_since > outage.why_since.0 {
                    (outage.why, outage.why_since) = (why, Time(why_since));
                }
                (outage.to, outage.runs) = (outage.to.zip(to).map(|(a, b)| a.max(Time(b))), runs.len());
            }
            None => {
                let (why_since, to) = (Time(why_since), to.map(Time));
                let outage = DigestOutage { upstream, why, why_since, from: Time(from), to, runs: 1 };
                told.push((outage, BTreeSet::from([run])));
            }
        }
    }
    told.into_iter().map(|(outage, _)| outage).collect()
}

#[cfg(test)]
mod tests;

// --- Words of a digest: a title of one line, and a text that fits a message.

/// Most runs, commands, commits and ends of attempts of a run that are told, the newest ones, and most characters of
/// a text.
const RUNS: usize = 15;
const ENDS: usize = 3;
const COMMANDS: usize = 2;
const COMMITS: usize = 3;
const LONGEST: usize = 3_500;

/// Most characters of a line of others' text.
const LINE: usize = 160;

/// Returns the title: the machine, and how many runs there are of each standing.
pub fn title(digest: &Digest) -> String {
    let count = |standing| digest.runs.iter().filter(|run| run.standing == standing).count();
    let parts = [
        (count(Standing::Asks), "waits for you", "wait for you"),
        (count(Standing::Stands), "stands still", "stand still"),
        (count(Standing::GoesOn), "goes on", "go on"),
        (count(Standing::Ended), "is done", "are done"),
    ];
    let told: Vec<String> = parts
        .iter()
        .filter(|(n, ..)| *n > 0)
        .map(|(n, one, many)| format!("{n} {}", if *n == 1 { one } else { many }))
        .collect();
    let told = if told.is_empty() { "no run did anything".to_owned() } else { told.join(", ") };
    format!("{}: {told}", digest.host)
}

/// Returns the text, without the title and the link.
pub fn text(digest: &Digest) -> String {
    let (since, until) = (time::moment(digest.since.0), time::moment(digest.until.0));
    let mut out = vec![format!("{since} to {until}")];
    out.push(money_words(digest));
    if digest.cost.deaths > 0 {
        let again = match digest.cost.rebought.nano() {
            0 => String::new(),
            nano => format!("; {} usd bought again by restarts", money::usd(nano)),
        };
        out.push(format!("{}{again}", some(digest.cost.deaths, "death")));
    }
    for outage in &digest.outages {
        let runs = some(i64::try_from(outage.runs).unwrap_or(i64::MAX), "run");
        let why = clean_line(&outage.why, LINE);
        out.push(format!(
            "{}; {runs} waited",
            out_of(&why, outage.why_since.0, outage.from.0, outage.to.map(|to| to.0))
        ));
    }
    for run in digest.runs.iter().take(RUNS) {
        out.push(String::new());
        out.extend(of_run(digest, run));
    }
    if digest.runs.len() > RUNS {
        out.push(format!("\n{} more: outlast digest --json", digest.runs.len() - RUNS));
    }
    let text = out.join("\n");
    match text.char_indices().nth(LONGEST).filter(|_| !is_whole()) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn money_words(digest: &Digest) -> String {
    let DigestCost { billed, listed, in_doubt, .. } = &digest.cost;
    let mut out = paid(digest.calls - digest.unpaid_calls, billed, listed);
    if in_doubt.nano() > 0 {
        out.push_str(&format!(", {} usd in doubt", money::usd(in_doubt.nano())));
    }
    out.push_str(&unpaid(digest.unpaid_calls));
    if let Some(DigestRemoved { calls, billed, listed }) = &digest.removed {
        let all = paid(*calls, billed, listed);
        out.push_str(&format!("\nremoved runs, on these days as a whole: {all}"));
    }
    out
}

fn paid(calls: i64, billed: &Billed, listed: &Listed) -> String {
    let out = format!("{}, {} usd billed", some(calls, "call"), money::usd(billed.nano()));
    match listed.nano() {
        0 => out,
        listed => format!("{out}, {} usd at list price and not billed", money::usd(listed)),
    }
}

fn of_run(digest: &Digest, told: &DigestRun) -> Vec<String> {
    let run = &told.run;
    let name = run.name.clone().or_else(|| run.job.as_ref().map(|job| job.name.clone()));
    let name = clean_line(name.as_deref().unwrap_or(short_id(run.run.as_str())), 60);
    let sign = match told.standing {
        Standing::Asks => "?",
        Standing::Stands => "■",
        Standing::GoesOn => "●",
        Standing::Ended => "✓",
    };
    // As the money, the time is that of the digest's span.
    let end = told.still_since.unwrap_or(digest.until).0;
    let took = run.began_at.map_or_else(String::new, |began| {
        format!(", {}", time::about(end.ms_since(began.0.max(digest.since.0)).max(0)))
    });
    let below = beside(Some(told.in_this_time.with_children.nano()).filter(|all| *all != 0));
    let money = match (told.in_this_time.billed.nano(), told.in_this_time.listed.nano()) {
        (0, 0) if below.is_empty() => String::new(),
        (billed, 0) => format!(", {} usd", money::usd(billed)),
        (0, listed) => format!(", list price {} usd", money::usd(listed)),
        (billed, listed) => {
            format!(", {} usd and {} usd at list price", money::usd(billed), money::usd(listed))
        }
    };
    let money = money + &below;
    let money = match told.in_this_time.in_doubt.nano() {
        0 => money,
        doubt => format!("{money}, {} usd in doubt", money::usd(doubt)),
    };
    let deaths = match told.in_this_time.deaths {
        0 => String::new(),
        died => format!(", {}: {}", some(died, "death"), clean_line(&newest_ends(&told.how_it_died), LINE)),
    };
    let mut out = vec![format!("{sign} {name}: {}{took}{money}{deaths}", run.status)];
    out.extend(run.why.iter().map(|why| format!("  {}", clean_line(why, LINE))));
    out.extend(
        newest(&told.waits)
            .iter()
            .map(|wait| format!("  {}", clean_line(&waited(wait, digest.until.0), LINE))),
    );
    if let Some(job) = &run.job {
        out.push(format!("  {}", items(job)));
    }
    let asked = digest.approvals.iter().filter(|approval| approval.run == run.run);
    out.extend(asked.map(|approval| {
        let what = clean_line(&asks(&approval.tool, &approval.arguments.to_string()), LINE);
        format!("  {what}\n  → outlast approve {}", approval.id)
    }));
    if !told.commits.is_empty() {
        let count = |n: usize, one| some(i64::try_from(n).unwrap_or(i64::MAX), one);
        let on =
            told.branch.as_ref().map_or_else(String::new, |branch| format!(" on {}", clean_line(branch, 60)));
        let (commits, files) = (count(told.commits.len(), "commit"), count(told.files.len(), "file"));
        out.push(format!("  {commits}{on}, {files}"));
        out.extend(
            told.commits.iter().take(COMMITS).map(|commit| format!("    {}", clean_line(commit, 100))),
        );
    }
    match &told.last_words {
        Some(words) => out.push(format!("  {}", last_words(&clean(words)))),
        None => out.extend(told.last_output.iter().map(|line| format!("  | {}", clean_line(line, LINE)))),
    }
    out.extend(told.commands.iter().take(COMMANDS).map(|command| format!("  → {command}")));
    out
}

/// Returns the newest ends of attempts, the oldest first; one that is told several times in a row only once.
pub(super) fn newest_ends(how_it_died: &[String]) -> String {
    let mut ends: Vec<&str> = how_it_died.iter().map(String::as_str).collect();
    ends.dedup();
    let left_out = ends.len().saturating_sub(ENDS);
    let before = if left_out > 0 { "…, " } else { "" };
    format!("{before}{}", ends[left_out..].join(", "))
}
