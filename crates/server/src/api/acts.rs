//! Acts of a person on a run: stop it, wake it, change its limits, retry its items, fork it. Acts on named budgets have a
//! file of their own; cancelling and deciding have routes of their own, which RiskKernel's clients know.

use std::collections::BTreeMap;

use outlast_core::{
    engine::{InName, Raise, Verb},
    envelope::{Limits, PerUnit, Unit, budget::Name},
    reads::{
        entries::{self, Again},
        forks::{Point, id_of, prepare},
    },
    store::{Ask as _, Durability, RunView, Store},
    words::{AttemptNo, RunId, RunNo, Seq},
};
use outlast_view::{Fork, Time};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::request::{self, Answered, ApiRequest};
use crate::state::Error;

/// Act on `T`, as the request's body describes it, in the name of who acts. Answers with what became of it.
pub(super) trait Act<T, B>:
    FnOnce(&dyn Store, &str, &T, B) -> Result<Value, Error> + Send + 'static
{
}

impl<T, B, F: FnOnce(&dyn Store, &str, &T, B) -> Result<Value, Error> + Send + 'static> Act<T, B> for F {}

/// Carries out an act on the run that the path names.
pub(super) async fn on_run<B: DeserializeOwned + Send + 'static>(
    asked: ApiRequest,
    act: impl Act<RunView, B>,
) -> Answered {
    let view = asked.run().await?;
    carry_out(asked, view, act).await
}

/// Carries out an act on the named budget that the path names.
pub(super) async fn on_budget<B: DeserializeOwned + Send + 'static>(
    asked: ApiRequest,
    act: impl Act<Name, B>,
) -> Answered {
    let name = Name::new(asked.name()).map_err(|e| Error::BadRequest(e.to_string()))?;
    carry_out(asked, name, act).await
}

async fn carry_out<T: Send + 'static, B: DeserializeOwned + Send + 'static>(
    asked: ApiRequest,
    on: T,
    act: impl Act<T, B>,
) -> Answered {
    let (by, body) = (asked.actor(), asked.json()?);
    let told = asked.read(move |store| Ok(act(store, &by, &on, body))).await??;
    // Calls that wait for room ask again.
    asked.host.wake();
    request::json(&told)
}

/// Body of an act that needs no words.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// Returns the act that gives a run the order `verb`, which needs no words. Answers with the run's status.
pub(super) fn order<V: Verb + 'static>(verb: fn(RunNo) -> V) -> impl Act<RunView, Nothing> {
    move |store: &dyn Store, by: &str, view: &RunView, _: Nothing| {
        store.ask(InName::of(by, verb(view.run.no)), Durability::Synced).wait()?;
        status(store, view)
    }
}

fn status(store: &dyn Store, view: &RunView) -> Result<Value, Error> {
    let after = store.run(view.run.no)?.unwrap_or_else(|| view.clone());
    Ok(json!({
        "run": after.run.id.as_str(),
        "status": after.run.status.name(),
        "status_before": view.run.status.name(),
        "stop_requested": after.run.stop_requested,
    }))
}

/// Changes of limits, by unit: `cost_nano_usd`, `tokens`, `calls`, `loops`, `wall_ms`, `active_ms`,
/// `restarts`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub(super) struct Change {
    add: BTreeMap<String, i64>,
    set: BTreeMap<String, i64>,
    lift: Vec<String>,
}

/// Changes limits of a run.
pub(super) fn budget(store: &dyn Store, by: &str, view: &RunView, change: Change) -> Result<Value, Error> {
    let (add, set) = (limits(&change.add)?, limits(&change.set)?);
    let mut lift = PerUnit::<bool>::default();
    for name in &change.lift {
        lift[unit(name)?] = true;
    }
    let ways = |u: Unit| usize::from(add[u].is_some()) + usize::from(set[u].is_some()) + usize::from(lift[u]);
    if let Some(twice) = Unit::ALL.into_iter().find(|u| ways(*u) > 1) {
        return Err(Error::BadRequest(format!("{} would change in two ways", twice.name())));
    }
    if Unit::ALL.into_iter().all(|u| ways(u) == 0) {
        return Err(Error::BadRequest("no limit is named: give add, set or lift".into()));
    }
    let raise = Raise { run: view.run.no, add, set, lift };
    store.ask(InName::of(by, raise), Durability::Synced).wait()?;
    status(store, view)
}

