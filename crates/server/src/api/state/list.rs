//! Routes over many keys: namespaces, agents, keys, scan, and the resume point of a loop.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::Response;
use outlast_core::{
    state::{At, Position},
    store::state::Scan,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::show;
use crate::{
    api::request::{ApiRequest, json},
    state::Error,
    wire::body::AnswerBody,
};

/// Namespace of a request that names none.
pub const NAMESPACE: &str = "default";

const KEYS: usize = 1_000;
const MOST_KEYS: usize = 10_000;
const VALUES: usize = 100;
const MOST_VALUES: usize = 1_000;

pub async fn keys(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    let scan = scan_of(&asked, KEYS, MOST_KEYS).await?;
    let (keys, scan) = asked.read(move |s| Ok((s.state_keys(&scan)?, scan))).await?;
    let cursor = keys.last().filter(|_| keys.len() == scan.limit).map(|k| cursor(scan.at, &k.key));
    let keys: Vec<Value> = keys.iter().map(show::listed).collect();
    json(&json!({ "keys": keys, "cursor": cursor }))
}

/// Lists the namespaces whose names follow `after`, in the order of their UTF-8 bytes. A short page is the last.
pub async fn namespaces(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    let (after, limit) = (asked.query.text("after").map(str::to_owned), asked.query.limit(KEYS, MOST_KEYS)?);
    let found = asked.read(move |s| s.namespaces(after, limit)).await?;
    json(&json!({ "namespaces": found.iter().map(show::namespace).collect::<Vec<Value>>() }))
}

/// Lists the agents of a namespace whose names follow `after`, in the order of their UTF-8 bytes.
pub async fn agents(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    let (namespace, limit) = (asked.query.or("namespace", NAMESPACE), asked.query.limit(KEYS, MOST_KEYS)?);
    let after = asked.query.text("after").map(str::to_owned);
    let found = asked.read(move |s| s.agents(&namespace, after, limit)).await?;
    json(&json!({ "agents": found }))
}

pub async fn scan(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
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

pub async fn resume_point(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
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
        "t" => At::Time(outlast_core::words::id::Micros(number)),
        "p" => At::Position(Position(number)),
        _ => return Err(bad()),
    };
    Ok((at, key.to_owned()))
}
