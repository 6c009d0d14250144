//! Deeds of a session: what a program does in its run, each one operation of the engine or one read.

use outlast_core::{
    engine::{
        self,
        call::{admit::Admission, settle::StorePart},
        checkpoint::{Checkpoint, Name as CheckpointName, OURS},
        item::{ClaimItem, ExpectItems, ItemEnd, RecordItem, ReturnItem},
        op::{Op, Outcome},
        run::fork::Snapshot,
        state::put::{Change, Put},
        step::{BeginStep, CountLoop, NextTry, Record, ResolveStep, Step, Turn},
    },
    envelope::unit::Unit,
    journal::{
        Kind, Role, State, iteration_scope,
        job::{ItemClaim, ItemRow, OnChange, Standing},
        payload::Payload,
    },
    state::Name,
    store::{self, Ask as _, Durability, Page, Sought, Store},
    words::{digest::Digest, id::Seq},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::{How, Session, Work};
use crate::{
    api::{
        error::Error,
        request::{Answered, ApiRequest, json},
        state::transaction::there,
    },
    beat::Word,
    reservation,
};

/// Most steps and items of one answer.
const PAGE: usize = 1_000;

/// Deed of a program. Values are any JSON, kept byte for byte.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Deed {
    /// Reads the steps that are recorded in the session's iteration, a page at a time.
    Steps {
        after: i64,
    },
    /// Reads the value recorded in an entry.
    Value {
        seq: i64,
    },
    /// Opens a step, or finds its recorded result.
    BeginStep {
        key: String,
        /// Scope of an item's steps, with the item's entry; none: the run's own steps.
        scope: Option<String>,
        within: Option<i64>,
        #[serde(default)]
        at_most_once: bool,
        #[serde(default)]
        retries: bool,
    },
    /// Closes a step with its result or error.
    Record {
        seq: i64,
        value: Box<RawValue>,
        #[serde(default)]
        failed: bool,
        #[serde(default)]
        again: bool,
        #[serde(default)]
        changes: Vec<StateChange>,
    },
    /// Says what came of a step in doubt. `seq`: its newest entry, none if this session recorded it.
    ResolveStep {
        key: String,
        scope: Option<String>,
        seq: Option<i64>,
        value: Box<RawValue>,
        #[serde(default)]
        failed: bool,
    },
    /// Counts a turn of the program's loop.
    CountLoop {
        key: Option<String>,
    },
    SaveCheckpoint {
        name: String,
        value: Box<RawValue>,
    },
    LatestCheckpoint {
        name: String,
    },
    /// Names the run's present point.
    NameSnapshot {
        name: String,
    },
    /// Changes the state under the attempt's fence.
    Put {
        changes: Vec<StateChange>,
    },
    /// Reads a key of the state.
    Get {
        namespace: String,
        agent: String,
        key: String,
    },
    /// Reserves money for a call that does not go through the proxy.
    Reserve {
        label: String,
        nano_usd: u64,
        tokens: u64,
    },
    /// Settles a reserved call at its cost; none: it was never sent.
    Settle {
        seq: i64,
        nano_usd: Option<u64>,
        tokens: u64,
    },
    /// Reads a job's items, a page at a time.
    Items {
        after: i64,
    },
    ExpectItems {
        items: i64,
    },
    ClaimItem {
        key: String,
        index: i64,
        /// Text of the item's content and of the code's version, of which digests are kept.
        content: Option<String>,
        version: Option<String>,
        #[serde(default)]
        on_change: OnChange,
        #[serde(default)]
        on_version: OnChange,
        #[serde(default)]
        alone: bool,
    },
    /// Begins the next try of an item or a step.
    NextTry {
        seq: i64,
    },
    RecordItem {
        seq: i64,
        end: End,
        #[serde(default)]
        changes: Vec<StateChange>,
    },
    ReturnItem {
        seq: i64,
    },
    /// Ends the session.
    End {
        how: How,
    },
}

/// Outcome of an item.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum End {
    Done(Box<RawValue>),
    Failed(Box<RawValue>),
    Skipped(String),
}

