//! Routes of runs: their list, a page of batch jobs, the summary of one run, its attempts, iterations, items and resume tax.

use std::collections::BTreeMap;

use outlast_core::{
    journal::{self, ItemRow, Payload},
    price::PriceTable,
    reads::{
        called::called_now,
        entries,
        lives::{self, Drivers},
        plans, runs,
        tightest::Above,
        waits,
    },
    run::{Attempt, Status},
    store::{self, Page, RunView, Store},
    words::{RunNo, Seq},
};
use outlast_view::{self as view, Time};
use serde::Serialize;
use serde_json::{Value, json};

use super::{exchange, gist, words};
use crate::{
    api::request::{Answered, ApiRequest, json},
    proxy::resume_tax,
    state::Error,
};

/// Default number of runs in a list. `MOST` is the largest.
const PAGE: usize = 100;
const MOST: usize = 1_000;

/// Answers with a page of runs, newest first, or with `jobs` of batch jobs only. The cursor of the next page is null on
/// the last one.
pub async fn list(asked: ApiRequest, jobs: bool) -> Answered {
    let query = &asked.query;
    let limit = query.limit(PAGE, MOST)?;
    let bad = || Error::BadRequest("the cursor is none that was given here".into());
    let before = query.text("cursor").map(|text| text.parse().map(RunNo).map_err(|_| bad())).transpose()?;
    let tag = query.text("tag").map(|text| match text.split_once('=') {
        Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
        None => (text.to_owned(), None),
    });
    let wanted = runs::RunSearch {
        statuses: words(query, "status", &Status::ALL, Status::name)?,
        name: query.text("name").map(str::to_owned),
        tag,
        directory: query.text("directory").map(str::to_owned),
        since: query.time("since")?,
        until: query.time("until")?,
        jobs,
        before,
    };
    let only = asked.caller.only_run();
    let (found, next) = asked
        .read(move |store| {
            let now = store.now()?;
            let listed = match only {
                None => runs::page(store, &wanted, limit)?,
                Some(own) => runs::Listed { runs: store.run(own)?.into_iter().collect(), next: None },
            };
            let mut above = Above::new(store, now);
            let shown = listed.runs.iter().map(|view| {
                let standing = Standing::read(store, view, &mut above)?;
                Ok(ListedRun { run: view::Run::new(view, now), standing })
            });
            Ok((shown.collect::<Result<Vec<ListedRun>, store::Error>>()?, listed.next))
        })
        .await?;
    let of = if jobs { "jobs" } else { "runs" };
    json(&json!({ of: found, "cursor": next.map(|no| no.to_string()) }))
}

/// Run as a row of a list, with what other rows tell of it.
#[derive(Serialize)]
struct ListedRun {
    #[serde(flatten)]
    run: view::Run,
    #[serde(flatten)]
    standing: Standing,
}

/// Facts of a run from other rows than its own: since when it stands still, and the limit that it is nearest to.
#[derive(Serialize)]
struct Standing {
    still_since: Option<Time>,
    tightest: Option<view::Tightest>,
}

impl Standing {
    fn read(store: &dyn Store, view: &RunView, above: &mut Above<'_>) -> Result<Standing, store::Error> {
        Ok(Standing {
            still_since: runs::still_since(store, &view.run)?.map(Time),
            tightest: above.tightest(view)?.map(|tightest| view::Tightest::new(&tightest)),
        })
    }
}

/// One run as the page shows it.
#[derive(Serialize)]
struct Summary {
    #[serde(flatten)]
    run: view::RunDetail,
    #[serde(flatten)]
    standing: Standing,
    /// Commands that go on with it.
    resume: Vec<String>,
    /// Plans of the logins under which it made calls, with the ceilings that it is under.
    plans: Vec<view::Plan>,
    /// Last text of its model.
    last_words: Option<String>,
    now: Time,
    changed_at: Time,
}

/// Answers with one run: its status, budget, settings and parent.
pub async fn summary(asked: ApiRequest) -> Answered {
    let view = asked.run().await?;
    let summary = asked.read(move |store| {
        let now = store.now()?;
        let parent = view.run.parent.map(|no| store.run(no)).transpose()?.flatten();
        let word = called_now(store, &view)?;
        let (ceilings, plans) = plans::of_run(store, &view)?;
        Ok(Summary {
            plans: plans.iter().map(|(login, plan)| view::Plan::new(login, plan, &ceilings, now)).collect(),
            run: view::RunDetail::new(&view, parent.map(|parent| parent.run.id), &word, now),
            standing: Standing::read(store, &view, &mut Above::new(store, now))?,
            resume: runs::resume_commands(&view, &word),
            last_words: gist::last_words(store, &view)?,
            now: Time(now),
            changed_at: Time(runs::changed_at(store, &view.run)?),
        })
    });
    json(&summary.await?)
}

/// Largest number of last lines of an attempt, and of newest attempts that have them.
const LINES: i64 = 100;
const PRINTED: usize = 20;

/// Attempt with what it printed last, where this process can read that.
#[derive(Serialize)]
struct PrintedAttempt {
    #[serde(flatten)]
    attempt: view::Attempt,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    last_lines: Vec<String>,
}