/// Reads amounts by their units. Errors: `bad_request` for an unknown unit or an amount below zero.
pub(super) fn limits(amounts: &BTreeMap<String, i64>) -> Result<Limits, Error> {
    let mut limits = Limits::default();
    for (name, amount) in amounts {
        limits[unit(name)?] = Some(from_zero(name, *amount)?);
    }
    Ok(limits)
}

fn unit(name: &str) -> Result<Unit, Error> {
    Unit::parse(name).ok_or_else(|| {
        let known = Unit::ALL.map(Unit::name).join(", ");
        let had: String = name.chars().take(80).collect();
        Error::BadRequest(format!("{had:?} is no unit (wanted one of {known})"))
    })
}

fn from_zero(name: &str, amount: i64) -> Result<i64, Error> {
    if amount < 0 {
        return Err(Error::BadRequest(format!("{name} is {amount}, and a number from 0 is wanted")));
    }
    Ok(amount)
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Retry {
    keys: Vec<String>,
    /// Whether every failed item is retried, besides `keys`.
    failed: bool,
    reuse_answers: bool,
}

/// Makes items of a job pending again.
pub(super) fn retry(store: &dyn Store, by: &str, view: &RunView, wanted: Retry) -> Result<Value, Error> {
    if wanted.keys.is_empty() && !wanted.failed {
        return Err(Error::BadRequest("no items are named: give keys, or failed".into()));
    }
    let again = Again { keys: wanted.keys, failed: wanted.failed, reuse_answers: wanted.reuse_answers };
    let keys = entries::reset(store, by, view.run.no, &again)?;
    Ok(json!({ "run": view.run.id.as_str(), "reset": keys, "reuse_answers": wanted.reuse_answers }))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ForkAt {
    /// Last entry that the fork shares with its origin; `None` if the point is named otherwise.
    seq: Option<i64>,
    /// Time at which the state is copied into the fork. Only with `seq`; `None`: now.
    at: Option<Time>,
    /// Number of the attempt after which the fork begins: the fork shares its origin up to the end of that attempt.
    attempt: Option<i64>,
    id: Option<String>,
    limit_nano_usd: Option<i64>,
}

/// Forks a run at one of its entries, or after one of its attempts.
pub(super) fn fork(store: &dyn Store, by: &str, view: &RunView, wanted: ForkAt) -> Result<Value, Error> {
    let last = view.run.next_seq.0 - 1;
    let point = match (wanted.seq, wanted.at, wanted.attempt) {
        (Some(seq), None, None) if (0..=last).contains(&seq) => Point::Seq(Seq(seq)),
        (Some(seq), Some(at), None) if (0..=last).contains(&seq) => Point::Found(Seq(seq), at.0),
        (Some(seq), _, None) => {
            return Err(Error::BadRequest(format!("seq is {seq}, and an entry from 0 to {last} is wanted")));
        }
        (None, None, Some(attempt)) => Point::Attempt(AttemptNo(attempt)),
        _ => return Err(Error::BadRequest("one of seq and attempt is wanted".into())),
    };
    let id = match &wanted.id {
        Some(id) => RunId::new(id).map_err(|e| Error::BadRequest(e.to_string()))?,
        None => id_of(&view.run.id, &point)
            .ok_or_else(|| Error::BadRequest("the fork's id would be too long: give an id".into()))?,
    };
    let mut limits = Limits::default();
    if let Some(limit) = wanted.limit_nano_usd {
        limits[Unit::CostNanoUsd] = Some(from_zero("limit_nano_usd", limit)?);
    }
    let fork = prepare(store, view.run.no, &point, id.clone(), limits)?;
    let origin = fork.origin;
    let started = store.ask(InName::of(by, fork), Durability::Synced).wait()?;
    Ok(json!(Fork::new(id, &view.run.id, origin, started.created)))
}