/// Change of the state. Without a value the key is deleted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StateChange {
    namespace: String,
    agent: String,
    key: String,
    #[serde(default, deserialize_with = "there")]
    value: Option<Box<RawValue>>,
    expected: Option<i64>,
}

impl StateChange {
    fn all(changes: Vec<StateChange>) -> Vec<Change> {
        changes.into_iter().map(StateChange::change).collect()
    }

    fn change(self) -> Change {
        let name = Name::new(self.namespace, self.agent, self.key);
        let change = match &self.value {
            Some(value) => Change::set(name, value.get().as_bytes()),
            None => Change::delete(name),
        };
        Change { expected: self.expected, ..change }
    }
}

#[derive(Serialize)]
struct StepTold {
    seq: i64,
    key: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct ItemTold {
    seq: i64,
    key: String,
    standing: &'static str,
    tries: i64,
    cost_nano_usd: i64,
    content: Option<String>,
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Box<RawValue>>,
}

impl Deed {
    /// Returns whether the deed opens or changes something, so that only the run's driver may do it. What is open is
    /// closed by who opened it.
    fn opens(&self) -> bool {
        match self {
            Deed::BeginStep { .. }
            | Deed::ResolveStep { .. }
            | Deed::CountLoop { .. }
            | Deed::SaveCheckpoint { .. }
            | Deed::Put { .. }
            | Deed::Reserve { .. }
            | Deed::ClaimItem { .. }
            | Deed::NextTry { .. } => true,
            Deed::Steps { .. }
            | Deed::Value { .. }
            | Deed::Record { .. }
            | Deed::LatestCheckpoint { .. }
            | Deed::NameSnapshot { .. }
            | Deed::Get { .. }
            | Deed::Settle { .. }
            | Deed::Items { .. }
            | Deed::ExpectItems { .. }
            | Deed::RecordItem { .. }
            | Deed::ReturnItem { .. }
            | Deed::End { .. } => false,
        }
    }
}

impl Session {
    /// Carries a deed out. Durable before it answers, but for openings, which survive `kill -9`.
    pub(super) async fn carry_out(&self, asked: &ApiRequest, deed: Deed) -> Answered<Error> {
        if deed.opens() {
            match self.work()?.word() {
                Word::GoOn => {}
                Word::Stop => return Err(Error::StopRequested { run: self.id.to_string() }),
                Word::Lost => return Err(store::Error::from(engine::Error::InstanceDead).into()),
                Word::Away => asked.host.opening().await?,
            }
        }
        match deed {
            Deed::Steps { after } => self.steps(asked, Seq(after)).await,
            Deed::Items { after } => self.items(asked, Seq(after)).await,
            Deed::Value { seq } => json(&self.value(asked, Seq(seq)).await?),
            Deed::LatestCheckpoint { name } => self.checkpoint(asked, name).await,
            Deed::Get { namespace, agent, key } => get(asked, namespace, agent, key).await,
            Deed::Record { seq, value, failed, again, changes } => {
                let (changes, opening) = (StateChange::all(changes), self.opening(seq));
                let value = self.whole(asked, seq, &value).await?;
                self.told(asked, Record { opening, value, failed, again, changes }, Durability::Synced).await
            }
            Deed::RecordItem { seq, end, changes } => {
                let (changes, opening) = (StateChange::all(changes), self.opening(seq));
                let end = match end {
                    End::Done(value) => ItemEnd::Done(self.whole(asked, seq, &value).await?),
                    End::Failed(value) => ItemEnd::Failed(self.whole(asked, seq, &value).await?),
                    End::Skipped(reason) => ItemEnd::Skipped { reason },
                };
                self.told(asked, RecordItem { opening, end, changes }, Durability::Synced).await
            }
            Deed::ReturnItem { seq } => {
                let opening = self.opening(seq);
                self.openings.lock().forget(self.run, Seq(seq));
                self.told(asked, ReturnItem { opening }, Durability::Committed).await
            }
            Deed::ExpectItems { items } => {
                self.told(asked, ExpectItems { run: self.run, items }, Durability::Committed).await
            }
            Deed::NameSnapshot { name } => {
                let snapshot = Snapshot { run: self.run, id: self.id.clone(), name };
                self.told(asked, snapshot, Durability::Synced).await
            }
            Deed::Settle { seq, nano_usd, tokens } => {
                let attempt = self.work()?.actor.attempt;
                let (nano_usd, tokens) = (nano_usd.map(amount), amount(tokens));
                let settle = reservation::settlement(self.opening(seq), attempt, nano_usd, tokens);
                let told = self.told(asked, settle, Durability::Synced).await?;
                self.openings.lock().forget(self.run, Seq(seq));
                asked.host.wake();
                Ok(told)
            }
            Deed::End { .. } => Err(Error::UnknownSession),
            deed => self.open(asked, self.work()?, deed).await,
        }
    }

