//! Routes of runs: create, show, count a loop, cancel, complete; and their JSON, as RiskKernel shows them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use outlast_core::{
    engine::{self, CountLoop, InName, Start, Tell, Turn, Word, checkpoint::Used},
    envelope::{Limits, Unit},
    journal::{Entry, Kind, State},
    reads::{
        approvals, entries,
        policies::{self, NamedPolicy},
        runs::changed_at,
    },
    run::{Policy, Run, Spec, Status},
    store::{self, Ask as _, Durability, RunView, Store},
    words::{Micros, RunNo, Seq, calendar::rfc3339},
};
use outlast_view::shape;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::{Act, Error};
use crate::{
    api::{
        amount::{self, Budget, ShownBudget},
        approvals::show::Approval,
        request::{Answered, ApiRequest, created, json},
    },
    proxy::seat::forget_run,
    state,
};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct RunBody {
    name: Option<String>,
    budget: Option<Budget>,
    policy_ref: Option<String>,
    #[serde(alias = "tags")]
    metadata: Option<BTreeMap<String, String>>,
}

/// Creates a run and begins it. The run's time counts from here.
pub async fn create(asked: ApiRequest) -> Answered<Error> {
    let wanted: RunBody = asked.json()?;
    let own = amount::limits(&wanted.budget.unwrap_or_default())?;
    let named = match wanted.policy_ref.filter(|name| !name.is_empty()) {
        Some(name) => Some(policy(&asked, name).await?),
        None => None,
    };
    let config = &asked.host.config;
    let of_policy = named.as_ref().map(|policy| policy.limits).unwrap_or_default();
    let limits = match (under(own, &of_policy), asked.caller.must_be_a_person()) {
        (limits, Ok(())) if limits != Limits::default() => limits,
        (_, Ok(())) => config.default_limits,
        // Who has no API token has no more than a person gave: the policy's limits, and for other units the server's.
        (limits, Err(_)) => limits.within(&under(of_policy, &config.default_limits)),
    };
    let start = Start {
        limits,
        policy: Policy {
            pause_wall: named.as_ref().map_or(config.default_policy.pause_wall, |policy| policy.pause_wall),
            ..config.default_policy
        },
        spec: Spec {
            name: wanted.name.filter(|name| !name.is_empty()),
            tags: asked.caller.tags(wanted.metadata.unwrap_or_default())?,
            rules: named.map(|policy| policy.rules),
            ..Spec::default()
        },
        ..Start::new(asked.api.desk.name_a_run())
    };
    let started = asked.host.store.ask(start, Durability::Synced).await?;
    asked.enter(started.run).await?;
    created(&shown(&asked, started.run).await?)
}

/// Returns the limits of `own`, and for units that `own` does not limit those of `other`.
fn under(own: Limits, other: &Limits) -> Limits {
    let mut limits = own;
    for unit in Unit::ALL {
        limits[unit] = own[unit].or(other[unit]);
    }
    limits
}

/// Finds a named policy. Errors: `unknown_policy`.
async fn policy(asked: &ApiRequest, name: String) -> Result<NamedPolicy, Error> {
    let wanted = name.clone();
    let found = asked.read(move |store| policies::find(store, &wanted)).await?;
    found.ok_or_else(|| state::Error::UnknownPolicy { name: name.chars().take(80).collect() }.into())
}

pub async fn get(asked: ApiRequest) -> Answered<Error> {
    let run = asked.run().await?.run.no;
    json(&shown(&asked, run).await?)
}

