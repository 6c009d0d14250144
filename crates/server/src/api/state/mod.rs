//! REST over the state, below `/v1/state/`: keys and their versions, lists, transactions, and how many versions are kept.
//!
//! Times are microseconds since the Unix epoch.

pub(super) mod replay;
pub mod show;

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use outlast_core::{
    engine::{self, Change, Retain},
    state::{At, Committed, Name, Owner, Position, Retention},
    store::{self, Store, Which, state::Scan},
    words::Micros,
};
use outlast_view::Time;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use self::show::Kept;
use super::request::{Answered, ApiRequest, json};
use crate::{
    state::{Error, retention},
    work::there,
};

/// Default number of versions in a page of a history.
const HISTORY: usize = 100;
const MOST: usize = 1_000;

pub(super) async fn get(asked: ApiRequest) -> Answered {
    let (version, at) = (asked.query.number("version")?, asked.query.at()?);
    if version.is_some() && at != Default::default() {
        return Err(Error::BadRequest("version excludes commit and time".into()));
    }
    let name = name(&asked);
    let found = {
        let name = name.clone();
        let read = move |store: &dyn Store| {
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

pub(super) async fn history(asked: ApiRequest) -> Answered {
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

const KEYS: usize = 1_000;
const MOST_KEYS: usize = 10_000;
const VALUES: usize = 100;
const MOST_VALUES: usize = 1_000;

pub(super) async fn keys(asked: ApiRequest) -> Answered {
    let scan = scan_of(&asked, KEYS, MOST_KEYS).await?;
    let (keys, scan) = asked.read(move |s| Ok((s.state_keys(&scan)?, scan))).await?;
    let cursor = keys.last().filter(|_| keys.len() == scan.limit).map(|k| cursor(scan.at, &k.key));
    let keys: Vec<Value> = keys.iter().map(show::listed).collect();
    json(&json!({ "keys": keys, "cursor": cursor }))
}

/// Lists the namespaces whose names follow `after`, in the order of their UTF-8 bytes. A short page is the last.
pub(super) async fn namespaces(asked: ApiRequest) -> Answered {
    let (after, limit) = (asked.query.text("after").map(str::to_owned), asked.query.limit(KEYS, MOST_KEYS)?);
    let found = asked.read(move |s| s.namespaces(after, limit)).await?;
    json(&json!({ "namespaces": found.iter().map(show::namespace).collect::<Vec<Value>>() }))
}

/// Lists the agents of a namespace whose names follow `after`, in the order of their UTF-8 bytes.
pub(super) async fn agents(asked: ApiRequest) -> Answered {
    let (namespace, limit) = (asked.query.or("namespace", NAMESPACE), asked.query.limit(KEYS, MOST_KEYS)?);
    let after = asked.query.text("after").map(str::to_owned);
    let found = asked.read(move |s| s.agents(&namespace, after, limit)).await?;
    json(&json!({ "agents": found }))
}

pub(super) async fn scan(asked: ApiRequest) -> Answered {
    let scan = scan_of(&asked, VALUES, MOST_VALUES).await?;
    let (items, cursor) = asked
        .read(move |store| {
            let items = store.state_scan(&scan)?;
            let cursor = items.last().filter(|_| items.len() == scan.limit).map(|i| cursor(scan.at, &i.key));
            let mut runs = show::Runs::default();
            let items: Result<Vec<show::Version>, _> = items.iter().map(|i| runs.version(store, i)).collect();
            Ok((items?, cursor))
        })
        .await?;
    json(&Scanned { items, cursor })
}

/// A page of a scan. Values are written as they are stored.
#[derive(Serialize)]
struct Scanned {
    items: Vec<show::Version>,
    cursor: Option<String>,
}

pub(super) async fn resume_point(asked: ApiRequest) -> Answered {
    let (namespace, agent) = (asked.query.or("namespace", NAMESPACE), asked.query.wanted("agent")?);
    let prefix = asked.query.or("prefix", "step:");
    let point = asked.read(move |s| s.resume_point(&namespace, &agent, &prefix)).await?;
    json(&show::resume_point(&point))
}

/// Reads the scan that a query asks for. Later pages use the position of the first, so that all show one moment.
async fn scan_of(asked: &ApiRequest, default: usize, most: usize) -> Result<Scan, Error> {
    let query = &asked.query;
    let (namespace, agent) = (query.or("namespace", NAMESPACE), query.wanted("agent")?);
    let (prefix, limit) = (query.or("prefix", ""), query.limit(default, most)?);
    let (at, after) = match query.text("cursor") {
        Some(text) => read_cursor(text).map(|(at, after)| (at, Some(after)))?,
        None => match query.at()? {
            At::Newest => (At::Position(asked.read(|s| s.state_position()).await?), None),
            at => (at, None),
        },
    };
    Ok(Scan { namespace, agent, prefix, after, at, limit })
}

/// Encodes the cursor of the page after `key`, at the same moment: a letter for the kind of moment, its number, the
/// key.
fn cursor(at: At, key: &str) -> String {
    let moment = match at {
        At::Newest => "n:0".to_owned(),
        At::Commit(n) => format!("c:{n}"),
        At::Time(t) => format!("t:{}", t.0),
        At::Position(p) => format!("p:{}", p.0),
    };
    URL_SAFE_NO_PAD.encode(format!("{moment}:{key}"))
}

fn read_cursor(text: &str) -> Result<(At, String), Error> {
    let bad = || Error::BadRequest("the cursor is none that was given here".into());
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| bad())?;
    let text = String::from_utf8(bytes).map_err(|_| bad())?;
    let mut parts = text.splitn(3, ':');
    let (Some(letter), Some(number), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(bad());
    };
    let number: i64 = number.parse().map_err(|_| bad())?;
    let at = match letter {
        "n" => At::Newest,
        "c" => At::Commit(number),
        "t" => At::Time(Micros(number)),
        "p" => At::Position(Position(number)),
        _ => return Err(bad()),
    };
    Ok((at, key.to_owned()))
}

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
