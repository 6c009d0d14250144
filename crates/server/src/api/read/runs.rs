//! Routes of runs: their list, a page of batch jobs, and the summary of one run.

use http::Response;
use outlast_core::{
    reads::{idle::changed_at, resume, runs, still, tightest::Above},
    run::status::Status,
    store::{self, RunView, Store},
    words::id::{Micros, RunNo},
};
use serde_json::{Value, json};

use super::{show, words};
use crate::{
    api::request::{ApiRequest, json},
    state::Error,
    wire::body::AnswerBody,
};

/// Default number of runs in a list. `MOST` is the largest.
const PAGE: usize = 100;
const MOST: usize = 1_000;

/// Answers with a page of runs, newest first, or with `jobs` of batch jobs only. The cursor of the next page is null on
/// the last one.
pub async fn list(asked: ApiRequest, jobs: bool) -> Result<Response<AnswerBody>, Error> {
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
        since: query.number("since")?.map(Micros),
        until: query.number("until")?.map(Micros),
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
            let shown = listed.runs.iter().map(|view| one(store, view, show::run(view, now), &mut above));
            Ok((shown.collect::<Result<Vec<Value>, _>>()?, listed.next))
        })
        .await?;
    let of = if jobs { "jobs" } else { "runs" };
    json(&json!({ of: found, "cursor": next.map(|no| no.to_string()) }))
}

/// Adds to a run's row what other rows tell: since when it stands still, and the limit that it is nearest to.
fn one(
    store: &dyn Store,
    view: &RunView,
    mut told: Value,
    above: &mut Above<'_>,
) -> Result<Value, store::Error> {
    told["still_since"] = json!(still::since(store, &view.run)?.map(|at| at.0));
    let tightest = above.tightest(view)?;
    told["tightest"] = tightest.map_or(Value::Null, |tightest| show::tightest(&tightest));
    Ok(told)
}

/// Answers with one run: its status, budget, settings and parent.
pub async fn summary(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    let view = asked.run().await?;
    let told = asked.read(move |store| told(store, &view)).await?;
    json(&told)
}

fn told(store: &dyn Store, view: &RunView) -> Result<Value, store::Error> {
    let now = store.now()?;
    let id = |no: RunNo| -> Result<Option<String>, store::Error> {
        Ok(store.run(no)?.map(|view| view.run.id.to_string()))
    };
    let parent = view.run.parent.map(id).transpose()?.flatten();
    let mut told = one(store, view, show::summary(view, now), &mut Above::new(store, now))?;
    told["resume"] = resume::commands(view).into();
    told["now"] = now.0.into();
    told["changed_at"] = changed_at(store, &view.run)?.0.into();
    told["parent"] = parent.into();
    Ok(told)
}
