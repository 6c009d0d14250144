//! Seat of a caller: the run, attempt and scope that its requests belong to. It is found once per run header or token,
//! and cached.
//!
//! Compiled masks, under which the requests of a run are compared. A run keeps the masks that it was created with.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use outlast_core::{
    call::Refused,
    engine::{self, Enter, Start},
    envelope::Ceilings,
    journal::{iteration_scope, scope},
    reads::{plans, runs},
    run::{Claims, Masks, NoProgress, Record, Spec, Unpriced, masks::Rules},
    store::{Ask as _, Durability, Error, RunView, Store},
    words::{AttemptNo, Digest, RunId, RunNo, Seq, Slot, calendar},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::host::Host;
use crate::wire::{
    access::NotLetIn,
    refuse::Refusal,
    who::{CALLER, Caller, Who},
};

/// Finds the run and attempt of a caller. A run that a header names for the first time is created with the default
/// budget, and an attempt for each new label.
///
/// Waits for a store that is away, as the call itself does. Errors: also `other_tags`, where the request has a tag that its
/// run has not: the budgets of that tag would not count.
pub async fn seat(host: &Host, caller: &Caller) -> Result<Seat, Refusal> {
    let until = Instant::now() + host.config.store_wait;
    let seat = loop {
        let heartbeat = host.node.heartbeat();
        match find(host, caller).await {
            Err(away) if away.is_outage_of_store() => {
                if tokio::time::timeout_at(until, heartbeat).await.is_err() {
                    return Err(away);
                }
            }
            found => break found?,
        }
    };
    match caller.tags.iter().find(|(key, value)| seat.tags.get(*key) != Some(value)) {
        Some((key, value)) => Err(NotLetIn::OtherTags { run: seat.id, tag: format!("{key}={value}") }.into()),
        None => Ok(seat),
    }
}

async fn find(host: &Host, caller: &Caller) -> Result<Seat, Refusal> {
    match &caller.who {
        Who::Token(claims) => token_seat(host, *claims),
        Who::Named { run, label } => header_seat(host, caller, run.clone(), label.clone(), false).await,
        Who::Nobody => {
            let now = host.store.now()?;
            // Who has tags shares the day's run with those who have the same.
            let shared_by = match caller.tags.is_empty() {
                true => String::new(),
                false => {
                    format!("-{}", &Digest::of(format!("{:?}", caller.tags).as_bytes()).to_string()[..8])
                }
            };
            let day = RunId::new(&format!("day-{}{shared_by}", calendar::day(now)))
                .map_err(|e| Refusal::Internal(e.to_string()))?;
            header_seat(host, caller, day, None, true).await
        }
    }
}

/// Removes the seat of a header's caller from the cache, because its attempt is over or its run was stopped.
pub fn forget(host: &Host, seat: &Seat, who: &Who) {
    let label = match who {
        Who::Named { label, .. } => label.clone(),
        Who::Token(_) | Who::Nobody => None,
    };
    host.seats.forget(&(seat.id.clone(), label));
    are_over(host, vec![seat.clone()]);
}

/// Removes a run from the cache of runs that requests name in headers, because the run was ended through this process.
pub(crate) fn forget_run(host: &Host, run: RunNo) {
    are_over(host, host.seats.forget_run(run));
}

/// Forgets the errors noted for attempts that have ended: no client retries their calls.
fn are_over(host: &Host, ended: Vec<Seat>) {
    ended.iter().for_each(|seat| host.registry.forget(seat.run, seat.attempt));
}

/// Refuses run tokens that this supervisor's proxy does not serve: all but those of its own run and of child runs that
/// spend its budget.
pub fn serves(host: &Host, who: &Who) -> Result<(), Refusal> {
    match who {
        Who::Token(claims) if !is_served(host, claims)? => Err(NotLetIn::ForeignRun.into()),
        _ => Ok(()),
    }
}

/// Returns whether this listener serves the run that a token names.
pub fn is_served(host: &Host, claims: &Claims) -> Result<bool, Error> {
    let Some(own) = host.config.access.only_run.filter(|own| *own != claims.run) else { return Ok(true) };
    let (own, other) = (host.store.run(own)?, host.store.run(claims.run)?);
    Ok(own.zip(other).is_some_and(|(own, other)| other.run.charges.contains(&own.run.envelope())))
}

