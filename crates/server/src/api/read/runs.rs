//! Routes of runs: their list, a page of batch jobs, and the summary of one run.

use outlast_core::{
    reads::{runs, tightest::Above},
    run::status::Status,
    store::{self, RunView, Store},
    words::id::RunNo,
};
use outlast_view::{self as view, Time};
use serde::Serialize;
use serde_json::json;

use super::words;
use crate::{
    api::request::{Answered, ApiRequest, json},
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
    now: Time,
    changed_at: Time,
}

/// Answers with one run: its status, budget, settings and parent.
pub async fn summary(asked: ApiRequest) -> Answered {
    let view = asked.run().await?;
    let summary = asked.read(move |store| {
        let now = store.now()?;
        let parent = view.run.parent.map(|no| store.run(no)).transpose()?.flatten();
        Ok(Summary {
            run: view::RunDetail::new(&view, parent.map(|parent| parent.run.id), now),
            standing: Standing::read(store, &view, &mut Above::new(store, now))?,
            resume: runs::resume_commands(&view, view.run.id.as_str()),
            now: Time(now),
            changed_at: Time(runs::changed_at(store, &view.run)?),
        })
    });
    json(&summary.await?)
}
