//! Questions about the state: what its REST answers by a GET, and an engine in the process of who asks.
//!
//! The words of a question are the parameters of its route, and the names in the route's path.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use outlast_core::{
    state::{At, Position},
    store::{
        Store, Which,
        state::{EventRange, Scan},
    },
    words::Micros,
};
use serde::Serialize;
use serde_json::json;

use super::{
    NAMESPACE,
    show::{self, Runs, Version},
};
use crate::{
    api::request::Query,
    state::{Commits, Error, PAGE},
};

/// Default number of versions in a page of a history.
const HISTORY: usize = 100;
const MOST: usize = 1_000;

const KEYS: usize = 1_000;
const MOST_KEYS: usize = 10_000;
const VALUES: usize = 100;
const MOST_VALUES: usize = 1_000;

/// Answers a question in JSON. Blocks on the store.
pub(crate) type Read = fn(&dyn Store, &mut Runs, &Query) -> Result<Vec<u8>, Error>;

/// Answers a question by its name, without a server. Errors: those of the route with that name; `bad_request` without one.
/// `runs`: those whose ids are known.
pub fn answer(
    store: &dyn Store,
    runs: &mut Runs,
    question: &str,
    words: Vec<(String, String)>,
) -> Result<Vec<u8>, Error> {
    let read: Read = match question {
        "version" => |store, runs, query| text(&version(store, runs, query)?),
        "history" => history,
        "keys" => keys,
        "scan" => scan,
        "namespaces" => namespaces,
        "agents" => agents,
        "resume_point" => resume_point,
        "replay" => replay,
        other => return Err(Error::BadRequest(format!("{other:?} is no question about the state"))),
    };
    read(store, runs, &Query::of(words))
}

fn text(body: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(body).map_err(|e| Error::BadValue(e.to_string()))
}

/// Returns the names of the key that is asked about: namespace, agent, key.
fn place(query: &Query) -> Result<[String; 3], Error> {
    Ok([query.wanted("namespace")?, query.wanted("agent")?, query.wanted("key")?])
}

/// Returns a version of a key, the newest unless the query names another; `None` if there is none. A deleted key has one
/// without a value. A position is named in this process only.
pub(crate) fn version(store: &dyn Store, runs: &mut Runs, query: &Query) -> Result<Option<Version>, Error> {
    let which = match (query.number("version")?, query.number("position")?, query.at()?) {
        (Some(version), None, At::Newest) => Which::Version(version),
        (None, Some(position), At::Newest) => At::Position(Position(position)).into(),
        (None, None, at) => at.into(),
        _ => return Err(Error::BadRequest("version excludes commit and time".into())),
    };
    let [namespace, agent, key] = place(query)?;
    let item = store.state_at(&namespace, &agent, &key, which)?;
    Ok(item.map(|item| runs.item(store, &item)).transpose()?)
}

/// Page of a key's history. Values are written as they are stored.
#[derive(Serialize)]
struct History {
    versions: Vec<Version>,
    oldest: i64,
    /// Version after which the next page begins; `None` on the last page.
    after: Option<i64>,
}

pub(crate) fn history(store: &dyn Store, runs: &mut Runs, query: &Query) -> Result<Vec<u8>, Error> {
    let [namespace, agent, key] = place(query)?;
    let (after, limit) = (query.number("after")?.unwrap_or(0), query.limit(HISTORY, MOST)?);
    let found = store.state_history(&namespace, &agent, &key, after, limit)?;
    let versions = found.items.iter().map(|i| runs.version(store, i)).collect::<Result<_, _>>()?;
    let after = found.items.last().filter(|_| found.items.len() == limit).map(|i| i.version);
    text(&History { versions, oldest: found.oldest, after })
}

pub(crate) fn keys(store: &dyn Store, _: &mut Runs, query: &Query) -> Result<Vec<u8>, Error> {
    let scan = scan_of(store, query, KEYS, MOST_KEYS)?;
    let keys = store.state_keys(&scan)?;
    let cursor = keys.last().filter(|_| keys.len() == scan.limit).map(|k| cursor(scan.at, &k.key));
    let keys: Vec<_> = keys.iter().map(show::listed).collect();
    text(&json!({ "keys": keys, "cursor": cursor }))
}