/// Act of a caller on an existing run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Working in the run, in an attempt for callers. If a process drives the run, that is refused as held; if the run
    /// has ended, as ended.
    Enter,
    /// Ending the run.
    End,
}

/// Checks that a caller without a credential may act on a run. Any process of the machine is such a caller, so it may
/// change only runs that a request began and no process of Outlast ever drove. The inner error is `others_run`, the
/// outer one the store's.
pub fn may(act: Act, store: &dyn Store, view: &RunView) -> Result<Result<(), NotLetIn>, Error> {
    let attempts = store.attempts(view.run.no)?;
    let is_held = attempts.iter().any(|attempt| attempt.is_open() && attempt.instance.is_some());
    let has_owner = view.spec.command.is_some()
        || view.run.job.is_some()
        || attempts.iter().any(|attempt| attempt.instance.is_some());
    let is_refused_below = act == Act::Enter && (is_held || view.run.status.is_ended());
    let refused = has_owner && !is_refused_below;
    Ok(if refused { Err(NotLetIn::OthersRun { run: view.run.id.clone() }) } else { Ok(()) })
}

fn token_seat(host: &Host, claims: Claims) -> Result<Seat, Refusal> {
    if let Some(seat) = host.seats.of_token(claims.run, claims.attempt) {
        return Ok(seat);
    }
    let unknown = || {
        let id = format!("#{}", claims.run);
        Refusal::of(Refused::of(Error::Engine(engine::Error::UnknownRun { id })), "RUN")
    };
    let view = host.store.run(claims.run)?.ok_or_else(unknown)?;
    let attempts = host.store.attempts(claims.run)?;
    let attempt = attempts.iter().find(|a| a.no == claims.attempt).ok_or_else(unknown)?;
    if attempt.fence != claims.fence || attempt.slot != claims.slot {
        let lost = engine::Error::LeaseLost { id: view.run.id.to_string(), attempt: claims.attempt.0 };
        return Err(Refusal::of(Refused::of(lost.into()), view.run.id.as_str()));
    }
    let at = (claims.attempt, claims.slot, attempt.iteration);
    let seat = Seat { undriven: attempt.instance.is_none(), ..seat_of(host, view, at)? };
    are_over(host, host.seats.keep_token(seat.clone()));
    Ok(seat)
}

/// Reads what a run's calls are under, and returns the driven seat of an attempt in an iteration.
fn seat_of(
    host: &Host,
    view: RunView,
    (attempt, slot, iteration): (AttemptNo, Slot, i64),
) -> Result<Seat, Refusal> {
    let store = host.store.as_ref();
    Ok(Seat {
        run: view.run.no,
        attempt,
        slot,
        scope: iteration_scope(iteration),
        within: None,
        record: view.run.policy.record,
        rules: host.rules.of(store, &view)?,
        plan: Arc::new(plans::ceilings(store, &view)?),
        no_progress: no_progress(store, &view)?,
        unpriced: view.run.policy.unpriced,
        undriven: false,
        is_listed: view.spec.login.is_some(),
        tags: Arc::new(view.spec.tags),
        shared: false,
        id: view.run.id,
    })
}

/// Returns the seat inside the open item or step `seq` of its attempt, with the scope of calls made there.
///
/// Only a first check: the admission of the call checks again. Errors: `not_within`, 403.
pub fn within(host: &Host, seat: Seat, seq: Seq) -> Result<Seat, Refusal> {
    let mut around = Vec::new();
    let mut next = Some(seq);
    while let Some(seq) = next {
        let Some(entry) = host.store.entry(seat.run, seq)? else { break };
        next = entry.within();
        around.push(entry);
    }
    let find = |seq| around.iter().find(|e| e.seq == seq);
    let scope = find(seq).filter(|e| e.attempt == seat.attempt).and_then(|e| scope::calls_in(e, &find));
    let not = engine::Error::NotWithin { seq: seq.0 };
    let scope = scope.ok_or_else(|| Refusal::of(Refused::of(not.into()), seat.id.as_str()))?;
    Ok(Seat { scope, within: Some(seq), ..seat })
}

