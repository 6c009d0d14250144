//! Words of a digest: a title of one line, and a text that fits a message.

use outlast_view::{
    Digest, DigestCost, DigestRemoved, DigestRun, Standing,
    money::{self, Billed, Listed},
};

use crate::render::{
    amount::{beside, some, unpaid},
    look::{clean, clean_line},
    short::short_id,
    story::{asks, items, last_words, newest, out_of, waited},
    text::is_whole,
    time,
};

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
