//! The gRPC service: translates each call for the state, and its result back.
//!
//! Values are a `google.protobuf.Struct` over gRPC, and JSON text as stored: without whitespace, members sorted by name,
//! whole numbers without a point. A number is a double over gRPC, and its shortest text reads back as the same double.

use std::{collections::BTreeMap, sync::Arc};

use outlast_core::{
    engine::Change,
    state::{At, Item, Name, Position},
    store::{
        self, Store, Which,
        state::{EventRange, Moment, Scan},
    },
};
use prost::Message;
use prost_types::{ListValue, Struct, Value, value::Kind};
use serde_json::{Map, Number, Value as Json};
use tonic::{Request, Response, Status};

use super::{
    AbortRequest, AbortResponse, BeginTransactionRequest, BeginTransactionResponse, CommitRequest,
    CommitResponse, DeleteRequest, DeleteResponse, GetStateAtVersionRequest, GetStateAtVersionResponse,
    GetStateRequest, GetStateResponse, HealthRequest, HealthResponse, ListKeysRequest, ListKeysResponse,
    MAX_REPLY, ReplayRequest, ScanEntry, ScanPrefixRequest, ScanPrefixResponse, VersionRequest,
    VersionResponse, WriteRequest, WriteResponse,
    replay::{self, Events},
    statehouse_service_server::StatehouseService,
    status,
};
use crate::{
    state::{Commits, Error, PAGE, StateDesk},
    version::{COMMIT, VERSION},
};

/// Number of keys read at once.
const KEYS: usize = 2_000;

/// Number of values read at once: few, because a value may be large.
const VALUES: usize = 32;

pub struct Statehouse {
    desk: Arc<StateDesk>,
}

impl Statehouse {
    pub fn new(desk: Arc<StateDesk>) -> Statehouse {
        Statehouse { desk }
    }

    fn change(&self, txn_id: &str, change: Change) -> Result<(), Status> {
        self.desk.change(txn_id, change).map_err(status)
    }
}

#[tonic::async_trait]
impl StatehouseService for Statehouse {
    async fn health(&self, _: Request<HealthRequest>) -> Result<Response<HealthResponse>, Status> {
        Ok(Response::new(HealthResponse { status: "ok".into() }))
    }

    async fn version(&self, _: Request<VersionRequest>) -> Result<Response<VersionResponse>, Status> {
        let (version, git_sha) = (format!("outlast {VERSION}"), COMMIT.unwrap_or_default().to_owned());
        Ok(Response::new(VersionResponse { version, git_sha }))
    }

    async fn begin_transaction(
        &self,
        request: Request<BeginTransactionRequest>,
    ) -> Result<Response<BeginTransactionResponse>, Status> {
        let timeout_ms = request.into_inner().timeout_ms;
        // The protocol has no reads within a transaction.
        let txn_id = self.desk.begin(timeout_ms, false).await.map_err(status)?;
        Ok(Response::new(BeginTransactionResponse { txn_id }))
    }

    async fn write(&self, request: Request<WriteRequest>) -> Result<Response<WriteResponse>, Status> {
        let r = request.into_inner();
        let value = to_json(&r.value.unwrap_or_default()).map_err(status)?;
        let change = self.desk.set(Name::new(r.namespace, r.agent_id, r.key), value).await;
        self.change(&r.txn_id, change)?;
        Ok(Response::new(WriteResponse {}))
    }

    async fn delete(&self, request: Request<DeleteRequest>) -> Result<Response<DeleteResponse>, Status> {
        let r = request.into_inner();
        self.change(&r.txn_id, Change::delete(Name::new(r.namespace, r.agent_id, r.key)))?;
        Ok(Response::new(DeleteResponse {}))
    }

    async fn commit(&self, request: Request<CommitRequest>) -> Result<Response<CommitResponse>, Status> {
        let committed = self.desk.commit(&request.into_inner().txn_id).await.map_err(status)?;
        Ok(Response::new(CommitResponse { commit_ts: number(committed.commit) }))
    }

    async fn abort(&self, request: Request<AbortRequest>) -> Result<Response<AbortResponse>, Status> {
        self.desk.abort(&request.into_inner().txn_id);
        Ok(Response::new(AbortResponse {}))
    }

