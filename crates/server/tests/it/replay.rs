//! Replay: a repeated request gets the recorded answer, and is paid for once.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use bytes::Bytes;
use outlast_core::{envelope::unit::Limits, journal::State, run::Policy};
use outlast_mock as mock;
use outlast_server::door::Seen;
use serde_json::json;

use crate::{
    client::{ALL, Answer, Api, Ask, all, every, ways, with},
    rig::{Rig, Server, until},
    scripted::{self, Scripted, Then},
    stream::towards,
};

/// Slow enough that requests sent together are in flight together.
fn slow() -> mock::Options {
    mock::Options { latency: Duration::from_millis(60), ..mock::Options::default() }
}

fn bodies(answers: Vec<Answer>) -> BTreeSet<Bytes> {
    answers.into_iter().map(Answer::ok).collect()
}

async fn five(server: &Server, ask: &Ask) -> Vec<Answer> {
    all(server, std::iter::repeat_n(ask.clone(), 5)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn five_identical_parallel_requests_are_five_answers_before_and_after_a_restart() {
    for (api, stream) in ways() {
        let rig = Rig::new(slow()).await;
        let ask = with_stream(api, "the same", stream);
        let server = rig.serve().await;
        let before = bodies(five(&server, &ask.clone().label("one")).await);
        assert_eq!((before.len(), rig.mock.paid()), (5, 5), "{api:?} {stream}");
        until("all are delivered", || server.entries("r").iter().all(|e| e.delivered_to.is_some())).await;
        server.kill().await;

        let server = rig.serve().await;
        let after = five(&server, &ask.clone().label("two")).await;
        assert!(after.iter().all(Answer::is_replayed));
        assert_eq!(bodies(after), before, "{api:?} {stream}");
        assert_eq!(rig.mock.paid(), 5);
        // The sixth is a new one.
        assert!(!before.contains(&ask.label("two").to(&server).await.ok()));
        assert_eq!(rig.mock.paid(), 6);
    }
}

fn with_stream(api: Api, text: &str, stream: bool) -> Ask {
    if stream { api.streams(text) } else { api.says(text) }
}

#[tokio::test(flavor = "multi_thread")]
async fn five_identical_parallel_requests_are_five_answers_when_one_was_refused_and_retried() {
    for api in every() {
        let rig = Rig::in_memory(slow()).await;
        let server = rig.serve().await;
        let ask = api.says("mock: status 429 1").label("one");
        let (good, bad): (Vec<Answer>, Vec<Answer>) =
            five(&server, &ask).await.into_iter().partition(|a| a.status == 200);
        assert_eq!((good.len(), bad[0].status.as_u16()), (4, 429));
        assert_eq!(bad[0].header("retry-after"), Some("1"));
        let mut answers = bodies(good);
        answers.insert(ask.clone().retry(1).to(&server).await.ok());
        assert_eq!((answers.len(), rig.mock.paid()), (5, 5), "{api:?}");
        // And a restarted agent gets these five.
        assert_eq!(bodies(five(&server, &ask.label("two")).await), answers);
        assert_eq!(rig.mock.paid(), 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_in_mid_stream_and_asks_again_gets_the_same_bytes_for_one_request() {
    for api in ALL {
        let rig = Rig::in_memory(slow()).await;
        let server = rig.serve().await;
        let ask = api
            .streams("mock: reply one two three four five six seven eight\nmock: latency 400ms")
            .label("first");
        let mut first = ask.open(server.addr).await;
        first.read_until("three").await;
        let seen = first.read.clone();
        drop(first);
        until("its leaving is noticed", || server.proxy.in_progress() == 0).await;
        // While it is still in flight, and once it is over.
        let joined = ask.to(&server).await;
        assert!(joined.is_replayed() && joined.body.starts_with(&seen), "{api:?}");
        let whole = joined.ok();
        assert_eq!(ask.label("next").to(&server).await.ok(), whole, "{api:?}");
        assert_eq!(rig.mock.paid(), 1, "{api:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_of_a_client_that_left_is_settled_with_its_usage_and_given_to_it_later() {
    for (api, stream) in ways() {
        let rig = Rig::in_memory(slow()).await;
        let server = rig.serve().await;
        let ask = with_stream(api, "mock: usage 900,32\nmock: tokens 8", stream);
        let gone = ask.throw(server.addr).await;
        until("the provider was asked", || rig.mock.paid() == 1).await;
        drop(gone);
        until("its leaving is noticed", || server.proxy.in_progress() == 0).await;
        let entry = server.closed("r", 1).await;
        assert_eq!(entry.state, State::Done);
        let call = entry.call.unwrap();
        assert!(!call.estimated);
        assert_eq!(call.usage.map(|u| (u.input_total(), u.output)), Some(api.used(900, 32)));
        assert_eq!(entry.delivered_to, None);
        assert!(ask.to(&server).await.is_replayed());
        assert_eq!(rig.mock.paid(), 1, "{api:?} {stream}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_marked_retry_costs_nothing_after_everything_was_flushed() {
    for (api, stream) in ways() {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve().await;
        let ask = with_stream(api, "once", stream);
        let first = ask.to(&server).await.ok();
        until("it is delivered", || server.entries("r")[0].delivered_to.is_some()).await;
        // As its client sees it, the answer was lost on the way.
        assert_eq!(ask.clone().retry(1).to(&server).await.ok(), first, "{api:?} {stream}");
        until("it is delivered again", || server.saw(|s| matches!(s, Seen::Replayed { .. })) == 1).await;
        assert_eq!(ask.clone().retry(2).to(&server).await.ok(), first, "{api:?} {stream}");
        assert_eq!(rig.mock.paid(), 1);
        // Asked anew, it is a new question.
        assert_ne!(ask.to(&server).await.ok(), first);
        assert_eq!(rig.mock.paid(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_marks_a_retry() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let ask = Api::Chat.says("once").header("idempotency-key", "k1");
    let first = ask.to(&server).await.ok();
    until("it is delivered", || server.entries("r")[0].delivered_to.is_some()).await;
    assert_eq!(ask.to(&server).await.ok(), first);
    assert_ne!(ask.header("idempotency-key", "k2").to(&server).await.ok(), first);
    assert_eq!(rig.mock.paid(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_written_otherwise_is_the_same_one_and_one_that_says_more_is_not() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let body = Api::Chat.body("a question");
    let first = Api::Chat.sends(&body).label("one").to(&server).await.ok();
    let messages = body["messages"].to_string();
    let same = [
        format!(r#"{{"messages":{messages},"max_tokens":64,"model":"gpt-4o-mini"}}"#),
        format!("{{ \"model\" : \"gpt\\u002d4o-mini\",\n\"max_tokens\":64, \"messages\":{messages} }}"),
        with(body.clone(), json!({"user": "u", "metadata": {"run": 7}})).to_string(),
    ];
    for (n, text) in same.iter().enumerate() {
        let again = Api::Chat.says("").bytes(text.clone()).label(&format!("same{n}"));
        assert_eq!(again.to(&server).await.ok(), first, "{text}");
    }
    assert_eq!(rig.mock.paid(), 1);
    let others = [
        Api::Chat.sends(&with(body.clone(), json!({"temperature": 0}))),
        Api::Chat.sends(&with(body.clone(), json!({"max_tokens": 65}))),
        Api::Chat.sends(&body).target("/v1/chat/completions?x=1"),
        Api::Chat.sends(&body).header("anthropic-beta", "b"),
        Api::Chat.sends(&body).header("authorization", "Bearer sk-own"),
    ];
    for (n, ask) in others.into_iter().enumerate() {
        assert!(!ask.label(&format!("other{n}")).to(&server).await.is_replayed(), "{n}");
    }
    assert_eq!(rig.mock.paid(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervised_agent_replays_from_its_first_attempt_and_diverges_where_it_does() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let token = server.driven("r", Limits::default(), Policy::default()).await;
    let mut answers = Vec::new();
    for n in 0..3 {
        answers.push(Api::Messages.says(&format!("step {n}")).token(&token).to(&server).await.ok());
    }
    let next = server.claim("r").await;
    let old = Api::Messages.says("step 0").token(&token).to(&server).await;
    assert_eq!((old.status.as_u16(), old.code()), (403, "lease_lost".into()));
    for (n, answer) in answers.iter().enumerate().take(2) {
        assert_eq!(
            Api::Messages.says(&format!("step {n}")).token(&next).to(&server).await.ok(),
            answer.clone()
        );
    }
    assert_eq!(rig.mock.paid(), 3);
    until("both are delivered", || server.saw(|s| matches!(s, Seen::Replayed { .. })) == 2).await;
    Api::Messages.says("another way").token(&next).to(&server).await.ok();
    assert_eq!(server.saw(|s| *s == Seen::Diverged { untaken: 1 }), 1);
    let run = server.run("r").run;
    assert_eq!(run.replayed, 2);
    assert!(run.saved_nano_usd > 0);
}

// Bug: the retry of a lost call that failed at nothing was never taken as retried.
// Consequence: when the answer after it was lost on its way, its retry was a new call, and paid again.
// Cause: the next retry stood for the lost call alone, because the failed one had given back to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_lost_refused_and_answered_is_answered_once() {
    let calls = AtomicUsize::new(0);
    let upstream = Scripted::start(move |_| {
        let text = match calls.fetch_add(1, Ordering::SeqCst) {
            0 => String::new(),
            1 => scripted::json(500, r#"{"error":{"message":"not now"}}"#),
            n => scripted::json(200, &format!(r#"{{"id":"{n}","choices":[]}}"#)),
        };
        (text, Then::Close)
    })
    .await;
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_with(towards(&rig, &upstream)).await;
    let ask = Api::Chat.says("x");
    assert_eq!(ask.to(&server).await.status, 504);
    assert_eq!(ask.clone().retry(1).to(&server).await.status, 500);
    let answer = ask.clone().retry(2).to(&server).await.ok();
    until("it is delivered", || server.entries("r")[2].delivered_to.is_some()).await;
    assert_eq!(ask.retry(3).to(&server).await.ok(), answer);
    assert_eq!(upstream.requests().len(), 3);
}

// Bug: an answer counted as delivered when it was handed to hyper, not when it was flushed.
// Consequence: a client that left within a long answer paid for it again when it came back.
// Cause: hyper lets go of a body as soon as its last byte is buffered.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_not_flushed_is_not_delivered() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    // More than the sockets between us can hold.
    let ask = Api::Chat
        .sends(&with(Api::Chat.body("mock: tokens 100000"), json!({"max_tokens": 100_000, "n": 24})));
    let mut first = ask.open(server.addr).await;
    first.read_until("w17").await;
    assert_eq!(server.entries("r")[0].delivered_to, None);
    drop(first);
    until("its leaving is noticed", || server.proxy.in_progress() == 0).await;
    let again = ask.to(&server).await;
    assert!(again.is_replayed());
    assert!(again.ok().len() > 10 << 20);
    assert_eq!(rig.mock.paid(), 1);
}
