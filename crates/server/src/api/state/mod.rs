//! REST over the state, below `/v1/state/`: keys and their versions, lists, transactions, and how many versions are kept.
//!
//! Times are microseconds since the Unix epoch.

pub mod ask;
pub(super) mod replay;
pub mod show;

use std::sync::Arc;

use outlast_core::{
    engine::{self, Change, Retain},
    state::{Committed, Name, Owner, Retention},
    store::{self, Store},
};
use outlast_view::Time;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use self::show::{Kept, Runs};
use super::request::{Answered, ApiRequest, Query, json, of_type};
use crate::{
    state::{Error, retention},
    wire::body::JSON,
    work::there,
};

/// Answers a request by what `read` reads. The segments of its path are words of the question.
pub(super) async fn reads(asked: ApiRequest, read: ask::Read) -> Answered {
    Ok(of_type(read_by(&asked, read).await?, JSON))
}

async fn read_by<T: Send + 'static>(
    asked: &ApiRequest,
    read: fn(&dyn Store, &mut Runs, &Query) -> Result<T, Error>,
) -> Result<T, Error> {
    let query = asked.query.with_key(&asked.path);
    asked.read(move |store| Ok(read(store, &mut Runs::default(), &query))).await?
}

pub(super) async fn get(asked: ApiRequest) -> Answered {
    let name = name(&asked);
    match read_by(&asked, ask::version).await? {
        Some(version) if !version.deleted => json(&version),
        found => Err(Error::NoSuchKey {
            namespace: name.namespace.clone(),
            agent: name.agent.clone(),
            key: name.key.clone(),
            deleted_in: found.map(|version| version.version),
        }),
    }
}

pub(super) async fn put(asked: ApiRequest) -> Answered {
    let raw: &RawValue = serde_json::from_slice(&asked.body)
        .map_err(|e| Error::BadRequest(format!("the body is not JSON: {e}")))?;
    let change = asked.api.desk.set(name(&asked), show::value_text(raw)).await;
    one(asked, change).await
}

pub(super) async fn delete(asked: ApiRequest) -> Answered {
    let change = Change::delete(name(&asked));
    one(asked, change).await
}

async fn one(asked: ApiRequest, change: Change) -> Answered {
    let change = Change { expected: asked.query.number("expected_version")?, ..change };
    let transaction = asked.query.text("transaction").map(Arc::from);
    let done = asked.api.desk.put(asked.writer(), vec![change], transaction).await?;
    json(&committed(&done))
}

/// Returns a commit as JSON: its number, its time and the versions that it made.
pub fn committed(done: &Committed) -> Value {
    json!({ "commit": done.commit, "at": Time(done.at), "versions": done.versions })
}

fn name(asked: &ApiRequest) -> Arc<Name> {
    match asked.path.as_slice() {
        [namespace, agent, key] => Name::new(namespace, agent, key),
        // Unreachable: the route's path has three `{…}` segments.
        _ => Name::new("", "", ""),
    }
}

/// Namespace of a request that names none.
pub const NAMESPACE: &str = "default";

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

pub(super) async fn transact(asked: ApiRequest) -> Answered {
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

pub(super) async fn outcome(asked: ApiRequest) -> Answered {
    let id = asked.query.wanted("id")?;
    let of = id.clone();
    match asked.read(move |s| s.transaction_outcome(&of)).await? {
        Some(done) => json(&committed(&done)),
        None => Err(asked.api.desk.unknown(&id)),
    }
}

pub(super) async fn kept(asked: ApiRequest) -> Answered {
    let namespace = asked.query.or("namespace", NAMESPACE);
    let of = namespace.clone();
    let found = asked.read(move |s| s.namespace(&of)).await?;
    json(&Kept::new(&namespace, found.map(|n| n.keep).unwrap_or_default(), None))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RetentionBody {
    keep: Value,
}

/// Sets how many versions of each key a namespace keeps, and removes older ones. Answers with the number removed.
pub(super) async fn keep(asked: ApiRequest) -> Answered {
    let namespace = asked.query.or("namespace", NAMESPACE);
    let wanted: RetentionBody = asked.json()?;
    let keep = match (wanted.keep.as_str(), wanted.keep.as_i64()) {
        (Some("all"), _) => Retention::All,
        (_, Some(n)) => Retention::Last(n),
        _ => {
            let text = format!("keep is {}, and \"all\" or a number of versions is wanted", wanted.keep);
            return Err(Error::BadRequest(text));
        }
    };
    let actor = asked.writer().actor()?;
    if actor.is_none() && Owner::of(&namespace) == Owner::Run {
        return Err(store::Error::from(engine::Error::ReadOnlyNamespace { namespace }).into());
    }
    let retain = Retain { actor, namespace: namespace.clone(), keep };
    let removed = asked.read(move |s| retention::retain(s, retain)).await?;
    json(&Kept::new(&namespace, keep, Some(removed)))
}
