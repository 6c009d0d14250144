//! Rows as the store has them, for the commands of another machine's `outlast --server`: see [`crate::remote`].
//!
//! Each route below `/v1/rows/` is one read of the store's trait. Their shapes are those of this version, [`SHAPES`];
//! programs read the other routes. Values of variables and price files are left out: no command prints them.

use http::Response;
use outlast_core::{
    journal::{Kind, Role},
    reads::{plans, snapshots},
    run::{snapshot::Kept, status::Status},
    store::{self, Page, RunFilter, RunView, Sought, Store, filter::ApprovalFilter},
    words::id::{InstanceNo, Micros, RunId, RunNo, Seq},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    api::{
        query::Query,
        request::{ApiRequest, json, of_type},
    },
    state::Error,
    version,
    wire::body::AnswerBody,
};

/// Number of the rows' shapes. A server and a client have to have the same.
pub const SHAPES: i64 = 1;

/// Default number of rows in a page. `MOST` is the largest.
const PAGE: usize = 500;
const MOST: usize = 2_000;

/// Number of neighbouring entries whose payloads are sent along with the requested one; `NEIGHBOURS_LEN`:
/// size in bytes at which no further one is added.
pub const NEIGHBOURS: i64 = 64;
const NEIGHBOURS_LEN: usize = 4 << 20;

/// Run's row, spec and envelope, in the JSON that is sent between Outlast's server and its commands.
#[derive(Serialize, Deserialize)]
pub struct RunRow {
    pub run: outlast_core::run::Run,
    pub spec: outlast_core::run::Spec,
    pub envelope: outlast_core::envelope::Envelope,
}

impl From<RunRow> for RunView {
    fn from(row: RunRow) -> RunView {
        RunView { run: row.run, spec: row.spec, envelope: row.envelope }
    }
}

/// Returns the row without values that only the next start of the run's command needs: environment, price
/// file, upstreams.
fn shown(view: RunView) -> RunRow {
    let RunView { run, mut spec, envelope } = view;
    if let Some(command) = &mut spec.command {
        command.env.clear();
    }
    if let Some(file) = spec.prices.as_mut().and_then(|prices| prices.file.as_mut()) {
        file.text.clear();
    }
    spec.upstreams.clear();
    RunRow { run, spec, envelope }
}

/// Answers one read of the store. Errors: `foreign_run` for a run token; `bad_request` for a read that is not here.
pub(crate) async fn rows(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    if asked.caller.only_run().is_some() {
        return Err(Error::OwnRunOnly);
    }
    let query = &asked.query;
    match asked.name() {
        "store" => {
            let told = asked.read(|store| Ok((store.now()?, store.place()))).await?;
            json(&json!({ "shapes": SHAPES, "version": version::line(), "now": told.0, "place": told.1 }))
        }
        "run_no" => {
            let id = RunId::new(&query.wanted("id")?).map_err(|e| Error::BadRequest(e.to_string()))?;
            answered(asked.read(move |store| store.run_no(&id)).await?)
        }
        "run" => {
            let no = run(query)?;
            answered(asked.read(move |store| store.run(no)).await?.map(shown))
        }
        "runs" => {
            let filter = RunFilter {
                status: word::<Status>(query, "status")?,
                command_key: query.text("command_key").map(str::to_owned),
                jobs: query.flag("jobs")?,
                before: query.number("before")?.map(RunNo),
                limit: query.limit(PAGE, MOST)?,
            };
            let found = asked.read(move |store| store.runs(&filter)).await?;
            answered(found.into_iter().map(shown).collect::<Vec<_>>())
        }
        "approvals" => {
            let filter = ApprovalFilter {
                run: query.number("run")?.map(RunNo),
                open: query.flag("open")?,
                limit: query.limit(PAGE, MOST)?,
            };
            answered(asked.read(move |store| store.approvals(&filter)).await?)
        }
        "attempts" => {
            let no = run(query)?;
            answered(asked.read(move |store| store.attempts(no)).await?)
        }
        "entry" => {
            let (no, seq) = (run(query)?, seq(query, "seq")?);
            answered(asked.read(move |store| store.entry(no, seq)).await?)
        }
        "entries" => {
            let (no, after, limit) = (run(query)?, seq(query, "after")?, query.limit(PAGE, MOST)?);
            answered(asked.read(move |store| store.entries(no, after, limit)).await?)
        }
        "newest" => {
            let (no, upto) = (run(query)?, seq(query, "upto")?);
            let kind = word::<Kind>(query, "kind")?;
            let kind = kind.ok_or_else(|| Error::BadRequest("the parameter \"kind\" is wanted".into()))?;
            let (key, done) = (query.wanted("key")?, query.flag("done")?);
            let scope = query.text("scope").map(str::to_owned);
            let newest = move |store: &dyn Store| {
                store.newest(no, &Sought { kind, key: &key, scope: scope.as_deref(), done, upto })
            };
            answered(asked.read(newest).await?)
        }
        "items" => {
            let (no, limit) = (run(query)?, query.limit(PAGE, MOST)?);
            let page = Page { upto: seq(query, "upto")?, ..Page::new(seq(query, "after")?, limit) };
            let found = asked.read(move |store| store.items(no, &page)).await?;
            answered(found.into_iter().map(|(row, _)| row).collect::<Vec<_>>())
        }
        "budgets" => answered(asked.read(|store| store.budgets()).await?),
        "ledger" => {
            let (since, until) = (micros(query, "since")?, micros(query, "until")?);
            answered(asked.read(move |store| store.ledger(since, until)).await?)
        }
        "snapshot" => {
            let id = RunId::new(&query.wanted("id")?).map_err(|e| Error::BadRequest(e.to_string()))?;
            let name = query.wanted("key")?;
            let found = asked.read(move |store| snapshots::named(store, &id, &name)).await?;
            answered(found.map(|(seq, at)| Kept { seq, at }))
        }
        "plans" => answered(asked.read(plans::list).await?),
        "instance" => {
            let no = InstanceNo(query.number("instance")?.unwrap_or(0));
            answered(asked.read(move |store| store.instance(no)).await?)
        }
        "payloads" => {
            let (no, seq) = (run(query)?, seq(query, "seq")?);
            let role = word::<Role>(query, "role")?;
            let role = role.ok_or_else(|| Error::BadRequest("the parameter \"role\" is wanted".into()))?;
            let bytes = asked.read(move |store| payloads(store, no, seq, role)).await?;
            Ok(of_type(bytes, "application/octet-stream"))
        }
        other => Err(Error::BadRequest(format!(
            "{:?} is no read of the store: another version of outlast asks",
            other.chars().take(80).collect::<String>()
        ))),
    }
}