    async fn get_state(
        &self,
        request: Request<GetStateRequest>,
    ) -> Result<Response<GetStateResponse>, Status> {
        let r = request.into_inner();
        let read = move |s: &dyn Store| s.state(&r.namespace, &r.agent_id, &r.key);
        fitting(shown(self.desk.read(read).await.map_err(status)?)?)
    }

    async fn get_state_at_version(
        &self,
        request: Request<GetStateAtVersionRequest>,
    ) -> Result<Response<GetStateAtVersionResponse>, Status> {
        let r = request.into_inner();
        // A version beyond `i64` cannot exist: 0 is never found.
        let version = i64::try_from(r.version).unwrap_or(0);
        let read =
            move |s: &dyn Store| s.state_at(&r.namespace, &r.agent_id, &r.key, Which::Version(version));
        let GetStateResponse { value, version, commit_ts, exists } =
            shown(self.desk.read(read).await.map_err(status)?)?;
        fitting(GetStateAtVersionResponse { value, version, commit_ts, exists })
    }

    async fn list_keys(
        &self,
        request: Request<ListKeysRequest>,
    ) -> Result<Response<ListKeysResponse>, Status> {
        let r = request.into_inner();
        let reply = self.desk.read(move |store| Ok(listed(store, r))).await.flatten().map_err(status)?;
        Ok(Response::new(reply))
    }

    async fn scan_prefix(
        &self,
        request: Request<ScanPrefixRequest>,
    ) -> Result<Response<ScanPrefixResponse>, Status> {
        let r = request.into_inner();
        let reply = self.desk.read(move |store| Ok(scanned(store, r))).await.flatten().map_err(status)?;
        Ok(Response::new(reply))
    }

    type ReplayStream = Events;

    async fn replay(&self, request: Request<ReplayRequest>) -> Result<Response<Events>, Status> {
        let r = request.into_inner();
        let desk = &self.desk;
        let namespace = r.namespace.clone();
        let head = desk.read(move |s| s.namespace(&namespace)).await.map_err(status)?;
        let commit = |ts: u64| i64::try_from(ts).unwrap_or(i64::MAX);
        // The replay ends at the newest commit of now: later ones are not waited for.
        let newest = head.map_or(0, |n| n.commit);
        let range = EventRange {
            namespace: r.namespace,
            agent: r.agent_id,
            from: r.start_ts.map(|ts| Moment::Commit(commit(ts))),
            to: Some(Moment::Commit(r.end_ts.map_or(newest, commit).min(newest))),
            after: Position::default(),
            limit: PAGE,
        };
        replay::start(desk.store().clone(), Commits::new(range)).await.map_err(status)
    }
}

/// Lists all keys of an agent, at one moment.
fn listed(store: &dyn Store, r: ListKeysRequest) -> Result<ListKeysResponse, Error> {
    let scan = Scan { limit: KEYS, ..begin(store, r.namespace, r.agent_id)? };
    let keys = whole(
        scan,
        |scan| Ok(store.state_keys(scan)?.into_iter().map(|listed| listed.key).collect()),
        |key: &String| key,
        |key| prost::encoding::string::encoded_len(1, key),
    )?;
    Ok(ListKeysResponse { keys })
}

/// Reads all keys with a prefix and their values, at one moment.
fn scanned(store: &dyn Store, r: ScanPrefixRequest) -> Result<ScanPrefixResponse, Error> {
    let scan = Scan { prefix: r.prefix, limit: VALUES, ..begin(store, r.namespace, r.agent_id)? };
    let entries = whole(
        scan,
        |scan| store.state_scan(scan)?.into_iter().map(entry).collect(),
        |entry: &ScanEntry| &entry.key,
        |entry| prost::encoding::message::encoded_len(1, entry),
    )?;
    Ok(ScanPrefixResponse { entries })
}