/// Lists the namespaces whose names follow `after`, in the order of their UTF-8 bytes. A short page is the last.
pub(crate) fn namespaces(store: &dyn Store, _: &mut Runs, query: &Query) -> Result<Vec<u8>, Error> {
    let after = query.text("after").map(str::to_owned);
    let found = store.namespaces(after, query.limit(KEYS, MOST_KEYS)?)?;
    text(&json!({ "namespaces": found.iter().map(show::namespace).collect::<Vec<_>>() }))
}

/// Lists the agents of a namespace whose names follow `after`, in the order of their UTF-8 bytes.
pub(crate) fn agents(store: &dyn Store, _: &mut Runs, query: &Query) -> Result<Vec<u8>, Error> {
    let after = query.text("after").map(str::to_owned);
    let agents = store.agents(&query.or("namespace", NAMESPACE), after, query.limit(KEYS, MOST_KEYS)?)?;
    text(&json!({ "agents": agents }))
}

/// Page of a scan. Values are written as they are stored.
#[derive(Serialize)]
struct Scanned {
    items: Vec<Version>,
    cursor: Option<String>,
}

pub(crate) fn scan(store: &dyn Store, runs: &mut Runs, query: &Query) -> Result<Vec<u8>, Error> {
    let scan = scan_of(store, query, VALUES, MOST_VALUES)?;
    let found = store.state_scan(&scan)?;
    let cursor = found.last().filter(|_| found.len() == scan.limit).map(|i| cursor(scan.at, &i.key));
    let items = found.iter().map(|i| runs.version(store, i)).collect::<Result<_, _>>()?;
    text(&Scanned { items, cursor })
}

pub(crate) fn resume_point(store: &dyn Store, _: &mut Runs, query: &Query) -> Result<Vec<u8>, Error> {
    let (namespace, agent) = (query.or("namespace", NAMESPACE), query.wanted("agent")?);
    text(&show::resume_point(&store.resume_point(&namespace, &agent, &query.or("prefix", "step:"))?))
}

/// Page of a replay that nobody streams.
#[derive(Serialize)]
struct Replayed {
    /// Whether compaction has removed versions from the page.
    compacted: bool,
    /// Commits by the position after which the next page begins. None follow an empty page.
    commits: Vec<(i64, Option<show::Commit>)>,
    /// The namespace's newest commit. Nothing is missing up to it where the page is empty.
    head: i64,
}

fn replay(store: &dyn Store, runs: &mut Runs, query: &Query) -> Result<Vec<u8>, Error> {
    let range = range(query)?;
    let head = store.namespace(&range.namespace)?.map_or(0, |n| n.commit);
    let mut commits = Commits::new(range);
    let page = commits.page(store)?;
    let compacted = commits.compacted();
    let commits = page.iter().map(|events| runs.positioned(store, events)).collect::<Result<_, _>>()?;
    text(&Replayed { compacted, commits, head })
}

/// Reads the range of a replay.
pub(crate) fn range(query: &Query) -> Result<EventRange, Error> {
    Ok(EventRange {
        namespace: query.or("namespace", NAMESPACE),
        agent: query.wanted("agent")?,
        from: query.moment("from_commit", "from_time")?,
        to: query.moment("to_commit", "to_time")?,
        after: Position(query.number("after")?.unwrap_or(0)),
        limit: PAGE,
    })
}

/// Reads the scan that a query asks for. Later pages use the position of the first, so that all show one moment.
fn scan_of(store: &dyn Store, query: &Query, default: usize, most: usize) -> Result<Scan, Error> {
    let (namespace, agent) = (query.or("namespace", NAMESPACE), query.wanted("agent")?);
    let (prefix, limit) = (query.or("prefix", ""), query.limit(default, most)?);
    let (at, after) = match query.text("cursor") {
        Some(text) => read_cursor(text).map(|(at, after)| (at, Some(after)))?,
        None => match query.at()? {
            At::Newest => (At::Position(store.state_position()?), None),
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