async fn header_seat(
    host: &Host,
    caller: &Caller,
    id: RunId,
    label: Option<String>,
    shared: bool,
) -> Result<Seat, Refusal> {
    let key = (id.clone(), label.clone());
    if let Some(seat) = host.seats.of_name(&key) {
        return Ok(seat);
    }
    let run = match runs::with_id(host.store.as_ref(), id.as_str())? {
        Some(view) => {
            if host.config.access.api_token.is_none() {
                may(Act::Enter, host.store.as_ref(), &view)??;
            }
            view.run.no
        }
        None => create(host, caller, &id, shared).await?,
    };
    let instance = host.node.instance();
    let entered = host.store.ask(Enter { run, label, instance }, Durability::Synced).await;
    let entered = match entered {
        Ok(entered) => entered,
        Err(Error::Engine(engine::Error::RunHalted { .. })) => return Err(halted(host, run, &id)?),
        Err(e) => return Err(Refusal::of(Refused::of(e), id.as_str())),
    };
    let view = host.store.run(run)?.ok_or_else(|| gone(&id))?;
    let at = (entered.attempt, entered.slot, entered.iteration);
    let seat = Seat { undriven: true, shared, ..seat_of(host, view, at)? };
    debug_assert!(seat.slot == Slot::DRIVER || seat.slot == Slot::IMPLICIT);
    are_over(host, host.seats.keep_name(key, seat.clone()));
    Ok(seat)
}

/// Returns the policy for busy waiting that a run is under: the strictest of its own and those of the runs above it.
fn no_progress(store: &dyn Store, view: &RunView) -> Result<NoProgress, Error> {
    let own = view.run.policy.no_progress;
    runs::above(store, view).try_fold(own, |most, above| Ok(most.max(above?.run.policy.no_progress)))
}

fn gone(id: &RunId) -> Error {
    Error::Corrupt { what: format!("run {id} is gone") }
}

async fn create(host: &Host, caller: &Caller, id: &RunId, shared: bool) -> Result<RunNo, Refusal> {
    let mut limits = host.config.default_limits;
    if shared {
        // The shared run of the day is limited in usd only: its calls do not belong to one loop.
        use outlast_core::envelope::{Limits, Unit};
        let usd = limits[Unit::CostNanoUsd];
        limits = Limits::default();
        limits[Unit::CostNanoUsd] = usd;
    }
    let start = Start {
        limits,
        policy: host.config.default_policy,
        spec: Spec { masks: host.config.masks.clone(), tags: tags(caller, shared), ..Spec::default() },
        ..Start::new(id.clone())
    };
    let started = host.store.ask(start, Durability::Synced).await;
    Ok(started.map_err(|e| Refusal::of(Refused::of(e), id.as_str()))?.run)
}

/// Returns the tags of a run that a request begins: its own, and the name of its API token, except in a run that several
/// callers share.
fn tags(caller: &Caller, shared: bool) -> BTreeMap<String, String> {
    let name = caller.token.as_ref().filter(|_| !shared);
    let name = name.map(|name| (CALLER.to_owned(), name.to_string()));
    caller.tags.clone().into_iter().chain(name).collect()
}

/// Returns the refusal that halted the run, as a refused call reports it.
fn halted(host: &Host, run: RunNo, id: &RunId) -> Result<Refusal, Refusal> {
    let halt = host.store.run(run)?.and_then(|v| v.run.halt);
    let halt = halt.unwrap_or_else(|| {
        outlast_core::envelope::Refusal::plain("halted", outlast_core::words::id::Micros(0))
    });
    Ok(Refusal::of(Refused::Budget(halt), id.as_str()))
}

/// Number of cached seats, by name or by token, above which that cache is emptied.
const MANY: usize = 4096;

