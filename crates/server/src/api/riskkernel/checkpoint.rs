//! Routes of checkpoints: save one, read the newest.

use outlast_core::{
    engine::{
        Checkpoint,
        checkpoint::{Name, OURS, Used},
    },
    journal::{Entry, Payload, Role},
    reads::entries::{damaged, kept, newest_saved},
    store::{self, Ask as _, Durability, Store},
    words::{RunNo, Seq, calendar::rfc3339},
};
use outlast_view::shape;
use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::{
    Act, Error,
    run::{Counted, Tokens, Usage},
};
use crate::api::request::{Answered, ApiRequest, created, json};

/// Bytes above which a payload is compressed on a blocking thread, so that other requests do not wait.
const LARGE: usize = 64 << 10;

#[derive(Default, Deserialize)]
#[serde(default)]
struct CheckpointBody {
    name: Option<String>,
    payload: Option<Box<RawValue>>,
}

pub async fn save(asked: ApiRequest) -> Answered<Error> {
    let run = asked.run_to(Act::Enter).await?.run.no;
    let wanted: CheckpointBody = asked.json()?;
    let name = wanted.name.unwrap_or_default();
    let reserved =
        || Error::bad(format!("the name {name:?} begins with {OURS}, under which Outlast keeps its own"));
    let name = Name::of_agent(&*name).ok_or_else(reserved)?;
    let text = wanted.payload.map_or_else(|| "{}".to_owned(), |raw| raw.get().trim().to_owned());
    if !text.starts_with('{') {
        return Err(Error::bad("payload has to be a JSON object"));
    }
    let value = encoded(text).await?;
    let saved = async {
        let (actor, entered) = asked.enter(run).await?;
        let checkpoint = Checkpoint { actor, slot: entered.slot, name, value };
        Ok(asked.host.store.ask(checkpoint, Durability::Synced).await?)
    };
    asked.working(run, saved.await).await?;
    created(&json!({ "ok": true }))
}

async fn encoded(text: String) -> Result<Payload, Error> {
    if text.len() <= LARGE {
        return Ok(Payload::encode(text.as_bytes()));
    }
    let encoding = tokio::task::spawn_blocking(move || Payload::encode(text.as_bytes()));
    Ok(encoding.await.map_err(|_| store::Error::Closed)?)
}

shape! {
    /// The newest checkpoint of a run.
    #[serde(rename_all = "camelCase")]
    Latest(run_id: String, entry: &Entry, used: &Used, counted: Counted, value: Box<RawValue>) {
        run_id: String = run_id;
        name: String = entry.key.clone().unwrap_or_default();
        /// Number of loops that the run had counted when the checkpoint was saved.
        step_index: i64 = used.loops;
        usage: Usage = Usage::new(used, counted);
        payload: Box<RawValue> = object(value);
        created_at: String = rfc3339(entry.opened_at);
    }
}

pub async fn latest(asked: ApiRequest) -> Answered<Error> {
    let run = asked.run().await?.run;
    let id = run.id.to_string();
    let found = asked.read(move |store| read(store, run.no, run.id.to_string())).await?;
    json(&found.ok_or(Error::NoCheckpoint { run: id })?)
}

fn read(store: &dyn Store, run: RunNo, run_id: String) -> Result<Option<Latest>, store::Error> {
    let Some(entry) = newest_saved(store, run)? else { return Ok(None) };
    let used: Used = of_checkpoint(store, run, entry.seq, Role::About)?;
    let counted = Tokens::by(store, run, entry.seq, entry.opened_at)?;
    let value = of_checkpoint(store, run, entry.seq, Role::Value)?;
    Ok(Some(Latest::new(run_id, &entry, &used, counted, value)))
}

fn of_checkpoint<T: serde::de::DeserializeOwned>(
    store: &dyn Store,
    run: RunNo,
    seq: Seq,
    role: Role,
) -> Result<T, store::Error> {
    let bytes = kept(store, run, seq, role)?.ok_or_else(|| damaged(seq, role, &"it is missing"))?;
    serde_json::from_slice(&bytes).map_err(|e| damaged(seq, role, &e))
}

/// Wraps a payload that is not an object, saved by another client, as the member `value` of one.
fn object(value: Box<RawValue>) -> Box<RawValue> {
    if value.get().starts_with('{') {
        return value;
    }
    RawValue::from_string(format!("{{\"value\":{}}}", value.get())).unwrap_or(value)
}
