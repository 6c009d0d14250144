//! Streams: what clients see of them, and how they end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use outlast_core::journal::State;
use outlast_mock as mock;
use outlast_server::door::{Config, Provider, Providers};
use serde_json::json;

use crate::{
    client::{ALL, Answer, Api, Ask, with},
    rig::{ANTHROPIC_KEY, OPENAI_KEY, Rig, house},
    scripted::{self, Scripted, Then},
};

/// `config` with `upstream` as both providers.
pub fn towards(rig: &Rig, upstream: &Scripted) -> Config {
    let config = rig.config();
    let provider = |own| Provider::new(&upstream.base, config.providers.of(own).key.clone());
    let named = vec![Arc::new(house(&format!("{}/openai/v1", upstream.base)))];
    let providers = Providers::new(provider, named).unwrap();
    Config { providers, ..config }
}

/// The same request, straight to the provider.
async fn direct(rig: &Rig, ask: &Ask) -> Answer {
    let key = if ask.target.contains("messages") { ANTHROPIC_KEY } else { OPENAI_KEY };
    let ask = ask.clone().without("x-outlast-run").header("authorization", &format!("Bearer {key}"));
    ask.open(rig.mock.addr()).await.rest().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_the_same_bytes_as_without_the_proxy() {
    let usage = |on: bool| json!({"stream_options": {"include_usage": on}});
    let tool = json!({"tools": [{"type": "function", "function": {"name": "look"}}]});
    let body = |text: &str| with(Api::Chat.body(text), json!({"stream": true}));
    let asks = [
        Api::Chat.sends(&body("plain")),
        Api::Chat.sends(&with(body("asks for usage"), usage(true))),
        Api::Chat.sends(&with(body("declines usage"), usage(false))),
        Api::Chat.sends(&with(body("null"), json!({"stream_options": null}))),
        Api::Chat.sends(&with(body("other options"), json!({"stream_options": {}}))),
        Api::Chat.sends(&with(body("three at once"), json!({"n": 3}))),
        Api::Chat.sends(&with(body("mock: tool look {\"at\": 1}"), tool)),
        Api::Chat.sends(&with(body("mock: tokens 100"), json!({"max_tokens": 9}))),
        Api::Responses.streams("plain"),
        Api::Responses.sends(&with(
            Api::Responses.body("mock: tool look {\"at\": 1}"),
            json!({"stream": true, "reasoning": {"effort": "low"}, "tools": [{"type": "function", "name": "look"}]}),
        )),
        Api::Responses.sends(&with(
            Api::Responses.body("mock: tokens 100"),
            json!({"stream": true, "max_output_tokens": 19}),
        )),
        Api::Messages.streams("plain"),
        Api::Messages.sends(&with(
            Api::Messages.body("thinks"),
            json!({"stream": true, "max_tokens": 4000, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
        )),
    ];
    for ask in asks {
        // Each has a provider of its own, because answers tell their number.
        let (rig, beside) =
            (Rig::in_memory(mock::Options::default()).await, Rig::in_memory(mock::Options::default()).await);
        let server = rig.serve().await;
        let had = ask.to(&server).await;
        let mut wanted = direct(&beside, &ask).await;
        let text = String::from_utf8_lossy(&ask.body).into_owned();
        // The id tells the body it answers; ours has the option in it.
        let sent = &rig.mock.requests()[0];
        if sent.body != ask.body {
            let same = ask.clone().bytes(sent.body.clone());
            wanted = direct(&beside, &same).await;
        }
        let wanted_text = if text.contains("include_usage\":true") || !ask.target.contains("chat") {
            wanted.text().to_owned()
        } else {
            without_usage(wanted.text())
        };
        assert_eq!(had.text(), wanted_text, "{text}");
        assert_eq!(had.header("content-type"), wanted.header("content-type"));
        let entry = server.closed("r", 1).await;
        assert!(entry.call.unwrap().usage.is_some(), "{text}");
    }
}

/// A stream as it is when nobody asked for its usage.
fn without_usage(stream: &str) -> String {
    stream
        .split_inclusive("\n\n")
        .filter(|frame| !frame.contains("\"choices\":[]"))
        .map(|frame| frame.replace(",\"usage\":null", ""))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_option_the_provider_sends_what_our_client_sees() {
    // The stream that `without_usage` returns equals the one that a provider sends without the option.
    let ask = Api::Chat.streams("mock: reply the same words");
    let asked = Api::Chat.sends(&with(
        Api::Chat.body("mock: reply the same words"),
        json!({"stream": true, "stream_options": {"include_usage": true}}),
    ));
    let rig = Rig::in_memory(mock::Options::default()).await;
    let id = |text: &str| text.split("chatcmpl-").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let (plain, told) = (direct(&rig, &ask).await, direct(&rig, &asked).await);
    let (plain, told) = (plain.text().to_owned(), told.text().to_owned());
    assert_eq!(plain, without_usage(&told).replace(&id(&told), &id(&plain)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_stream_is_held_back_until_it_is_settled() {
    for api in ALL {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve().await;
        let ask = api.streams("mock: reply one two three\nmock: hang\nmock: tokens 4");
        let mut opened = ask.open(server.addr).await;
        opened.read_until("data: ").await;
        assert_eq!(opened.status, 200);
        assert_eq!(server.states("r"), [State::Open], "{api:?}");
    }
}

// Bug: the frame that tells a client that its stream broke was lost.
// Consequence: the SDKs saw a cut connection, which they may retry, or nothing at all.
// Cause: hyper drops what it has buffered when a body fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_ends_with_an_error_frame_and_never_cleanly() {
    for api in ALL {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve().await;
        let answer = api.streams("mock: tokens 40\nmock: truncate").to(&server).await;
        assert_eq!(answer.status, 200);
        assert!(answer.broken, "{api:?}: {}", answer.text());
        let last = answer.text().trim_end().rsplit("\n\n").next().unwrap().to_owned();
        assert!(last.contains("upstream_broke_off"), "{api:?}: {last}");
        assert_eq!(last.starts_with("event: error\ndata: "), api == Api::Messages, "{last}");
        let entry = server.closed("r", 1).await;
        assert_eq!(entry.state, State::Failed);
        let call = entry.call.unwrap();
        assert!(call.estimated, "no usage came: its reservation stands");
        assert_eq!(call.error.as_deref(), Some("upstream_broke_off"));
        // A broken answer is not replayed: a repeated request is sent again.
        assert!(!api.streams("mock: tokens 40\nmock: truncate").label("b").to(&server).await.is_replayed());
        assert_eq!(rig.mock.paid(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_never_ends_cleanly_because_its_server_ends() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let mut streams = Vec::new();
    for n in 0..20 {
        let ask = ALL[n % ALL.len()].streams(&format!("mock: tokens 9\nmock: hang\n{n}"));
        let mut opened = ask.open(server.addr).await;
        opened.read_until("data: ").await;
        streams.push(opened);
    }
    server.kill().await;
    for stream in streams {
        let answer = stream.rest().await;
        assert!(answer.broken, "{}", answer.text());
    }
}

// Bug: an answer was given only when the upstream's connection was done, not when the answer was.
// Consequence: behind an upstream that keeps its connection open a client waited for the idle timeout.
// Cause: the settlement was looked at only after the body had ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_its_terminal_event_though_the_upstream_stays() {
    let chunk = r#"data: {"id":"x","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}"#;
    let stop = r#"data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let usage =
        r#"data: {"id":"x","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}"#;
    let text = scripted::stream(&format!("{chunk}\n\n{stop}\n\n{usage}\n\ndata: [DONE]\n\n"));
    let upstream = Scripted::start(move |_| (text.clone(), Then::Hang)).await;
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_with(towards(&rig, &upstream)).await;
    let body = Api::Chat.streams("x").to(&server).await.ok();
    assert_eq!(body, format!("{chunk}\n\n{stop}\n\ndata: [DONE]\n\n"));
    let entry = server.closed("r", 1).await;
    assert_eq!(entry.state, State::Done);
    assert_eq!(entry.call.unwrap().usage.map(|u| (u.input, u.output)), Some((5, 1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_providers_own_error_in_a_stream_reaches_the_client_once_recorded() {
    let chunk = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\n";
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"too busy\"}}\n\n";
    let text = scripted::stream(&format!("{chunk}{error}"));
    let upstream = Scripted::start(move |_| (format!("{text}0\r\n\r\n"), Then::Close)).await;
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_with(towards(&rig, &upstream)).await;
    let answer = Api::Messages.streams("x").to(&server).await;
    assert_eq!(answer.text(), format!("{chunk}{error}"));
    let entry = server.closed("r", 1).await;
    assert_eq!(entry.state, State::Failed);
    assert_eq!(entry.call.unwrap().error.as_deref(), Some("too busy"));
    assert!(entry.spent.cost() > 0, "it is charged at its reservation");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_a_stream_may_be_answered_without_one() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let body = r#"{"id":"x","choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}"#;
    let text = scripted::json(200, body);
    let upstream = Scripted::start(move |_| (text.clone(), Then::Close)).await;
    let server = rig.serve_with(towards(&rig, &upstream)).await;
    assert_eq!(Api::Chat.streams("x").label("a").to(&server).await.ok(), body);
    assert_eq!(Api::Chat.streams("x").label("b").to(&server).await.ok(), body);
    assert_eq!(upstream.requests().len(), 1);
}

const BEGUN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"The answer is \"}}]}\n\n";
const PING: &str = "6\r\n: on\n\n\r\n";

// Bug: a wedged stream that sent pings was never given up, nor was JSON with blanks before it.
// Consequence, cause: `only_what_carries_a_part_of_an_answer_ends_the_wait_for_one`, where the wait is tested.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_only_stays_alive_is_given_up() {
    let blanks = "HTTP/1.1 200 X\r\ncontent-type: application/json\r\n\r\n ".to_owned();
    for (head, again, ask) in
        [(scripted::stream(BEGUN), PING, Api::Chat.streams("x")), (blanks, "\n", Api::Chat.says("x"))]
    {
        let upstream = Scripted::start(move |_| (head.clone(), Then::Repeat(again))).await;
        let rig = Rig::in_memory(mock::Options::default()).await;
        let idle_timeout = Duration::from_millis(80);
        let server = rig.serve_with(Config { idle_timeout, ..towards(&rig, &upstream) }).await;
        let answer = ask.to(&server).await;
        assert!(answer.text().contains("upstream_broke_off"), "{}", answer.text());
        assert_eq!(server.states("r"), [State::Failed]);
    }
}

// Bug: each life of an agent was joined to the wedged stream of the life before.
// Consequence: lives that were shorter than `--idle-timeout` ended as a crash loop, while the provider answered.
// Cause: the wait for an answer was as long when somebody waited for it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_life_that_joins_an_answer_that_does_not_get_on_asks_anew() {
    let count = AtomicUsize::new(0);
    let upstream = Scripted::start(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => (scripted::stream(BEGUN), Then::Repeat(PING)),
        _ => (scripted::stream(&format!("{BEGUN}{}", END)), Then::Close),
    })
    .await;
    let rig = Rig::in_memory(mock::Options::default()).await;
    let urged_idle_timeout = Duration::from_millis(80);
    let server = rig.serve_with(Config { urged_idle_timeout, ..towards(&rig, &upstream) }).await;
    let ask = Api::Chat.streams("x");
    let mut first = ask.clone().label("a").open(server.addr).await;
    first.read_until("The answer is").await;
    drop(first);
    let joined = ask.clone().label("b").to(&server).await;
    assert!(joined.broken && upstream.requests().len() == 1, "{}", joined.text());
    let again = ask.label("b").retry(1).to(&server).await;
    assert!(!again.broken && upstream.requests().len() == 2, "{}", again.text());
}

const END: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n";
