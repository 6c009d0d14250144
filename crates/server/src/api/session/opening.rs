//! Opening of a session: its run created or found, held against the limits that were asked for, and claimed.

use std::{collections::BTreeMap, sync::Arc};

use outlast_core::{
    engine::{self, Asker, InName, Raise, Start},
    envelope::{Limits, PerUnit, Unit},
    reads::{
        forks::{Point, id_of, prepare},
        runs::with_id,
    },
    run::{
        Spec, Status,
        token::{self, Claims},
    },
    store::{self, Ask as _, Durability, RunView, Store},
    words::{AttemptNo, RunId, Seq, Slot},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Session, Work};
use crate::{
    api::{acts, error::Error, gate::Caller},
    node::Beat,
    proxy::{
        host::Host,
        seat::{self, Act},
    },
    state,
    work::{
        Hand,
        take::{self, OVER, Taken},
    },
};

/// Unit that a client may not spend unless it names a limit: dollars, in a run without a budget.
const DEFAULT: Unit = Unit::CostNanoUsd;

/// Longest name of a client's program, in characters.
const NAME: usize = 80;

/// Body of a request that opens a session.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// Name of the program for people, with its process id.
    program: String,
    /// Id of the run; `None`: the run of the caller's token, else a new one.
    run: Option<String>,
    /// Limits by unit. None: the usual dollars, or those of the run above.
    #[serde(default)]
    limits: BTreeMap<String, i64>,
    /// Whether other limits than the run has are set.
    #[serde(default)]
    amend: bool,
    name: Option<String>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    /// Name of the batch job that the run is.
    job: Option<String>,
    /// Id of the run whose budget a new run spends too.
    parent: Option<String>,
    /// Whether the run is taken from a process that lives.
    #[serde(default)]
    takeover: bool,
    /// Point of `run` from which a fork of it is opened.
    from: Option<ForkPoint>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ForkPoint {
    Snapshot(String),
    Attempt(i64),
    Seq(i64),
}

impl ForkPoint {
    fn point(&self) -> Point {
        match self {
            ForkPoint::Snapshot(name) => Point::Name(name.clone()),
            ForkPoint::Attempt(no) => Point::Attempt(AttemptNo(*no)),
            ForkPoint::Seq(seq) => Point::Seq(Seq(*seq)),
        }
    }
}

/// Opens a run: `fresh` is its id if it has none. Returns the session, and what its client is told. Blocks on the store.
///
/// Errors: `budget_changed`; `run_held` while another live process drives the run; `unknown_snapshot`; `foreign_run`;
/// `others_run`; those of a halted or cancelled run.
pub(super) fn open(
    host: &Arc<Host>,
    caller: &Caller,
    by: &str,
    fresh: RunId,
    wanted: Wanted,
) -> Result<(Session, Value), Error> {
    let store = host.store.as_ref();
    let own = match caller {
        Caller::Run(Asker::Token(claims)) => Some(*claims),
        Caller::Run(Asker::Attempt { .. }) | Caller::Api(_) => None,
    };
    let limits = acts::limits(&wanted.limits)?;
    let id = match (&wanted.run, own) {
        (Some(id), _) => RunId::new(id).map_err(|e| Error::bad(e.to_string()))?,
        (None, Some(claims)) => store.run(claims.run)?.ok_or_else(|| unknown("?"))?.run.id,
        (None, None) => fresh,
    };
    let id = match &wanted.from {
        Some(from) => {
            let origin = named(store, &id)?;
            may_enter(host, caller, &origin)?;
            fork(store, by, &origin, &from.point(), limits)?
        }
        None => id,
    };
    let found = with_id(store, id.as_str())?;
    let created = found.is_none();
    let (mut view, by_default) = match found {
        Some(view) => {
            may_enter(host, caller, &view)?;
            if wanted.from.is_none() {
                compare(store, caller, by, &view, limits, wanted.amend)?;
            }
            (view, false)
        }
        None => create(host, caller, own, &id, limits, &wanted)?,
    };
    if wanted.job.is_some() && view.run.job.is_none() {
        return Err(store::Error::from(engine::Error::NotAJob { id: id.to_string() }).into());
    }
    let is_over = |view: &RunView| view.run.status == Status::Completed && view.run.job.is_none();
    let work = if is_over(&view) { None } else { work(host, own, &view, &wanted)? };
    view = named(store, &id)?;
    if work.is_none() && !is_over(&view) {
        return Err(store::Error::from(engine::Error::RunEnded {
            id: id.to_string(),
            status: view.run.status.name(),
        })
        .into());
    }
    let (work, claims, iteration) = match work {
        Some((work, taken)) => (Some(work), Some(taken.claims), taken.iteration),
        None => (None, None, view.run.iteration),
    };
    let token = claims.and_then(|claims| Some(token::mint(host.token_keys.first()?, &claims)));
    let told = json!({
        "run": id.as_str(),
        "no": view.run.no.0,
        "status": view.run.status.name(),
        "created": created,
        "by_default": by_default,
        "attempt": claims.map(|claims| claims.attempt.0),
        "iteration": iteration,
        "is_driver": work.as_ref().is_some_and(|work: &Work| work.is_driver),
        "token": token,
    });
    let attempt = work.as_ref().zip(claims).map(|(work, claims)| (work.actor, claims.slot));
    let hand = Hand { run: view.run.no, id, iteration, attempt, openings: Arc::default() };
    Ok((Session { hand: Arc::new(hand), work }, told))
}