/// Answers with all attempts of a run, oldest first, and with the spans of time in which it waited; with `died=true` only
/// with attempts that died. `lines`: number of last lines that are told of each of the newest attempts.
pub async fn attempts(asked: ApiRequest) -> Answered {
    let died = asked.query.flag("died")?;
    let lines = asked.query.number("lines")?.unwrap_or(0).clamp(0, LINES) as usize;
    let files = asked.host.config.files.clone().filter(|_| lines > 0);
    let run = asked.run().await?;
    let (id, here) = (run.run.id.clone(), asked.host.node.identity().clone());
    let read = asked.read(move |store| {
        let all = lives::attempts(store, &run.run)?;
        let drivers = Drivers::read(store, &all, Some(here))?;
        let now = store.now()?;
        let listed: Vec<&Attempt> = all.iter().filter(|a| a.died() || !died).collect();
        let without = listed.len().saturating_sub(PRINTED);
        let attempts = listed.iter().enumerate().map(|(nth, a)| {
            let files = files.as_ref().filter(|_| nth >= without);
            let printed = files.map_or(Ok(Vec::new()), |files| files.last_lines(&run.run.id, a.no, lines));
            let failed =
                |e| store::Error::Io { why: format!("the log of attempt {} is not read: {e}", a.no) };
            let attempt = view::Attempt::new(a, drivers.loss(&run, &all, a), drivers.up_ms(a, now));
            Ok(PrintedAttempt { attempt, last_lines: printed.map_err(failed)? })
        });
        Ok((attempts.collect::<Result<Vec<_>, store::Error>>()?, waits::list(store, run.run.no)?))
    });
    let (attempts, waits) = read.await?;
    let waits: Vec<view::Wait> = waits.iter().map(view::Wait::new).collect();
    json(&json!({ "run": id, "attempts": attempts, "waits": waits }))
}

/// Answers with the iterations of a run, oldest first, each with its attempts.
pub async fn iterations(asked: ApiRequest) -> Answered {
    let run = asked.run().await?.run;
    let attempts = asked.read(move |store| store.attempts(run.no)).await?;
    let mut turns: BTreeMap<i64, Vec<&Attempt>> = BTreeMap::new();
    attempts.iter().for_each(|a| turns.entry(a.iteration).or_default().push(a));
    let turn = |(iteration, of): (&i64, &Vec<&Attempt>)| {
        let ended = of.iter().map(|a| a.ended_at).collect::<Option<Vec<_>>>();
        json!({
            "iteration": iteration,
            "began_at": of.iter().map(|a| a.started_at).min().map(view::Time),
            "ended_at": ended.and_then(|all| all.into_iter().max()).map(view::Time),
            "attempts": of.iter().map(|a| a.no).collect::<Vec<_>>(),
            "deaths": of.iter().filter(|a| a.died()).count(),
        })
    };
    json(&json!({ "run": run.id, "iterations": turns.iter().map(turn).collect::<Vec<_>>() }))
}

/// Default number of items in a page.
const ITEMS: usize = 200;

/// Item with its recorded value, if that was asked for.
#[derive(Serialize)]
struct ItemWithValue {
    #[serde(flatten)]
    item: view::Item,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
}

/// Answers with the newest entry of each item, in order. `standing` filters each page; pages are cut before that, so a
/// page can be short.
pub async fn items(asked: ApiRequest) -> Answered {
    let standings = words(&asked.query, "standing", &journal::Standing::ALL, journal::Standing::name)?;
    let after = Seq(asked.query.number("after")?.unwrap_or(0));
    let (limit, values) = (asked.query.limit(ITEMS, MOST)?, asked.query.flag("values")?);
    let run = asked.run().await?.run;
    let page = Page { values, ..Page::new(after, limit + 1) };
    let mut found = asked.read(move |store| store.items(run.no, &page)).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let cursor = found.last().filter(|_| more).map(|(row, _)| row.seq);
    let one = |(row, value): &(_, Option<Payload>)| {
        let value = value.as_ref().and_then(|payload| payload.decode().ok());
        ItemWithValue { item: view::Item::new(row), value: value.map(|bytes| exchange::value(&bytes)) }
    };
    let wanted = |row: &&(ItemRow, _)| standings.is_empty() || standings.contains(&row.0.detail.standing);
    let items: Vec<ItemWithValue> = found.iter().filter(wanted).map(one).collect();
    json(&json!({ "run": run.id, "items": items, "after": cursor }))
}

/// Returns the prices that a run began with; the built-in ones if none are kept, or those are not understood.
fn prices(view: &RunView) -> PriceTable {
    let file = view.spec.prices.as_ref().and_then(|kept| kept.file.as_ref());
    file.and_then(|file| PriceTable::with_overrides(&file.text).ok()).unwrap_or_else(PriceTable::builtin)
}

/// Answers with what each restart of a run bought again, and the total.
pub async fn resume_tax(asked: ApiRequest) -> Answered {
    let view = asked.run().await?;
    let id = view.run.id.clone();
    let found = asked
        .read(move |store| {
            let no = view.run.no;
            resume_tax::find(store, no, &prices(&view), &store.attempts(no)?, entries::each(store, no))
        })
        .await?;
    json(&json!({ "run": id, "total": resume_tax::Tax::of(&found), "resumptions": found }))
}