/// Run, attempt and scope that a request belongs to.
#[derive(Clone, Debug)]
pub struct Seat {
    pub run: RunNo,
    pub id: RunId,
    pub attempt: AttemptNo,
    pub slot: Slot,
    pub scope: Arc<str>,
    /// Open item or step inside which the request is made; `None`: outside of both.
    pub within: Option<Seq>,
    pub record: Record,
    /// Masks of the run: parts of a request that do not count when requests are compared.
    pub rules: Arc<Rules>,
    /// Ceilings on the plan of the calls' login: the run's own and those of its ancestors.
    pub plan: Arc<Ceilings>,
    /// Policy for busy waiting, the strictest of the run and those above.
    pub no_progress: NoProgress,
    /// Rule of the run for models without a known price.
    pub unpriced: Unpriced,
    /// Whether a header opened the attempt. It has no driver, and counts active time only while a call is in flight.
    pub undriven: bool,
    /// Whether a login's subscription pays for the calls: their cost is a list price.
    pub is_listed: bool,
    /// Tags of the run.
    pub tags: Arc<BTreeMap<String, String>>,
    /// Whether the run is the shared one of the day, for requests that name no run. It has no replay and no join.
    pub shared: bool,
}

/// Name of an attempt in headers: the run's id, and the attempt's label if there is one.
pub type Name = (RunId, Option<String>);

/// Cache of the seats of one process.
#[derive(Default)]
pub struct Seats {
    by_name: Mutex<HashMap<Name, Seat>>,
    by_token: Mutex<HashMap<(RunNo, AttemptNo), Seat>>,
}

impl Seats {
    pub fn of_name(&self, name: &Name) -> Option<Seat> {
        self.by_name.lock().get(name).cloned()
    }

    pub fn of_token(&self, run: RunNo, attempt: AttemptNo) -> Option<Seat> {
        self.by_token.lock().get(&(run, attempt)).cloned()
    }

    /// Stores the seat of a name. Removes and returns the seats of earlier attempts that it has ended.
    pub fn keep_name(&self, name: Name, seat: Seat) -> Vec<Seat> {
        keep(&mut self.by_name.lock(), name, seat)
    }

    /// Stores the seat of a token. Removes and returns the seats of earlier attempts that it has ended.
    pub fn keep_token(&self, seat: Seat) -> Vec<Seat> {
        keep(&mut self.by_token.lock(), (seat.run, seat.attempt), seat)
    }

    pub fn forget(&self, name: &Name) {
        self.by_name.lock().remove(name);
    }

    /// Removes the seats of a run that was named by headers, and returns them.
    pub fn forget_run(&self, run: RunNo) -> Vec<Seat> {
        self.by_name.lock().extract_if(|_, seat| seat.run == run).map(|(_, seat)| seat).collect()
    }
}

/// Inserts `seat`, and removes the seats of earlier attempts in its slot, which the new attempt has ended.
/// Returns those.
fn keep<K: Eq + std::hash::Hash>(seats: &mut HashMap<K, Seat>, key: K, seat: Seat) -> Vec<Seat> {
    let ended = |s: &Seat| s.run == seat.run && s.slot == seat.slot && s.attempt < seat.attempt;
    let all_ended = seats.extract_if(|_, s| ended(s)).map(|(_, s)| s).collect();
    if seats.len() > MANY {
        seats.clear();
    }
    seats.insert(key, seat);
    all_ended
}

/// Number of cached sets of masks at which the cache is emptied.
const MANY_RULES: usize = 64;

/// Cache of compiled masks, shared by all runs with the same masks.
#[derive(Default)]
pub struct Compiled(Mutex<BTreeMap<Masks, Arc<Rules>>>);

impl Compiled {
    /// Returns the masks of the run, compiled. Errors: the store's; masks that cannot be compiled.
    pub fn of(&self, store: &dyn Store, view: &RunView) -> Result<Arc<Rules>, Error> {
        let masks = runs::masks(store, view)?;
        if let Some(rules) = self.0.lock().get(&masks) {
            return Ok(rules.clone());
        }
        let rules = Arc::new(masks.compile()?);
        let mut all = self.0.lock();
        if all.len() >= MANY_RULES {
            all.clear();
        }
        all.insert(masks, rules.clone());
        Ok(rules)
    }
}