/// Counts a loop of the run. From the first such request on, the run's proxied calls no longer count as loops.
pub async fn step(asked: ApiRequest) -> Answered<Error> {
    let run = asked.run_to(Act::Enter).await?.run;
    let counted = async {
        let (actor, entered) = asked.enter(run.no).await?;
        let turn = CountLoop { actor, slot: entered.slot, iteration: entered.iteration, key: None };
        Ok(asked.host.store.ask(turn, Durability::Synced).await?)
    };
    match asked.working(run.no, counted.await).await? {
        Turn::Counted { loops } => json(&json!({ "stepIndex": loops })),
        Turn::Refused(refusal) => {
            asked.host.metrics.refused(&refusal.code);
            // The run is halted: calls that wait for its budget have to learn it.
            asked.host.wake();
            Err(Error::Halted { refusal: Box::new(refusal) })
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Cancel {
    reason: Option<String>,
}

/// Cancels a run. A run that is halted or has ended keeps its status.
pub async fn cancel(asked: ApiRequest) -> Answered<Error> {
    let run = asked.run_to(Act::End).await?.run.no;
    let reason = asked.json::<Cancel>()?.reason.filter(|reason| !reason.is_empty());
    tell(&asked, run, Word::Cancel { reason }).await
}

/// Completes a run. RiskKernel itself has no such route. A run that has ended keeps its status.
pub async fn complete(asked: ApiRequest) -> Answered<Error> {
    let run = asked.run_to(Act::End).await?.run.no;
    tell(&asked, run, Word::Complete).await
}

async fn tell(asked: &ApiRequest, run: RunNo, word: Word) -> Answered<Error> {
    let store = &asked.host.store;
    let told = match word {
        // A cancellation is an act. That it is done is said by the run's own program.
        Word::Cancel { .. } => {
            store.ask(InName::of(asked.actor(), Tell { run, word }), Durability::Synced).await
        }
        word => store.ask(Tell { run, word }, Durability::Synced).await,
    };
    match told {
        Ok(_) | Err(store::Error::Engine(engine::Error::RunEnded { .. })) => {}
        Err(e) => return Err(e.into()),
    }
    forget_run(&asked.host, run);
    asked.host.wake();
    json(&shown(asked, run).await?)
}

pub async fn shown(asked: &ApiRequest, run: RunNo) -> Result<Shown, Error> {
    let tokens = Arc::clone(&asked.api.tokens);
    let read = asked.read(move |store| {
        let view = store.run(run)?;
        view.map(|view| Shown::of(store, &tokens, &view)).transpose()
    });
    read.await?.ok_or(Error::State(state::Error::Store(store::Error::Closed)))
}

shape! {
    /// Run with its budget and usage, in the shape of RiskKernel's JSON.
    #[serde(rename_all = "camelCase")]
    pub Shown(view: &RunView, usage: Usage, pending: Option<Approval>, awaits: bool, updated: Micros; let run = &view.run) {
        id: String = run.id.to_string();
        name: String = view.spec.name.clone().unwrap_or_default();
        status: &'static str = status(run, awaits);
        /// Code of the refusal that halted the run, or `cancelled`. Empty for a run that nothing stopped.
        halt_reason: String = halt_reason(run);
        budget: ShownBudget = ShownBudget::new(&view.envelope.limits);
        usage: Usage = usage;
        metadata: BTreeMap<String, String> = view.spec.tags.clone();
        #[serde(skip_serializing_if = "Option::is_none")]
        pending_approval: Option<Approval> = pending;
        created_at: String = rfc3339(run.created_at);
        updated_at: String = rfc3339(updated);
    }
}

shape! {
    /// Usage of a run. `tokens` and `dollars` include calls in doubt at their reservation.
    #[serde(rename_all = "camelCase")]
    pub Usage(used: &Used, counted: Counted) {
        tokens: i64 = used.tokens;
        prompt_tokens: u64 = counted.prompt;
        completion_tokens: u64 = counted.completion;
        dollars: Box<RawValue> = amount::dollars(used.cost_nano_usd);
        loops: i64 = used.loops;
        elapsed_seconds: i64 = used.wall_ms / 1000;
    }
}

impl Shown {
    /// Reads the facts of a run's JSON from the store. Blocks.
    pub fn of(store: &dyn Store, tokens: &Tokens, view: &RunView) -> Result<Shown, store::Error> {
        let run = &view.run;
        let now = store.now()?;
        let used = Used::of(run, &view.envelope, now);
        let awaits = run.awaits_a_person(now);
        let usage = Usage::new(&used, tokens.of(store, run.no)?);
        let pending =
            if awaits { approvals::pending(store, Some(run.no))?.first().map(Approval::new) } else { None };
        Ok(Shown::new(view, usage, pending, awaits, changed_at(store, run)?))
    }
}

/// Maps a status to RiskKernel's, which are fewer: `pending` is a run that does nothing now and may go on.
fn status(run: &Run, awaits: bool) -> &'static str {
    match run.status {
        Status::Running | Status::Waiting if awaits => "waiting_approval",
        Status::Running => "running",
        Status::Interrupted | Status::Waiting | Status::Sleeping => "pending",
        status @ (Status::Halted | Status::Completed | Status::Failed | Status::Cancelled) => status.name(),
    }
}

fn halt_reason(run: &Run) -> String {
    match (&run.halt, run.status) {
        (Some(halt), _) => halt.code.clone(),
        (None, Status::Cancelled) => "cancelled".into(),
        (None, _) => String::new(),
    }
}

/// Number of runs in the cache, at which it is emptied.
const RUNS: usize = 4096;

/// Prompt and completion tokens of a run as the providers reported them; its budget counts only the sum. Calls without a
/// usage are in neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub prompt: u64,
    pub completion: u64,
}

/// Cache by run: the tokens up to the first call that is still open or in doubt, from which the next read continues.
#[derive(Default)]
pub struct Tokens(Mutex<HashMap<RunNo, (Seq, Counted)>>);

impl Counted {
    fn add(&mut self, e: &Entry) {
        if let Some(usage) = e.call.as_ref().and_then(|call| call.usage) {
            self.prompt = self.prompt.saturating_add(usage.input_total());
            self.completion = self.completion.saturating_add(usage.output);
        }
    }
}

impl Tokens {
    /// Returns the tokens of all of a run's calls. Reads only the entries that are not in the cache.
    pub fn of(&self, store: &dyn Store, run: RunNo) -> Result<Counted, store::Error> {
        let known = || self.0.lock();
        let (mut upto, mut closed) = known().get(&run).copied().unwrap_or_default();
        let (mut all, mut firm) = (closed, true);
        for e in entries::each_after(store, run, upto) {
            let e = e?;
            all.add(&e);
            // A call in doubt may still get its true usage.
            firm &= e.kind != Kind::Call || !matches!(e.state, State::Open | State::Unknown);
            if firm {
                (upto, closed) = (e.seq, all);
            }
        }
        let mut known = known();
        if known.len() >= RUNS {
            known.clear();
        }
        known.insert(run, (upto, closed));
        Ok(all)
    }

    /// Returns the tokens of a run's calls that were closed by the time `at`, among the entries up to `before`.
    pub fn by(store: &dyn Store, run: RunNo, before: Seq, at: Micros) -> Result<Counted, store::Error> {
        let mut counted = Counted::default();
        for e in entries::each(store, run) {
            let e = e?;
            if e.closed_at.is_some_and(|closed| closed <= at) {
                counted.add(&e);
            }
            if e.seq >= before {
                break;
            }
        }
        Ok(counted)
    }
}