/// Reads all pages of a scan. `len`: bytes of a row in the reply.
fn whole<T>(
    mut scan: Scan,
    page: impl Fn(&Scan) -> Result<Vec<T>, Error>,
    key: impl Fn(&T) -> &str,
    len: impl Fn(&T) -> usize,
) -> Result<Vec<T>, Error> {
    let (mut all, mut room) = (Vec::new(), Room::default());
    loop {
        let rows = page(&scan)?;
        let is_last = rows.len() < scan.limit;
        for row in rows {
            room.take(len(&row))?;
            all.push(row);
        }
        if is_last {
            return Ok(all);
        }
        scan.after = all.last().map(|row| key(row).to_owned());
    }
}

/// Returns a scan of all keys of an agent, at the current moment.
fn begin(store: &dyn Store, namespace: String, agent: String) -> Result<Scan, store::Error> {
    let at = At::Position(store.state_position()?);
    Ok(Scan { namespace, agent, at, ..Scan::default() })
}

/// Bytes of a reply so far. A reply that grows too long is refused before the rest of it is read.
#[derive(Default)]
struct Room {
    taken: usize,
}

impl Room {
    fn take(&mut self, bytes: usize) -> Result<(), Error> {
        self.taken += bytes;
        if self.taken <= MAX_REPLY { Ok(()) } else { Err(too_large(self.taken)) }
    }
}

/// Returns the reply for a key. A deleted key, like one that was never written, does not exist.
fn shown(item: Option<Item>) -> Result<GetStateResponse, Status> {
    let Some(item) = item else { return Ok(GetStateResponse::default()) };
    let value = item.value.as_deref().map(|v| from_json(v, &item.key)).transpose().map_err(status)?;
    let exists = value.is_some();
    Ok(GetStateResponse { value, version: number(item.version), commit_ts: number(item.commit), exists })
}

fn entry(item: Item) -> Result<ScanEntry, Error> {
    let value = item.value.as_deref().map(|v| from_json(v, &item.key)).transpose()?;
    Ok(ScanEntry { key: item.key, value, version: number(item.version), commit_ts: number(item.commit) })
}

/// Converts a version or commit number, which is never negative.
pub(super) fn number(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

fn fitting<M: Message>(reply: M) -> Result<Response<M>, Status> {
    Room::default().take(reply.encoded_len()).map_err(status)?;
    Ok(Response::new(reply))
}

fn too_large(had: usize) -> Error {
    let instead = "page through it: GET /v1/state/scan and /v1/state/keys with `cursor`, \
                   or `outlast state keys` and `outlast state get`";
    Error::ReplyTooLarge { had, limit: MAX_REPLY, instead: instead.into() }
}

/// Absolute value from which on a double no longer stands for exactly one `i64`.
const WHOLE: f64 = 9.0e18;

/// Converts a Struct to JSON text. Errors: a number that JSON does not have.
pub fn to_json(value: &Struct) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(&members(&value.fields)?).map_err(|e| Error::BadValue(e.to_string()))
}

/// Converts JSON text to a Struct. A Struct is always an object, so any other value becomes its one member
/// `value`.
///
/// Errors: bytes that are not JSON, which only other interfaces can have written; the error names `key`.
pub fn from_json(text: &[u8], key: &str) -> Result<Struct, Error> {
    let json = serde_json::from_slice(text)
        .map_err(|_| Error::NotJson { what: format!("the value of key {key:?}") })?;
    Ok(match value_of(json).kind {
        Some(Kind::StructValue(object)) => object,
        kind => Struct { fields: BTreeMap::from([("value".to_owned(), Value { kind })]) },
    })
}

fn members(fields: &BTreeMap<String, Value>) -> Result<Map<String, Json>, Error> {
    fields.iter().map(|(name, value)| Ok((name.clone(), json_of(value)?))).collect()
}

fn json_of(value: &Value) -> Result<Json, Error> {
    Ok(match &value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(b)) => (*b).into(),
        Some(Kind::StringValue(s)) => s.as_str().into(),
        Some(Kind::NumberValue(n)) if is_whole(*n) => (*n as i64).into(),
        Some(Kind::NumberValue(n)) => {
            let none = || Error::BadValue(format!("the number {n}, which JSON does not have"));
            Json::Number(Number::from_f64(*n).ok_or_else(none)?)
        }
        Some(Kind::StructValue(object)) => Json::Object(members(&object.fields)?),
        Some(Kind::ListValue(list)) => {
            Json::Array(list.values.iter().map(json_of).collect::<Result<_, _>>()?)
        }
    })
}