    /// Opens something in the name of the attempt.
    async fn open(&self, asked: &ApiRequest, work: &Work, deed: Deed) -> Answered<Error> {
        let (actor, slot) = (work.actor, work.slot);
        let scope = |scope: Option<String>| scope.map_or_else(|| iteration_scope(self.iteration), Into::into);
        match deed {
            Deed::BeginStep { key, scope: named, within, at_most_once, retries } => {
                let (scope, within) = (scope(named), within.map(Seq));
                let begin = BeginStep { actor, slot, scope, key, within, retries, at_most_once };
                let durability = if at_most_once { Durability::Synced } else { Durability::Committed };
                self.told(asked, begin, durability).await
            }
            Deed::ResolveStep { key, scope: named, seq, value, failed } => {
                let seen = match seq {
                    Some(seq) => {
                        let run = self.run;
                        asked.read(move |store| store.entry(run, Seq(seq))).await?.and_then(|e| e.instance)
                    }
                    None => Some(actor.instance),
                };
                let (by, value) = (Some(actor.instance), Payload::encode(value.get().as_bytes()));
                let resolve =
                    ResolveStep { run: self.run, scope: scope(named), key, seen, by, value, failed };
                self.told(asked, resolve, Durability::Synced).await
            }
            Deed::CountLoop { key } => {
                let turn = CountLoop { actor, slot, iteration: self.iteration, key };
                self.told(asked, turn, Durability::Synced).await
            }
            Deed::SaveCheckpoint { name, value } => {
                let name = CheckpointName::of_agent(&*name).ok_or_else(|| {
                    Error::bad(format!("a checkpoint's name cannot begin with {OURS:?}, had {name:?}"))
                })?;
                let value = Payload::encode(value.get().as_bytes());
                self.told(asked, Checkpoint { actor, slot, name, value }, Durability::Synced).await
            }
            Deed::Put { changes } => {
                let put =
                    Put { actor: Some((actor, slot)), changes: StateChange::all(changes), transaction: None };
                self.told(asked, put, Durability::Synced).await
            }
            Deed::Reserve { label, nano_usd, tokens } => {
                let at = (actor, slot, self.iteration);
                let entropy = asked.host.node.entropy();
                let admit = reservation::admission(at, &label, amount(nano_usd), amount(tokens), entropy);
                self.told(asked, admit, Durability::Synced).await
            }
            Deed::ClaimItem { key, index, content, version, on_change, on_version, alone } => {
                let digest = |text: Option<String>| text.map(|text| Digest::of(text.as_bytes()));
                let (content, version) = (digest(content), digest(version));
                let claim =
                    ClaimItem { actor, slot, key, index, content, version, on_change, on_version, alone };
                self.told(asked, claim, Durability::Committed).await
            }
            Deed::NextTry { seq } => {
                let next = NextTry { actor, slot, opening: self.opening(seq) };
                self.told(asked, next, Durability::Committed).await
            }
            // The deeds that open nothing.
            _ => Err(Error::UnknownSession),
        }
    }

    /// Returns the attempt of the session. Errors: `run_completed` where it only replays.
    fn work(&self) -> Result<&Work, Error> {
        self.work.as_ref().ok_or_else(|| Error::RunCompleted { run: self.id.to_string() })
    }

