//! Routes by which a person acts on a run: `POST /v1/runs/{id}/stop`, `wake`, `budget`, `retry` and `fork`; and on a named
//! budget: see `named_budgets`.
//!
//! For callers with the API token or a page's session. Without either, any process of the machine could raise its own
//! limit. Cancelling and deciding have routes of their own, which RiskKernel's clients know.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use http::{Response, request::Parts};
use outlast_core::{
    engine::{
        self,
        act::InName,
        item::reset_item::ResetItem,
        run::{
            raise::Raise,
            tell::{Tell, Word},
        },
    },
    envelope::unit::{Limits, PerUnit, Unit},
    journal::job::Standing,
    reads::forks::{Point, id_of, prepare},
    store::{self, Ask as _, Durability, Page, RunView, Store},
    words::id::{AttemptNo, Micros, RunId, Seq},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    named_budgets, query, segments,
    state::{answered, refused},
};
use crate::{
    proxy::host::Host,
    state::Error,
    wire::{body::AnswerBody, refuse::Refusal, who},
};

/// Act of a person on a run, such as stopping it, or on a named budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Stop,
    Wake,
    Budget,
    Retry,
    Fork,
    SetBudget,
    RaiseBudget,
    RemoveBudget,
}

/// Routes of the acts, all of them POST. A test compares `docs/reference/openapi.json` with them.
pub const ACTS: [(&str, Act); 8] = [
    ("/v1/runs/{id}/stop", Act::Stop),
    ("/v1/runs/{id}/wake", Act::Wake),
    ("/v1/runs/{id}/budget", Act::Budget),
    ("/v1/runs/{id}/retry", Act::Retry),
    ("/v1/runs/{id}/fork", Act::Fork),
    ("/v1/budgets/{name}/set", Act::SetBudget),
    ("/v1/budgets/{name}/raise", Act::RaiseBudget),
    ("/v1/budgets/{name}/remove", Act::RemoveBudget),
];

/// Number of items that are read at once.
const PAGE: usize = 1000;

/// Finds the act of a request, and the run's id or the budget's name, not decoded; `None` for any other request.
pub fn route(parts: &Parts) -> Option<(Act, String)> {
    if parts.method != http::Method::POST {
        return None;
    }
    ACTS.iter().find_map(|(route, act)| {
        let open = segments::open(route, parts.uri.path())?;
        Some((*act, open.first().filter(|id| !id.is_empty())?.to_string()))
    })
}

/// Caller who may act, with the name under which the acts are recorded.
pub struct LetIn(String);

/// Checks whether the caller may act as a person, before the body is read. The inner error is answered in the shape of
/// these routes: that of `who::api`, `NoRunDecides` for a run token, `only_the_command_decides` without a credential.
/// The outer error is a refusal of the proxy.
pub fn let_in(host: &Host, parts: &Parts) -> Result<Result<LetIn, Error>, Refusal> {
    if host.is_draining() {
        return Err(Refusal::Draining);
    }
    if who::bears_token(&parts.uri, &parts.headers)? {
        return Ok(Err(Error::NoRunDecides));
    }
    Ok(match who::api(&host.config.access, &parts.headers) {
        Ok(shown) if shown.is_a_persons() => Ok(LetIn(who::actor(&host.config.access, &parts.headers))),
        Ok(_) => Err(Error::OnlyTheCommandDecides),
        Err(e) => Err(e.into()),
    })
}

/// Carries the act out on the run or budget `of`, and answers with what became of it.
pub async fn answer(
    host: &Arc<Host>,
    let_in: Result<LetIn, Error>,
    act: Act,
    of: String,
    body: &Bytes,
) -> Response<AnswerBody> {
    let body = body.clone();
    let acting = host.clone();
    // On a blocking thread: the reads of a store block.
    let told = match let_in {
        Ok(LetIn(by)) => {
            tokio::task::spawn_blocking(move || carry_out(&*acting.store, by, act, &of, &body)).await
        }
        Err(e) => return refused(&e),
    };
    let told = told.unwrap_or_else(|_| Err(store::Error::Closed.into()));
    if told.is_ok() {
        // Calls that wait for room ask again.
        host.wake();
    }
    told.and_then(|body| answered(&body)).unwrap_or_else(|e| refused(&e))
}

