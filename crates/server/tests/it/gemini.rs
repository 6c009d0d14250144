//! Features that only Gemini's API has: a stream as one JSON array, the key in the query, the cap two levels down.

use outlast_core::{
    envelope::unit::{Limits, Unit},
    journal::State,
};
use outlast_mock as mock;
use serde_json::{Value, json};

use crate::{
    client::{Api, Ask, with},
    rig::{GEMINI_KEY, Rig, limit},
};

fn array(text: &str) -> Ask {
    let target = Api::Gemini.path().replace(":generateContent", ":streamGenerateContent");
    Api::Gemini.says(text).target(&target)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_one_array_is_the_same_bytes_settled_and_replayed() {
    let (rig, beside) =
        (Rig::in_memory(mock::Options::default()).await, Rig::in_memory(mock::Options::default()).await);
    let server = rig.serve_limited(limit(Unit::CostNanoUsd, 1_000_000_000)).await;
    let ask = array("mock: reply one two three\nmock: usage 100,10");
    let first = ask.clone().label("one").to(&server).await.ok();
    let own = ask.clone().without("x-outlast-run").header("x-goog-api-key", GEMINI_KEY);
    assert_eq!(own.open(beside.mock.addr()).await.rest().await.body, first);
    let chunks: Vec<Value> = serde_json::from_slice(&first).unwrap();
    assert!(chunks.len() > 2);
    let entry = server.closed("r", 1).await;
    assert_eq!(entry.call.unwrap().usage.map(|u| (u.input, u.output)), Some((100, 10)));
    // 0.30 and 2.50 usd per million.
    assert_eq!(entry.spent.cost(), 100 * 300 + 10 * 2500);
    let again = ask.label("two").to(&server).await;
    assert!(again.is_replayed());
    assert_eq!(again.ok(), first);
    assert_eq!(rig.mock.paid(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_array_comes_element_by_element_and_its_end_is_held_back_until_it_is_settled() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let mut opened = array("mock: tokens 4\nmock: hang").open(server.addr).await;
    opened.read_until("\"text\"").await;
    assert_eq!(server.states("r"), [State::Open]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_array_that_breaks_ends_with_an_error_in_it_and_not_cleanly() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let answer = array("mock: tokens 40\nmock: truncate").to(&server).await;
    assert!(answer.broken, "{}", answer.text());
    let chunks: Vec<Value> = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(chunks.last().unwrap()["error"]["details"][0]["reason"], "upstream_broke_off");
    assert_eq!(server.closed("r", 1).await.state, State::Failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_the_query_is_the_callers_own_and_no_part_of_the_digest() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let path = Api::Gemini.path();
    let ask = Api::Gemini.says("x").target(&format!("{path}?key=AIza-mine&x=1"));
    let first = ask.clone().label("one").to(&server).await.ok();
    let sent = rig.mock.requests().pop().unwrap();
    assert_eq!(
        (sent.target, sent.headers["x-goog-api-key"].to_str().unwrap()),
        (format!("{path}?x=1"), "AIza-mine")
    );
    // The same said in the header.
    let header = Api::Gemini.says("x").target(&format!("{path}?x=1")).header("x-goog-api-key", "AIza-mine");
    assert_eq!(header.label("two").to(&server).await.ok(), first);
    let both = ask.header("x-goog-api-key", "AIza-theirs").to(&server).await;
    assert_eq!((both.status.as_u16(), both.code()), (403, "credentials_disagree".into()));
    assert_eq!(rig.mock.paid(), 1);
    // Where nothing is recorded as well: ours is not put beside it.
    Ask::new("GET", "/v1beta/models?key=AIza-mine").run("r").to(&server).await.ok();
    let sent = rig.mock.requests().pop().unwrap();
    assert_eq!(
        (sent.target.as_str(), sent.headers["x-goog-api-key"].to_str().unwrap()),
        ("/v1beta/models", "AIza-mine")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cap_is_lowered_to_what_the_budget_has_room_for() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_limited(limit(Unit::CostNanoUsd, 2_000_000)).await;
    let body = with(Api::Gemini.body("hello"), json!({"generationConfig": {"temperature": 0.5}}));
    let answer = Api::Gemini.sends(&body).to(&server).await;
    let cap: u64 = answer.header("x-outlast-clamped").unwrap().parse().unwrap();
    let sent: Value = serde_json::from_slice(&rig.mock.requests().pop().unwrap().body).unwrap();
    assert_eq!(sent["generationConfig"], json!({"maxOutputTokens": cap, "temperature": 0.5}));
    answer.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn other_clouds_and_verbs_are_refused_in_their_clients_words() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_limited(Limits::default()).await;
    for (path, says) in [
        ("/v1beta1/projects/p/locations/l/publishers/google/models/m:generateContent", "Vertex AI"),
        ("/v1/projects/p/locations/l/publishers/anthropic/models/m:rawPredict", "Vertex AI"),
        ("/model/anthropic.claude-v1/invoke", "Bedrock"),
        ("/model/anthropic.claude-v1/converse-stream", "Bedrock"),
        ("/v1beta/models/imagen-4:predict", "images"),
        ("/v1beta/models/m:embedContent", "embeddings"),
        ("/v1beta/cachedContents", "cached contents"),
        ("/v1/images/generations", "images"),
        ("/v1/audio/speech", "audio"),
        ("/v1/completions", "text completions"),
    ] {
        let refused = Ask::new("POST", path).bytes("{}").run("r").to(&server).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (403, "not_metered".into()), "{path}");
        let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(says) && message.contains("nothing was sent"), "{path}: {message}");
    }
    let free = Ask::new("POST", "/v1beta/models/gemini-2.5-flash:countTokens").bytes("{}").run("r");
    assert_eq!(free.to(&server).await.json()["totalTokens"], 1);
    let models = Ask::new("GET", "/v1beta/models").run("r").to(&server).await;
    assert!(models.text().contains("models/gemini-2.5-flash"));
    assert_eq!(rig.mock.paid(), 0);
}
