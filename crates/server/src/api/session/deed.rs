//! Deeds of a session: what a program does in its run, each one operation of the engine or one read.

use outlast_core::{
    engine::{self, Admission, Outcome, Step, Turn},
    envelope::Unit,
    journal::{ItemClaim, ItemRow, Kind, Payload, Role, State, iteration_scope, job::Standing},
    store::{self, Ask as _, Durability, Page, Sought, Store},
    words::Seq,
};
use outlast_view::shape;
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};

use super::{Session, Work};
use crate::{
    api::{
        error::Error,
        request::{Answered, ApiRequest, json},
    },
    node::Word,
    work::{self, Deed, Task},
};

/// Most steps and items of one answer.
const PAGE: usize = 1_000;

shape! {
    /// Step, or another entry with a value.
    StepTold(seq: Seq, key: String, state: State, value: Option<Box<RawValue>>) {
        seq: i64 = seq.0;
        key: String = key;
        state: &'static str = state.name();
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<Box<RawValue>> = value;
    }
}

shape! {
    /// Item of a batch job.
    ItemTold(row: &ItemRow, value: Option<Box<RawValue>>; let d = &row.detail) {
        seq: i64 = row.seq.0;
        key: String = row.key.clone();
        standing: &'static str = d.standing.name();
        tries: i64 = d.tries();
        cost_nano_usd: i64 = row.spent.cost();
        content: Option<String> = d.content.map(|digest| digest.to_string());
        version: Option<String> = d.version.map(|digest| digest.to_string());
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<Box<RawValue>> = value;
    }
}

impl Session {
    /// Carries a deed out. Durable before it answers, but for openings, which survive `kill -9`.
    pub(super) async fn carry_out(&self, asked: &ApiRequest, deed: Deed) -> Answered<Error> {
        match deed {
            Deed::Steps { after } => self.steps(asked, Seq(after)).await,
            Deed::Items { after } => self.items(asked, Seq(after)).await,
            Deed::Value { seq } => json(&self.value(asked, Seq(seq)).await?),
            Deed::LatestCheckpoint { name } => self.checkpoint(asked, name).await,
            Deed::Get { namespace, agent, key } => get(asked, namespace, agent, key).await,
            deed => {
                let settled = if let Deed::Settle { seq, .. } = deed { Some(Seq(seq)) } else { None };
                let task = self.task(asked, deed).await?;
                match self.work.as_ref().filter(|_| task.opens).map_or(Word::GoOn, Work::word) {
                    Word::GoOn => {}
                    Word::Stop => return Err(Error::StopRequested { run: self.hand.id.to_string() }),
                    Word::Lost => return Err(store::Error::from(engine::Error::InstanceDead).into()),
                    Word::Away => asked.host.opening().await?,
                }
                let told = self.told(asked, task).await?;
                if let Some(seq) = settled {
                    self.hand.openings.lock().forget(self.hand.run, seq);
                    asked.host.wake();
                }
                Ok(told)
            }
        }
    }

    /// Returns the operation that a deed is. Errors: `run_completed` where it wants an attempt, and the session has none.
    async fn task(&self, asked: &ApiRequest, deed: Deed) -> Result<Task, Error> {
        let (hand, host) = (self.hand.clone(), asked.host.clone());
        let reads = matches!(deed, Deed::ResolveStep { .. });
        let task = move |store: &dyn Store| hand.task(store, host.node.entropy(), deed);
        let task = match reads {
            true => asked.read(move |store| Ok(task(store))).await?,
            false => task(asked.host.store.as_ref()),
        };
        task.map_err(|e| match e {
            work::Error::Store(e) => e.into(),
            work::Error::Replays => Error::RunCompleted { run: self.hand.id.to_string() },
            work::Error::NoOperation => Error::UnknownSession,
            name @ work::Error::CheckpointName(_) => Error::bad(name.to_string()),
        })
    }

    /// Submits the operation of a deed, and answers with its outcome.
    async fn told(&self, asked: &ApiRequest, task: Task) -> Answered<Error> {
        for part in task.parts {
            asked.host.store.ask(part, Durability::Committed).await?;
        }
        let outcome = asked.host.store.submit(task.op, task.durability).await;
        self.hand.note(&outcome);
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
            Outcome::Admitted(Admission::Go { opening, .. }) => json!({ "seq": opening.seq.0 }),
            Outcome::Admitted(Admission::Wait { refusal }) => json!({ "waits_for": refusal.message() }),
            Outcome::Tried(tries) => json!({ "try": tries }),
            Outcome::Put(done) => json!({ "commit": done.commit, "versions": done.versions }),
            Outcome::ItemClaimed(claim) => claimed(claim),
            Outcome::ItemSpared(standing) => json!({ "standing": standing.name() }),
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
        let run = self.hand.run;
        asked
            .read(move |store| {
                let Some(entry) = store.entry(run, seq)? else {
                    return Err(engine::Error::UnknownEntry { id: format!("#{run}"), seq: seq.0 }.into());
                };
                let value = store.payload(run, seq, Role::Value)?.as_ref().map(raw).transpose()?;
                Ok(StepTold::new(seq, entry.key.unwrap_or_default(), entry.state, value))
            })
            .await
            .map_err(Error::from)
    }

    async fn steps(&self, asked: &ApiRequest, after: Seq) -> Answered<Error> {
        let (run, scope) = (self.hand.run, iteration_scope(self.hand.iteration));
        let read = asked.read(move |store| {
            let page = store.steps(run, after, PAGE)?;
            let next = page.last().filter(|_| page.len() == PAGE).map(|(step, _)| step.seq.0);
            let own = page.into_iter().filter(|(step, _)| step.scope == scope);
            let steps = own.map(|(step, value)| {
                let value = value.filter(|_| step.state == State::Done);
                let value = value.as_ref().map(raw).transpose()?;
                Ok::<_, store::Error>(StepTold::new(step.seq, step.key, step.state, value))
            });
            Ok((steps.collect::<Result<Vec<_>, store::Error>>()?, next))
        });
        let (steps, next) = read.await?;
        json(&Told { rows: steps, next })
    }

    async fn items(&self, asked: &ApiRequest, after: Seq) -> Answered<Error> {
        let run = self.hand.run;
        let read = asked.read(move |store| {
            let page = store.items(run, &Page::new(after, PAGE).with_values())?;
            let next = page.last().filter(|_| page.len() == PAGE).map(|(row, _)| row.seq.0);
            let items = page.iter().map(|(row, value)| {
                let value = value.as_ref().filter(|_| row.detail.standing != Standing::Open);
                Ok(ItemTold::new(row, value.map(raw).transpose()?))
            });
            Ok((items.collect::<Result<Vec<_>, store::Error>>()?, next))
        });
        let (items, next) = read.await?;
        json(&Told { rows: items, next })
    }

    async fn checkpoint(&self, asked: &ApiRequest, name: String) -> Answered<Error> {
        let run = self.hand.run;
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
