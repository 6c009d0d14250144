//! An upstream that takes only so much a minute, by configuration or by its own word.

use std::{sync::Arc, time::Duration};

use outlast_core::{envelope::unit::Unit, journal::State};
use outlast_mock as mock;
use outlast_server::{
    dialect::Upstream,
    door::{Config, Named},
};

use crate::{
    client::{Api, Ask, every},
    rig::{Rig, Server, house, limit, until, within},
    scripted::{Scripted, Then, json},
};

const ANSWER: &str = r#"{"id":"1","model":"gpt-4o-mini","choices":[{"message":{"content":"hi"}}],
    "usage":{"prompt_tokens":10,"completion_tokens":10}}"#;

/// A server under `rate`, where nobody waits for long.
async fn limited(rig: &Rig, rate: &str) -> Server {
    let upstream_rate = rate.parse().unwrap();
    let admit_wait = Duration::from_millis(60);
    rig.serve_with(Config { upstream_rate, admit_wait, ..rig.config() }).await
}

async fn has_no_turn(server: &Server, ask: &Ask) {
    let refused = ask.to(server).await;
    assert_eq!(
        (refused.status.as_u16(), refused.code()),
        (429, "upstream_rate".into()),
        "{}",
        refused.text()
    );
    assert_eq!(refused.header("x-should-retry"), Some("true"));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_runs_of_a_server_share_the_rate_and_who_has_no_turn_is_told_when_to_come() {
    for api in every() {
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = limited(&rig, "2rpm").await;
        api.says("a").run("one").to(&server).await.ok();
        api.says("b").run("two").to(&server).await.ok();
        has_no_turn(&server, &api.says("c").run("three")).await;
        assert_eq!(rig.mock.requests().len(), 2, "{api:?}");
        // The refused call left no entry, and held no reservation.
        assert_eq!(server.entries("three").len(), 0);
        assert_eq!(server.envelope("three").reserved.tokens(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_upstream_has_its_own_minute_and_a_named_one_its_own_rate() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let mut config = Config { admit_wait: Duration::from_millis(60), ..rig.config() };
    config.upstream_rate = "1rpm".parse().unwrap();
    let base = format!("{}/openai/v1", rig.mock.base_url());
    config.providers.named = vec![Arc::new(Named { rate: Some("2rpm".parse().unwrap()), ..house(&base) })];
    let server = rig.serve_with(config).await;
    Api::Chat.says("a").to(&server).await.ok();
    Api::Messages.says("a").to(&server).await.ok();
    Api::Named.says("a").to(&server).await.ok();
    Api::Named.says("b").to(&server).await.ok();
    for api in [Api::Responses, Api::Messages, Api::Named] {
        has_no_turn(&server, &api.says("z")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_journal_has_wants_no_turn() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = limited(&rig, "1rpm").await;
    Api::Chat.says("a").label("one").to(&server).await.ok();
    for label in ["two", "three"] {
        assert!(Api::Chat.says("a").label(label).to(&server).await.is_replayed());
    }
    has_no_turn(&server, &Api::Chat.says("b").label("four")).await;
}

// Bug: a request that was given a call in flight stayed in the line for its turn, at its head.
// Consequence: nobody else got a turn until that call had ended.
// Cause: it lined up before it was decided, and left the line only at its end.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_joins_a_call_in_flight_keeps_nobody_from_his_turn() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let upstream = Scripted::start(|request| match request.contains("\"hang\"") {
        true => (String::new(), Then::Hang),
        false => {
            let none = "x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: 300ms";
            (json(200, ANSWER).replacen("\r\n", &format!("\r\n{none}\r\n"), 1), Then::Close)
        }
    })
    .await;
    let server = before(&rig, &upstream).await;
    let hang = Api::Chat.says("hang").run("hangs");
    let _first = hang.clone().label("one").throw(server.addr).await;
    until("it is in flight", || upstream.requests().len() == 1).await;
    Api::Chat.says("a").run("other").to(&server).await.ok();
    // No turn is there now, and this one needs none.
    let _joiner = hang.label("two").throw(server.addr).await;
    until("it has joined", || server.proxy.in_progress() == 2).await;
    let began = std::time::Instant::now();
    Api::Chat.says("b").run("third").to(&server).await.ok();
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(10), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_count_as_used_and_a_call_that_did_not_go_does_not_count() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = limited(&rig, "1000tpm").await;
    // Each is bound to some hundred bytes and 64 tokens of output, and uses 10.
    for text in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"] {
        let ask = Api::Chat.says(&format!("mock: usage 5,5\n{text}"));
        ask.to(&server).await.ok();
        server.at_rest("r").await;
    }
    Api::Chat.says("mock: usage 900,5").to(&server).await.ok();
    has_no_turn(&server, &Api::Chat.says("x")).await;
    // Refused by its budget, a call had no turn either.
    let poor = Config {
        default_limits: limit(Unit::CostNanoUsd, 1),
        upstream_rate: "1rpm".parse().unwrap(),
        ..rig.config()
    };
    let server = rig.serve_with(poor).await;
    assert_eq!(Api::Chat.says("x").run("poor").to(&server).await.status, 402);
    assert_eq!(Api::Chat.says("y").run("poorer").to(&server).await.status, 402);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_client_leaves_while_it_waits_is_dropped() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let config = Config { upstream_rate: "1rpm".parse().unwrap(), ..rig.config() };
    let server = rig.serve_with(config).await;
    Api::Chat.says("a").to(&server).await.ok();
    until("the first has ended", || server.proxy.in_progress() == 0).await;
    let waiting = Api::Chat.says("b").throw(server.addr).await;
    until("the second waits", || server.proxy.in_progress() == 1).await;
    drop(waiting);
    until("the second is dropped", || server.proxy.in_progress() == 0).await;
    assert_eq!((server.states("r"), rig.mock.requests().len()), (vec![State::Done], 1));
}

/// An upstream that says how much is left.
async fn telling(headers: &'static str) -> Scripted {
    Scripted::start(move |_| {
        let text = json(200, ANSWER).replacen("\r\n", &format!("\r\n{headers}\r\n"), 1);
        (text, Then::Close)
    })
    .await
}

async fn before(rig: &Rig, upstream: &Scripted) -> Server {
    let mut config = rig.config();
    config.providers.of_mut(Upstream::OpenAi).base.clone_from(&upstream.base);
    rig.serve_with(config).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_has_none_left_is_asked_when_it_has() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let upstream = telling("x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: 400ms").await;
    let server = before(&rig, &upstream).await;
    let began = std::time::Instant::now();
    Api::Chat.says("a").run("one").to(&server).await.ok();
    let (second, third) = (Api::Chat.says("b").run("two"), Api::Chat.says("c").run("three"));
    let (second, third) = tokio::join!(second.to(&server), third.to(&server));
    second.ok();
    third.ok();
    // One after the other: each answer says anew that none is left.
    assert!(began.elapsed() >= Duration::from_millis(800), "{:?}", began.elapsed());
    assert_eq!(upstream.requests().len(), 3);
    let queued = server.entries("two").remove(0);
    assert_eq!(queued.state, State::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_has_none_for_hours_says_so_itself() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let upstream = telling("x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: 8h").await;
    let server = before(&rig, &upstream).await;
    Api::Chat.says("a").to(&server).await.ok();
    Api::Chat.says("b").to(&server).await.ok();
    assert_eq!(upstream.requests().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_run_passes_by_the_others() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let upstream = telling("x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: 200ms").await;
    let server = Arc::new(before(&rig, &upstream).await);
    Api::Chat.says("first").run("greedy").to(&server).await.ok();
    // Three of one run wait before one of another comes: it is not behind all of them.
    let mut all = Vec::new();
    for (run, text) in [("greedy", "g1"), ("greedy", "g2"), ("greedy", "g3"), ("modest", "m1")] {
        let (asking, n) = (server.clone(), all.len() + 1);
        all.push(tokio::spawn(async move { Api::Chat.says(text).run(run).to(&asking).await.ok() }));
        until("it has come", || server.proxy.in_progress() >= n || upstream.requests().len() > n).await;
    }
    for one in all {
        within("each has its turn", one).await.unwrap();
    }
    let order: Vec<String> = upstream
        .requests()
        .iter()
        .map(|r| {
            ["first", "g1", "g2", "g3", "m1"]
                .into_iter()
                .find(|t| r.contains(&format!("\"{t}\"")))
                .unwrap()
                .to_owned()
        })
        .collect();
    let at = |text: &str| order.iter().position(|t| t == text).unwrap();
    assert!(at("m1") < at("g3"), "{order:?}");
}
