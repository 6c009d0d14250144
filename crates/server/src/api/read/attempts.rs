//! Routes of a run's attempts, its deaths among them, and of its iterations.

use std::collections::BTreeMap;

use outlast_core::{reads::waits, run::attempt::Attempt};
use outlast_view as view;
use serde_json::json;

use crate::api::request::{Answered, ApiRequest, json};

/// Answers with all attempts of a run, oldest first, and with the spans of time in which it waited; with `died=true` only
/// with attempts that died.
pub async fn list(asked: ApiRequest) -> Answered {
    let died = asked.query.flag("died")?;
    let run = asked.run().await?.run;
    let (found, waits) =
        asked.read(move |store| Ok((store.attempts(run.no)?, waits::list(store, run.no)?))).await?;
    let found: Vec<view::Attempt> =
        found.iter().filter(|a| a.died() || !died).map(view::Attempt::new).collect();
    let waits: Vec<view::Wait> = waits.iter().map(view::Wait::new).collect();
    json(&json!({ "run": run.id, "attempts": found, "waits": waits }))
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