fn carry_out(store: &dyn Store, by: String, act: Act, of: &str, body: &Bytes) -> Result<Value, Error> {
    let of = query::decode(of)?;
    let run = || find(store, &of);
    match act {
        Act::Stop => tell(store, by, &run()?, Word::Stop, body),
        Act::Wake => tell(store, by, &run()?, Word::Wake, body),
        Act::Budget => budget(store, by, &run()?, read(body)?),
        Act::Retry => retry(store, &by, &run()?, read(body)?),
        Act::Fork => fork(store, by, &run()?, read(body)?),
        Act::SetBudget => named_budgets::set(store, by, &of, read(body)?),
        Act::RaiseBudget => named_budgets::raise(store, by, &of, read(body)?),
        Act::RemoveBudget => named_budgets::remove(store, by, &of, read(body)?),
    }
}

fn find(store: &dyn Store, id: &str) -> Result<RunView, Error> {
    let unknown = || store::Error::from(engine::Error::UnknownRun { id: id.chars().take(140).collect() });
    let known = RunId::new(id).map_err(|_| unknown())?;
    let no = store.run_no(&known)?.ok_or_else(unknown)?;
    Ok(store.run(no)?.ok_or_else(unknown)?)
}

/// Parses the request's JSON body. An empty body counts as `{}`.
fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, Error> {
    let body = if body.trim_ascii().is_empty() { b"{}".as_slice() } else { body };
    serde_json::from_slice(body)
        .map_err(|e| Error::BadRequest(format!("the body is not what is wanted here: {e}")))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

fn tell(store: &dyn Store, by: String, view: &RunView, word: Word, body: &Bytes) -> Result<Value, Error> {
    let Nothing {} = read(body)?;
    store.ask(InName::of(by, Tell { run: view.run.no, word }), Durability::Synced).wait()?;
    status(store, view)
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
struct Change {
    add: BTreeMap<String, i64>,
    set: BTreeMap<String, i64>,
    lift: Vec<String>,
}

fn budget(store: &dyn Store, by: String, view: &RunView, change: Change) -> Result<Value, Error> {
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
struct Retry {
    keys: Vec<String>,
    /// Whether every failed item is retried, besides `keys`.
    failed: bool,
    reuse_answers: bool,
}

/// Makes items of a job pending again, each in a commit of its own: if one is refused, the others stay reset.
fn retry(store: &dyn Store, by: &str, view: &RunView, wanted: Retry) -> Result<Value, Error> {
    let run = view.run.no;
    let mut keys = wanted.keys;
    if wanted.failed {
        for key in failed(store, view)? {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    if keys.is_empty() && !wanted.failed {
        return Err(Error::BadRequest("no items are named: give keys, or failed".into()));
    }
    let reset = |key: &String| {
        InName::of(by, ResetItem { run, key: key.clone(), reuse_answers: wanted.reuse_answers })
    };
    let asked: Vec<_> = keys.iter().map(|key| store.ask(reset(key), Durability::Synced)).collect();
    for pending in asked {
        pending.wait()?;
    }
    Ok(json!({ "run": view.run.id.as_str(), "reset": keys, "reuse_answers": wanted.reuse_answers }))
}

fn failed(store: &dyn Store, view: &RunView) -> Result<Vec<String>, Error> {
    let mut keys = Vec::new();
    let mut after = Seq(0);
    loop {
        let page = store.items(view.run.no, &Page::new(after, PAGE))?;
        let whole = page.len() == PAGE;
        after = page.last().map_or(after, |(row, _)| row.seq);
        let again = |s: Standing| matches!(s, Standing::Failed | Standing::Dead);
        keys.extend(page.into_iter().filter(|(row, _)| again(row.detail.standing)).map(|(row, _)| row.key));
        if !whole {
            return Ok(keys);
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ForkAt {
    /// Last entry that the fork shares with its origin; `None` if the point is named otherwise.
    seq: Option<i64>,
    /// Time at which the state is copied into the fork, in microseconds since the Unix epoch. Only with `seq`; `None`:
    /// now.
    at: Option<i64>,
    /// Number of the attempt after which the fork begins: the fork shares its origin up to the end of that attempt.
    attempt: Option<i64>,
    id: Option<String>,
    limit_nano_usd: Option<i64>,
}

fn fork(store: &dyn Store, by: String, view: &RunView, wanted: ForkAt) -> Result<Value, Error> {
    let last = view.run.next_seq.0 - 1;
    let point = match (wanted.seq, wanted.at, wanted.attempt) {
        (Some(seq), None, None) if (0..=last).contains(&seq) => Point::Seq(Seq(seq)),
        (Some(seq), Some(at), None) if (0..=last).contains(&seq) => Point::Found(Seq(seq), Micros(at)),
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
    Ok(json!({
        "run": id.as_str(), "origin": view.run.id.as_str(), "seq": origin.seq.0, "at": origin.at.0,
        "created": started.created,
    }))
}