fn unknown(id: &str) -> Error {
    store::Error::from(engine::Error::UnknownRun { id: id.to_owned() }).into()
}

fn named(store: &dyn Store, id: &RunId) -> Result<RunView, Error> {
    with_id(store, id.as_str())?.ok_or_else(|| unknown(id.as_str()))
}

/// Checks that the caller may work in an existing run: a run in itself and in runs that spend its budget, whoever has a
/// credential in any, and others in runs that only callers of servers have worked in.
fn may_enter(host: &Host, caller: &Caller, view: &RunView) -> Result<(), Error> {
    if let Some(own) = caller.only_run() {
        let own = host.store.run(own)?.ok_or_else(|| unknown("?"))?;
        let is_below = own.run.no == view.run.no || view.run.charges.contains(&own.run.envelope());
        return if is_below { Ok(()) } else { Err(state::Error::OwnRunOnly.into()) };
    }
    if caller.must_be_a_person().is_ok() || (view.spec.command.is_none() && was_over_servers(host, view)?) {
        return Ok(());
    }
    // As for an end: a run that another process has would be taken from it.
    Ok(seat::may(Act::End, host.store.as_ref(), view)??)
}

/// Returns whether every attempt of the run was a session, or a header's.
fn was_over_servers(host: &Host, view: &RunView) -> Result<bool, store::Error> {
    for instance in host.store.attempts(view.run.no)?.iter().filter_map(|attempt| attempt.instance) {
        let program = host.store.instance(instance)?.map(|instance| instance.identity.program);
        if !program.is_some_and(|program| program.ends_with(OVER)) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn fork(
    store: &dyn Store,
    by: &str,
    origin: &RunView,
    point: &Point,
    limits: Limits,
) -> Result<RunId, Error> {
    let id = id_of(&origin.run.id, point).ok_or_else(|| Error::bad("the fork's id would be too long"))?;
    let fork = prepare(store, origin.run.no, point, id.clone(), limits)?;
    store.ask(InName::of(by, fork), Durability::Synced).wait()?;
    Ok(id)
}

/// Creates the run. Returns whether its limits are those of a run without a budget.
fn create(
    host: &Host,
    caller: &Caller,
    own: Option<Claims>,
    id: &RunId,
    limits: Limits,
    wanted: &Wanted,
) -> Result<(RunView, bool), Error> {
    let store = host.store.as_ref();
    let tags = caller.tags(wanted.tags.clone())?;
    let parent = match (&wanted.parent, own) {
        (Some(parent), _) => {
            let parent = named(store, &RunId::new(parent).map_err(|e| Error::bad(e.to_string()))?)?;
            may_enter(host, caller, &parent)?;
            Some(parent.run.no)
        }
        (None, own) => own.map(|claims| claims.run),
    };
    let mut usual = Limits::default();
    usual[DEFAULT] = host.config.default_limits[DEFAULT];
    let by_default = parent.is_none() && limits == Limits::default();
    let is_person = caller.must_be_a_person().is_ok();
    let given = match by_default {
        true => usual,
        false if is_person || parent.is_some() => limits,
        // Who has no API token has no more than a person gave.
        false => limits.within(&usual),
    };
    let start = Start {
        limits: given,
        policy: host.config.default_policy,
        spec: Spec {
            name: wanted.name.clone(),
            tags,
            job: wanted.job.clone(),
            limits: Some(limits),
            masks: host.config.masks.clone(),
            ..Spec::default()
        },
        parent,
        ..Start::new(id.clone())
    };
    store.ask(start, Durability::Synced).wait()?;
    Ok((named(store, id)?, by_default))
}

/// Compares the limits that were asked for with the run's own.
fn compare(
    store: &dyn Store,
    caller: &Caller,
    by: &str,
    view: &RunView,
    limits: Limits,
    amend: bool,
) -> Result<(), Error> {
    let has = view.envelope.limits;
    let other = Unit::ALL.into_iter().find(|unit| limits[*unit].is_some() && limits[*unit] != has[*unit]);
    let Some(unit) = other else { return Ok(()) };
    if amend {
        caller.must_be_a_person()?;
        let raise = Raise { run: view.run.no, add: Limits::default(), set: limits, lift: PerUnit::default() };
        store.ask(InName::of(by, raise), Durability::Synced).wait()?;
        return Ok(());
    }
    // The program asks for the same limits as at first; a person has changed them since.
    if view.spec.limits == Some(limits) {
        return Ok(());
    }
    let show = |limit: Option<i64>| limit.map_or_else(|| "none".to_owned(), |limit| unit.show(limit));
    Err(Error::BudgetChanged {
        run: view.run.id.to_string(),
        had: show(has[unit]),
        asked: show(limits[unit]),
    })
}

/// Registers an instance, and takes the run with it. `None` if the run has ended meanwhile.
fn work(
    host: &Arc<Host>,
    own: Option<Claims>,
    view: &RunView,
    wanted: &Wanted,
) -> Result<Option<(Work, Taken)>, Error> {
    let program: String = wanted.program.chars().take(NAME).collect();
    let node = host.node.beside(format!("{program}{OVER}"))?;
    let slot = if wanted.job.is_some() { Slot::ANY } else { Slot::DRIVER };
    let taken = match own.filter(|claims| claims.run == view.run.no) {
        Some(claims) => take::adopt(&node, claims, view.run.iteration, || true).map(Ok),
        None => take::claim(&node, view.run.no, slot, wanted.takeover, || true),
    };
    let taken = match taken {
        Ok(Ok(taken)) => taken,
        refused => {
            // Without the run the instance does nothing: it leaves, so that nobody waits for its heartbeat.
            node.leave()?;
            return match refused {
                Ok(Ok(_)) | Err(store::Error::Engine(engine::Error::RunEnded { .. })) => Ok(None),
                Ok(Err(refusal)) => Err(Error::Halted { refusal: Box::new(refusal) }),
                Err(e) => {
                    let now = host.store.run(view.run.no)?;
                    Err(now.map_or(Error::UnknownSession, |now| Error::from(e).of_work(&now.run)))
                }
            };
        }
    };
    let (actor, is_driver) = (taken.actor, taken.is_driver);
    let beat = Arc::<Beat>::default();
    beat.open(&node, actor.run, actor.attempt, actor.instance, is_driver);
    let beating = tokio::spawn(beat.clone().go_on(node.clone())).abort_handle();
    Ok(Some((Work { node, beat, beating, actor, is_driver }, taken)))
}