    /// Returns the opening of an entry that the session has open. Without one, a closing gets `already_taken`.
    fn opening(&self, seq: i64) -> outlast_core::journal::Opening {
        self.openings.lock().of(self.run, Seq(seq))
    }

    /// Stores all parts of a long value but the last, which it returns.
    async fn whole(&self, asked: &ApiRequest, seq: i64, value: &RawValue) -> Result<Payload, Error> {
        let value = Payload::encode(value.get().as_bytes());
        let (parts, last) = StorePart::before(self.opening(seq), Role::Value, value);
        for part in parts {
            asked.host.store.ask(part, Durability::Committed).await?;
        }
        Ok(last)
    }

    /// Submits an operation, and answers with its outcome.
    async fn told(&self, asked: &ApiRequest, op: impl Into<Op>, durability: Durability) -> Answered<Error> {
        let outcome = asked.host.store.submit(op.into(), durability).await;
        match &outcome {
            Ok(outcome) => self.openings.lock().note(self.run, outcome),
            Err(store::Error::Engine(e)) => self.openings.lock().note_failure(self.run, e),
            Err(_) => {}
        }
        let told: Value = match outcome? {
            Outcome::Begun(Step::Done { seq }) => return json(&self.value(asked, seq).await?),
            Outcome::Begun(Step::Run { opening, begun_before, tries, .. }) => {
                json!({ "seq": opening.seq.0, "state": "open", "begun_before": begun_before, "tries": tries })
            }
            Outcome::Begun(Step::InDoubt { seq }) => json!({ "seq": seq.0, "state": "in_doubt" }),
            Outcome::Recorded(seq)
            | Outcome::StepResolved(seq)
            | Outcome::Saved(seq)
            | Outcome::Named(seq) => {
                json!({ "seq": seq.0 })
            }
            Outcome::Turned(Turn::Counted { loops }) => json!({ "loops": loops }),
            Outcome::Turned(Turn::Refused(refusal)) | Outcome::Admitted(Admission::Refused(refusal)) => {
                asked.host.metrics.refused(&refusal.code);
                asked.host.wake();
                return Err(Error::Halted { refusal: Box::new(refusal) });
            }
            Outcome::Admitted(Admission::Go { opening, .. }) => {
                self.openings.lock().keep(opening);
                json!({ "seq": opening.seq.0 })
            }
            Outcome::Admitted(Admission::Wait { refusal }) => json!({ "waits_for": refusal.message() }),
            Outcome::Tried(tries) => json!({ "try": tries }),
            Outcome::Put(done) => json!({ "commit": done.commit, "versions": done.versions }),
            Outcome::ItemClaimed(claim) => claimed(claim),
            Outcome::ItemEnded(item) => json!({
                "standing": item.standing.name(),
                "tries": item.tries,
                "cost_nano_usd": item.spent[Unit::CostNanoUsd],
            }),
            // The other operations of a session have nothing to tell.
            _ => json!({}),
        };
        json(&told)
    }

    async fn value(&self, asked: &ApiRequest, seq: Seq) -> Result<StepTold, Error> {
        let run = self.run;
        asked
            .read(move |store| {
                let Some(entry) = store.entry(run, seq)? else {
                    return Err(engine::Error::UnknownEntry { id: format!("#{run}"), seq: seq.0 }.into());
                };
                let value = match store.payload(run, seq, Role::Value)? {
                    Some(payload) => Some(raw(&payload)?),
                    None => None,
                };
                Ok(StepTold {
                    seq: seq.0,
                    key: entry.key.unwrap_or_default(),
                    state: entry.state.name(),
                    value,
                })
            })
            .await
            .map_err(Error::from)
    }

