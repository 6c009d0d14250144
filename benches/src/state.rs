//! Measures the state over gRPC: transactions and replay with Rust clients, and the published Python client if present.

use std::{
    collections::BTreeMap,
    path::Path,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use outlast_server::grpc::{
    BeginTransactionRequest, CommitRequest, ReplayRequest, WriteRequest,
    statehouse_service_client::StatehouseServiceClient,
};
use prost_types::{Struct, Value, value::Kind};
use tonic::{Status, transport::Channel};

use crate::{
    raw::Raw,
    report::{Row, Unit, section},
    servers,
};

type Client = StatehouseServiceClient<Channel>;

/// Measures the state and prints its figures.
pub fn measure(dir: &Path, seconds: u64, raw: &Raw) {
    section("the state over gRPC (clients and server on the same cores)");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let ours = servers::serve_state(&dir.join("state.db"));
    for (clients, target) in [(1, None), (16, Some(5_000.0))] {
        let rate = runtime.block_on(transactions(&ours.address, clients, seconds)).expect("transactions");
        let row = Row::new(
            format!("transactions of the state over gRPC, {clients} client(s)"),
            Unit::PerSecond,
            rate,
        )
        .limit("append + fdatasync", raw.per_second);
        match target {
            Some(target) => row.reach(target).tell(),
            None => row.tell(),
        }
    }
    let (events, took) = runtime.block_on(replay(&ours.address)).expect("a replay");
    let rate = events as f64 / took.as_secs_f64();
    Row::new(format!("events of the state replayed over gRPC, of {events}"), Unit::PerSecond, rate)
        .reach(100_000.0)
        .tell();
    python(&ours.address, seconds);
}

/// Returns the record of a small step under its own key, so that histories stay short, as those of agents do.
fn write(txn_id: &str, agent: usize, n: usize) -> WriteRequest {
    let text = |s: &str| Value { kind: Some(Kind::StringValue(s.to_owned())) };
    let fields = [("status", "done"), ("action", "look it up"), ("result", "there it was")];
    let fields: BTreeMap<String, Value> = fields.map(|(k, v)| (k.to_owned(), text(v))).into();
    WriteRequest {
        txn_id: txn_id.to_owned(),
        namespace: "default".into(),
        agent_id: format!("agent-{agent}"),
        key: format!("step:{n}"),
        value: Some(Struct { fields }),
    }
}

/// Runs transactions one after the other on each client's own connection. Returns the total per second.
async fn transactions(address: &str, clients: usize, seconds: u64) -> Result<f64, Status> {
    let done = std::sync::Arc::new(AtomicUsize::new(0));
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut tasks = Vec::new();
    for me in 0..clients {
        let mut client = connect(address).await;
        let done = done.clone();
        tasks.push(tokio::spawn(async move {
            for n in 0.. {
                if Instant::now() >= until {
                    break;
                }
                let begin = BeginTransactionRequest { timeout_ms: None };
                let txn_id = client.begin_transaction(begin).await?.into_inner().txn_id;
                client.write(write(&txn_id, me, n)).await?;
                client.commit(CommitRequest { txn_id }).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), Status>(())
        }));
    }
    for task in tasks {
        task.await.expect("a client's task")?;
    }
    Ok(done.load(Ordering::Relaxed) as f64 / seconds as f64)
}

/// Replays 100,000 events of one agent, written in transactions of 100.
async fn replay(address: &str) -> Result<(usize, Duration), Status> {
    let mut client = connect(address).await;
    for batch in 0..1_000 {
        let begun = client.begin_transaction(BeginTransactionRequest { timeout_ms: None }).await?;
        let txn_id = begun.into_inner().txn_id;
        for n in 0..100 {
            client.write(write(&txn_id, 1_000, batch * 100 + n)).await?;
        }
        client.commit(CommitRequest { txn_id }).await?;
    }
    let began = Instant::now();
    let (namespace, agent_id) = ("default".into(), "agent-1000".into());
    let asked = ReplayRequest { namespace, agent_id, start_ts: None, end_ts: None };
    let mut stream = client.replay(asked).await?.into_inner();
    let mut events = 0;
    while let Some(event) = stream.message().await? {
        events += event.operations.len();
    }
    Ok((events, began.elapsed()))
}

async fn connect(address: &str) -> Client {
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
    Client::new(endpoint.tcp_nodelay(true).connect().await.expect("a connection"))
}

/// Measures the published client, if `PYTHON` names a Python that has it.
fn python(address: &str, seconds: u64) {
    let Some(python) = std::env::var_os("PYTHON") else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/statehouse_client.py");
    let ran = Command::new(python).arg(script).arg(address).arg(seconds.to_string()).output();
    let said = ran.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    let figures: Vec<f64> = said.split_whitespace().filter_map(|f| f.parse().ok()).collect();
    if let [transactions, events] = figures[..] {
        Row::new("transactions of the published Python client", Unit::PerSecond, transactions)
            .reach(1_300.0)
            .tell();
        // The client alone reaches 11,000 to 15,000 on this kind of machine.
        Row::new("events replayed to the published Python client", Unit::PerSecond, events)
            .reach(9_900.0)
            .tell();
    }
}