fn value_of(json: Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(b) => Kind::BoolValue(b),
        // JSON text has no number beyond those of a double.
        Json::Number(n) => Kind::NumberValue(n.as_f64().unwrap_or_default()),
        Json::String(s) => Kind::StringValue(s),
        Json::Array(values) => {
            Kind::ListValue(ListValue { values: values.into_iter().map(value_of).collect() })
        }
        Json::Object(members) => {
            let fields = members.into_iter().map(|(name, value)| (name, value_of(value))).collect();
            Kind::StructValue(Struct { fields })
        }
    };
    Value { kind: Some(kind) }
}

fn is_whole(n: f64) -> bool {
    n.is_finite() && n.fract() == 0.0 && n.abs() < WHOLE && !(n == 0.0 && n.is_sign_negative())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number(n: f64) -> Struct {
        Struct { fields: BTreeMap::from([("n".to_owned(), Value { kind: Some(Kind::NumberValue(n)) })]) }
    }

    #[test]
    fn numbers_have_one_text_and_come_back_as_they_were() {
        let check = |n: f64, text: &str| {
            let written = to_json(&number(n)).unwrap();
            assert_eq!(String::from_utf8(written.clone()).unwrap(), format!("{{\"n\":{text}}}"));
            let back = from_json(&written, "k").unwrap();
            let Some(Kind::NumberValue(had)) = back.fields["n"].kind else { panic!("{back:?}") };
            assert_eq!(had.to_bits(), n.to_bits());
        };
        check(1.0, "1");
        check(-7.0, "-7");
        check(0.0, "0");
        check(-0.0, "-0.0");
        check(0.1, "0.1");
        check(9_007_199_254_740_993.0, "9007199254740992");
        check(1e300, "1e+300");
        check(f64::MAX, "1.7976931348623157e+308");
        check(5e-324, "5e-324");
        for n in [f64::NAN, f64::INFINITY] {
            assert_eq!(to_json(&number(n)).unwrap_err().code(), "bad_value");
        }
    }

    #[test]
    fn a_value_that_is_no_object_comes_as_the_member_value() {
        let check = |text: &str, want: &str| {
            let read = from_json(text.as_bytes(), "k").unwrap();
            assert_eq!(String::from_utf8(to_json(&read).unwrap()).unwrap(), want);
        };
        check("[1,[null,{}]]", r#"{"value":[1,[null,{}]]}"#);
        check("null", r#"{"value":null}"#);
        check(r#"{"b":1,"a":[{"x":[[]]}]}"#, r#"{"a":[{"x":[[]]}],"b":1}"#);
        assert_eq!(from_json(b"\xff", "k").unwrap_err().code(), "not_json");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Kind::NullValue(0)),
            any::<bool>().prop_map(Kind::BoolValue),
            prop::num::f64::NORMAL.prop_map(Kind::NumberValue),
            any::<i64>().prop_map(|n| Kind::NumberValue(n as f64)),
            ".{0,8}".prop_map(Kind::StringValue),
        ]
        .prop_map(|kind| Value { kind: Some(kind) });
        leaf.prop_recursive(4, 32, 4, |inner| {
            let kind = prop_oneof![
                prop::collection::vec(inner.clone(), 0..4)
                    .prop_map(|values| Kind::ListValue(ListValue { values })),
                prop::collection::btree_map(".{0,4}", inner, 0..4)
                    .prop_map(|fields| Kind::StructValue(Struct { fields })),
            ];
            kind.prop_map(|kind| Value { kind: Some(kind) })
        })
    }

    proptest! {
        #[test]
        fn any_struct_comes_back_as_it_was(fields in prop::collection::btree_map(".{0,4}", any_value(), 0..4)) {
            let value = Struct { fields };
            prop_assert_eq!(from_json(&to_json(&value).unwrap(), "k").unwrap(), value);
        }
    }
}