    async fn steps(&self, asked: &ApiRequest, after: Seq) -> Answered<Error> {
        let (run, scope) = (self.run, iteration_scope(self.iteration));
        let read = asked.read(move |store| {
            let page = store.steps(run, after, PAGE)?;
            let next = page.last().filter(|_| page.len() == PAGE).map(|(step, _)| step.seq.0);
            let own = page.into_iter().filter(|(step, _)| step.scope == scope);
            let steps = own.map(|(step, value)| {
                let value = value.filter(|_| step.state == State::Done);
                let value = value.as_ref().map(raw).transpose()?;
                Ok::<_, store::Error>(StepTold {
                    seq: step.seq.0,
                    key: step.key,
                    state: step.state.name(),
                    value,
                })
            });
            Ok((steps.collect::<Result<Vec<_>, store::Error>>()?, next))
        });
        let (steps, next) = read.await?;
        json(&Told { rows: steps, next })
    }

    async fn items(&self, asked: &ApiRequest, after: Seq) -> Answered<Error> {
        let run = self.run;
        let read = asked.read(move |store| {
            let page = store.items(run, &Page::new(after, PAGE).with_values())?;
            let next = page.last().filter(|_| page.len() == PAGE).map(|(row, _)| row.seq.0);
            let items = page.into_iter().map(|(row, value)| item(row, value.as_ref()));
            Ok((items.collect::<Result<Vec<_>, store::Error>>()?, next))
        });
        let (items, next) = read.await?;
        json(&Told { rows: items, next })
    }

    async fn checkpoint(&self, asked: &ApiRequest, name: String) -> Answered<Error> {
        let run = self.run;
        let sought = Sought::done(Kind::Checkpoint, &name);
        let newest = asked.read(move |store| store.newest(run, &sought)).await?;
        match newest {
            Some(entry) => json(&self.value(asked, entry.seq).await?),
            None => json(&json!({})),
        }
    }
}

/// Page of rows, and the entry after which the next one begins.
#[derive(Serialize)]
struct Told<T> {
    rows: Vec<T>,
    next: Option<i64>,
}

fn item(row: ItemRow, value: Option<&Payload>) -> Result<ItemTold, store::Error> {
    let d = &row.detail;
    let value = value.filter(|_| d.standing != Standing::Open).map(raw).transpose()?;
    Ok(ItemTold {
        seq: row.seq.0,
        standing: d.standing.name(),
        tries: d.tries(),
        cost_nano_usd: row.spent.cost(),
        content: d.content.map(|digest| digest.to_string()),
        version: d.version.map(|digest| digest.to_string()),
        value,
        key: row.key,
    })
}

fn claimed(claim: ItemClaim) -> Value {
    match claim {
        ItemClaim::Run(item) => json!({
            "claim": "run",
            "seq": item.opening.seq.0,
            "tries": item.tries,
            "continued": item.continued,
            "deaths": item.deaths,
            "steps": &*item.steps,
        }),
        ItemClaim::Ended { seq, standing } => {
            json!({ "claim": "ended", "seq": seq.0, "standing": standing.name() })
        }
        ItemClaim::Held { seq } => json!({ "claim": "held", "seq": seq.0 }),
        ItemClaim::Suspect { seq, deaths } => json!({ "claim": "suspect", "seq": seq.0, "deaths": deaths }),
        ItemClaim::Changed { seq } => json!({ "claim": "changed", "seq": seq.0 }),
    }
}

fn amount(whole: u64) -> i64 {
    i64::try_from(whole).unwrap_or(i64::MAX)
}

/// Returns a recorded value as it was written. One that is no JSON becomes `null`: another program wrote it.
fn raw(payload: &Payload) -> Result<Box<RawValue>, store::Error> {
    let bytes = payload.decode().map_err(|e| store::Error::Corrupt { what: e.to_string() })?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned()))
}

async fn get(asked: &ApiRequest, namespace: String, agent: String, key: String) -> Answered<Error> {
    #[derive(Serialize)]
    struct Got {
        version: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<Box<RawValue>>,
    }
    let item = asked.read(move |store: &dyn Store| store.state(&namespace, &agent, &key)).await?;
    let (version, value) = item.map_or((0, None), |item| (item.version, item.value));
    let text = value.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    json(&Got { version, value: text.and_then(|text| RawValue::from_string(text).ok()) })
}
