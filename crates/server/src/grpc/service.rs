//! The gRPC service: translates each call for the state, and its result back.

use std::sync::Arc;

use outlast_core::{
    engine::Change,
    state::{At, Item, Name, Position},
    store::{
        self, Store, Which,
        state::{EventRange, Moment, Scan},
    },
};
use prost::Message;
use tonic::{Request, Response, Status};

use super::{
    AbortRequest, AbortResponse, BeginTransactionRequest, BeginTransactionResponse, CommitRequest,
    CommitResponse, DeleteRequest, DeleteResponse, GetStateAtVersionRequest, GetStateAtVersionResponse,
    GetStateRequest, GetStateResponse, HealthRequest, HealthResponse, ListKeysRequest, ListKeysResponse,
    MAX_REPLY, ReplayRequest, ScanEntry, ScanPrefixRequest, ScanPrefixResponse, VersionRequest,
    VersionResponse, WriteRequest, WriteResponse,
    replay::{self, Events},
    statehouse_service_server::StatehouseService,
    status, structs,
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
        let value = structs::to_json(&r.value.unwrap_or_default()).map_err(status)?;
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
    let value =
        item.value.as_deref().map(|v| structs::from_json(v, &item.key)).transpose().map_err(status)?;
    let exists = value.is_some();
    Ok(GetStateResponse { value, version: number(item.version), commit_ts: number(item.commit), exists })
}

fn entry(item: Item) -> Result<ScanEntry, Error> {
    let value = item.value.as_deref().map(|v| structs::from_json(v, &item.key)).transpose()?;
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
