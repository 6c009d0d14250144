//! Routes of one key: get, put, delete, history.

use std::sync::Arc;

use http::Response;
use outlast_core::{
    engine::state::put::Change,
    state::{Committed, Name},
    store::Which,
};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};

use super::show;
use crate::{
    api::request::{ApiRequest, json},
    state::Error,
    wire::body::AnswerBody,
};

/// Default number of versions in a page of a history.
const HISTORY: usize = 100;
const MOST: usize = 1_000;

pub async fn get(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    let (version, at) = (asked.query.number("version")?, asked.query.at()?);
    if version.is_some() && at != Default::default() {
        return Err(Error::BadRequest("version excludes commit and time".into()));
    }
    let name = name(&asked);
    let found = {
        let name = name.clone();
        let read = move |store: &dyn outlast_core::store::Store| {
            let Name { namespace, agent, key } = &*name;
            let item = match version {
                Some(version) => store.state_at(namespace, agent, key, Which::Version(version))?,
                None => store.state_at(namespace, agent, key, at.into())?,
            };
            let shown = item.as_ref().map(|i| show::Runs::default().item(store, i)).transpose()?;
            Ok(item.zip(shown))
        };
        asked.read(read).await?
    };
    match found {
        Some((item, shown)) if item.value.is_some() => json(&shown),
        found => Err(Error::NoSuchKey {
            namespace: name.namespace.clone(),
            agent: name.agent.clone(),
            key: name.key.clone(),
            deleted_in: found.map(|(item, _)| item.version),
        }),
    }
}

pub async fn put(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    let raw: &RawValue = serde_json::from_slice(&asked.body)
        .map_err(|e| Error::BadRequest(format!("the body is not JSON: {e}")))?;
    let change = asked.api.desk.set(name(&asked), show::value_text(raw)).await;
    one(asked, change).await
}

pub async fn delete(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    let change = Change::delete(name(&asked));
    one(asked, change).await
}

async fn one(asked: ApiRequest, change: Change) -> Result<Response<AnswerBody>, Error> {
    let change = Change { expected: asked.query.number("expected_version")?, ..change };
    let transaction = asked.query.text("transaction").map(Arc::from);
    let done = asked.api.desk.put(asked.writer(), vec![change], transaction).await?;
    json(&committed(&done))
}

pub async fn history(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    let name = name(&asked);
    let after = asked.query.number("after")?.unwrap_or(0);
    let limit = asked.query.limit(HISTORY, MOST)?;
    let (oldest, versions, last) = asked
        .read(move |store| {
            let found = store.state_history(&name.namespace, &name.agent, &name.key, after, limit)?;
            let mut runs = show::Runs::default();
            let versions: Vec<show::Version> =
                found.items.iter().map(|i| runs.version(store, i)).collect::<Result<_, _>>()?;
            let last = found.items.last().filter(|_| found.items.len() == limit).map(|i| i.version);
            Ok((found.oldest, versions, last))
        })
        .await?;
    json(&History { versions, oldest, after: last })
}

/// A page of a key's history. Values are written as they are stored.
#[derive(Serialize)]
struct History {
    versions: Vec<show::Version>,
    oldest: i64,
    /// Version after which the next page begins; `None` on the last page.
    after: Option<i64>,
}

/// Returns a commit as JSON: its number, its time and the versions that it made.
pub fn committed(done: &Committed) -> Value {
    json!({ "commit": done.commit, "at": outlast_view::Time(done.at), "versions": done.versions })
}

fn name(asked: &ApiRequest) -> Arc<Name> {
    match asked.path.as_slice() {
        [namespace, agent, key] => Name::new(namespace, agent, key),
        // Unreachable: the route's path has three `{…}` segments.
        _ => Name::new("", "", ""),
    }
}