fn answered(rows: impl Serialize) -> Result<Response<AnswerBody>, Error> {
    let rows = serde_json::to_value(rows).map_err(|e| Error::BadValue(e.to_string()))?;
    json(&json!({ "rows": rows }))
}

fn run(query: &Query) -> Result<RunNo, Error> {
    query.wanted("run")?;
    Ok(RunNo(query.number("run")?.unwrap_or(0)))
}

fn seq(query: &Query, name: &str) -> Result<Seq, Error> {
    query.wanted(name)?;
    Ok(Seq(query.number(name)?.unwrap_or(0)))
}

fn micros(query: &Query, name: &str) -> Result<Micros, Error> {
    query.wanted(name)?;
    Ok(Micros(query.number(name)?.unwrap_or(0)))
}

/// Reads a word as the stored JSON has it.
fn word<T: DeserializeOwned>(query: &Query, name: &str) -> Result<Option<T>, Error> {
    let Some(text) = query.text(name) else { return Ok(None) };
    let bad = |_| {
        Error::BadRequest(format!(
            "{name} is {:?}, and none is named so",
            text.chars().take(80).collect::<String>()
        ))
    };
    serde_json::from_value(Value::from(text)).map(Some).map_err(bad)
}

/// Returns the requested payload, then those of neighbouring entries, each as its entry's number, its length
/// and its bytes. The requests of a conversation are stored as differences from one another, so that reading
/// one would otherwise take many requests.
fn payloads(store: &dyn Store, run: RunNo, seq: Seq, role: Role) -> Result<Vec<u8>, store::Error> {
    let mut out = Vec::new();
    let mut put = |at: Seq| -> Result<bool, store::Error> {
        if let Some(payload) = store.payload(run, at, role)? {
            let bytes = payload.to_bytes();
            out.extend(at.0.to_le_bytes());
            out.extend((bytes.len() as u64).to_le_bytes());
            out.extend(bytes);
        }
        Ok(out.len() < NEIGHBOURS_LEN)
    };
    let mut room = put(seq)?;
    let first = seq.0 - seq.0.rem_euclid(NEIGHBOURS);
    for at in (first..first + NEIGHBOURS).filter(|at| *at != seq.0) {
        if !room {
            break;
        }
        room = put(Seq(at))?;
    }
    Ok(out)
}

/// Splits bytes that [`payloads`] wrote into entries and payloads; `None` for any other bytes.
pub fn read_payloads(mut bytes: bytes::Bytes) -> Option<Vec<(Seq, bytes::Bytes)>> {
    use bytes::Buf as _;
    let mut found = Vec::new();
    while bytes.has_remaining() {
        if bytes.remaining() < 16 {
            return None;
        }
        let (seq, len) = (bytes.get_i64_le(), usize::try_from(bytes.get_u64_le()).ok()?);
        if bytes.remaining() < len {
            return None;
        }
        found.push((Seq(seq), bytes.split_to(len)));
    }
    Some(found)
}
