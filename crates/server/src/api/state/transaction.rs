//! Routes of transactions: changes of many keys at once, and the outcome of a transaction whose answer was lost.

use std::sync::Arc;

use http::Response;
use outlast_core::{engine::state::put::Change, state::Name};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{item::committed, list::NAMESPACE, show};
use crate::{
    api::request::{ApiRequest, json},
    state::Error,
    wire::body::AnswerBody,
    work::there,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Transaction {
    /// The caller's own id. A transaction that is sent again under the same id is not applied again.
    #[serde(default)]
    id: Option<String>,
    changes: Vec<ChangeBody>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeBody {
    #[serde(default)]
    namespace: Option<String>,
    agent: String,
    key: String,
    #[serde(default, deserialize_with = "there")]
    value: Option<Box<RawValue>>,
    #[serde(default)]
    delete: bool,
    #[serde(default)]
    expected_version: Option<u32>,
}

pub async fn transact(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    let wanted: Transaction = asked.json()?;
    let mut changes = Vec::with_capacity(wanted.changes.len());
    for one in wanted.changes {
        let namespace = one.namespace.unwrap_or_else(|| NAMESPACE.to_owned());
        let name = Name::new(namespace, one.agent, one.key);
        let change = match (one.value, one.delete) {
            (Some(value), false) => asked.api.desk.set(name, show::value_text(&value)).await,
            (None, true) => Change::delete(name),
            _ => {
                let key = &name.key;
                let text = format!("the change of {key:?} has to have a value, or else \"delete\": true");
                return Err(Error::BadRequest(text));
            }
        };
        changes.push(Change { expected: one.expected_version.map(i64::from), ..change });
    }
    let done = asked.api.desk.put(asked.writer(), changes, wanted.id.map(Arc::from)).await?;
    json(&committed(&done))
}

pub async fn outcome(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    let id = asked.query.wanted("id")?;
    let of = id.clone();
    match asked.read(move |s| s.transaction_outcome(&of)).await? {
        Some(done) => json(&committed(&done)),
        None => Err(asked.api.desk.unknown(&id)),
    }
}
