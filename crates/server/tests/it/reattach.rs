//! Answers that are under way, read by somebody who is not their client.

use outlast_core::{envelope::unit::Limits, journal::State, run::Policy};
use outlast_mock as mock;
use outlast_server::{
    dialect::Upstream,
    door::{Config, Provider},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
};

use crate::{
    client::{Answer, Api, Ask},
    rig::{Rig, Server, until},
};

pub const ONE: &str = "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one \"},\"finish_reason\":null}]}\n\n";
pub const TWO: &str = "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"two\"},\"finish_reason\":null}]}\n\n";
pub const STOP: &str =
    "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
pub const USAGE: &str = "data: {\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1,\"total_tokens\":6}}\n\ndata: [DONE]\n\n";

/// A provider that says what the test tells it, when it does, to one request. It hangs up when the test's end is dropped.
pub async fn told() -> (String, mpsc::UnboundedSender<&'static str>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let (say, mut said) = mpsc::unbounded_channel::<&'static str>();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 16 << 10]).await;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        while let Some(part) = said.recv().await {
            let chunk = format!("{:x}\r\n{part}\r\n", part.len());
            stream.write_all(chunk.as_bytes()).await.unwrap();
        }
    });
    (base, say)
}

pub fn towards(rig: &Rig, base: &str) -> Config {
    let mut config = rig.config();
    let openai = Provider::new(base, config.providers.of(Upstream::OpenAi).key.clone()).unwrap();
    *config.providers.of_mut(Upstream::OpenAi) = openai;
    config
}

fn stream(from: usize) -> Ask {
    Ask::new("GET", &format!("/v1/runs/r/entries/1/stream?from={from}"))
}

async fn answer(server: &Server) -> Value {
    Ask::new("GET", "/v1/runs/r/entries/1").to(server).await.json()["answer"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_gets_what_was_said_then_what_comes_then_the_end() {
    let (base, say) = told().await;
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_with(towards(&rig, &base)).await;
    say.send(ONE).unwrap();
    let mut client = Api::Chat.streams("x").open(server.addr).await;
    client.read_until("one").await;
    let mut early = stream(0).open(server.addr).await;
    early.read_until("one").await;
    // The client's connection dies, and the run lives.
    drop(client);
    say.send(TWO).unwrap();
    early.read_until("two").await;
    say.send(STOP).unwrap();
    let run = server.run_no("r");
    let came = |what: &str| {
        let all = server.proxy.so_far(run).into_values().next().unwrap_or_default();
        String::from_utf8(all).unwrap().contains(what)
    };
    until("the stop has come", || came("\"stop\"")).await;
    // The end is held back: a client could act on it, and it is not recorded.
    let mut late = stream(ONE.len()).open(server.addr).await;
    late.read_until("two").await;
    assert_eq!(String::from_utf8(late.read.clone()).unwrap(), TWO);
    assert_eq!(answer(&server).await["bytes"], ONE.len() + TWO.len());
    say.send(USAGE).unwrap();
    let whole = early.rest().await;
    assert!(!whole.broken);
    let entry = server.closed("r", 1).await;
    assert_eq!(entry.state, State::Done);
    let recorded = Ask::new("GET", "/v1/runs/r/entries/1/raw").to(&server).await;
    assert_eq!(
        (whole.text(), whole.headers["content-type"].to_str().unwrap()),
        (recorded.text(), "text/event-stream")
    );
    assert!(whole.text().starts_with(&format!("{ONE}{TWO}{STOP}")), "{}", whole.text());
    assert_eq!(late.rest().await.text(), &recorded.text()[ONE.len()..]);
    // The call is over: the same route gives the recorded answer.
    let tail = |answer: Answer| answer.text().to_owned();
    assert_eq!(tail(stream(0).to(&server).await), recorded.text());
    assert_eq!(tail(stream(ONE.len() + 3).to(&server).await), recorded.text()[ONE.len() + 3..]);
    assert_eq!(tail(stream(recorded.body.len()).to(&server).await), "");
    for (target, code) in [
        (format!("/v1/runs/r/entries/1/stream?from={}", recorded.body.len() + 1), "bad_request"),
        ("/v1/runs/r/entries/1/stream?from=-1".into(), "bad_request"),
        ("/v1/runs/r/entries/2/stream".into(), "unknown_entry"),
    ] {
        assert_eq!(Ask::new("GET", &target).to(&server).await.code(), code, "{target}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_has_no_end_breaks_off_for_its_readers_too() {
    let (base, say) = told().await;
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_with(towards(&rig, &base)).await;
    say.send(ONE).unwrap();
    let mut client = Api::Chat.streams("x").open(server.addr).await;
    client.read_until("one").await;
    let mut reader = stream(0).open(server.addr).await;
    // What was said is with the reader before the answer breaks off: a broken response may lose what it has not sent.
    reader.read_until("one").await;
    drop(say);
    assert!(client.rest().await.broken);
    let read = reader.rest().await;
    assert_eq!((read.text(), read.broken), (ONE, true));
    assert_eq!(server.closed("r", 1).await.state, State::Failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_server_has_under_way_comes_when_it_is_recorded() {
    let (base, say) = told().await;
    let rig = Rig::in_memory(mock::Options::default()).await;
    let (one, other) = (rig.serve_with(towards(&rig, &base)).await, rig.serve().await);
    say.send(ONE).unwrap();
    let mut client = Api::Chat.streams("x").open(one.addr).await;
    client.read_until("one").await;
    let afar = stream(0).open(other.addr).await;
    [STOP, USAGE].into_iter().for_each(|part| say.send(part).unwrap());
    let said = client.rest().await;
    let read = afar.rest().await;
    assert_eq!((read.text(), read.broken), (said.text(), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_reads_its_own_answers_only() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    Api::Chat.streams("x").run("r").to(&server).await.ok();
    let token = server.driven("other", Limits::default(), Policy::default()).await;
    assert_eq!(stream(0).token(&token).to(&server).await.code(), "foreign_run");
    let rows = Ask::new("GET", "/v1/rows/store").token(&token).to(&server).await;
    assert_eq!(rows.code(), "foreign_run");
}
