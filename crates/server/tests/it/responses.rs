//! Feature that only the Responses API has: answers that the provider keeps, by id.

use outlast_core::{envelope::unit::Unit, journal::State};
use outlast_mock as mock;
use outlast_server::door::Config;
use serde_json::{Value, json};

use crate::{
    client::{Answer, Api, Ask, all, with},
    rig::{Rig, Server, limit, until},
    scripted::{self, Scripted, Then},
    stream::towards,
};

/// A request that goes on from the answer `id`.
fn after(id: &str, text: &str) -> Ask {
    Api::Responses.sends(&with(Api::Responses.body(text), json!({"previous_response_id": id})))
}

fn about(method: &str, id: &str, more: &str) -> Ask {
    Ask::new(method, &format!("/v1/responses/{id}{more}")).run("r")
}

fn id_of(answer: &Answer) -> String {
    answer.json()["id"].as_str().unwrap_or_else(|| panic!("{}", answer.text())).to_owned()
}

async fn is_foreign(server: &Server, ask: Ask) {
    let refused = ask.to(server).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (403, "foreign_response"));
    assert!(refused.text().contains("in this run's journal"), "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_kept_at_the_provider_is_replayed_with_its_original_ids() {
    let rig = Rig::new(mock::Options::default()).await;
    let mut ids = Vec::new();
    for life in 0..3 {
        let server = rig.serve().await;
        let label = format!("life-{life}");
        let first = Api::Responses.says("mock: tool look {}").label(&label);
        let tools = json!({"tools": [{"type": "function", "name": "look"}]});
        let body: Value = with(serde_json::from_slice(&first.body).unwrap(), tools.clone());
        let first = Api::Responses.sends(&body).label(&label).to(&server).await;
        let call = first.json()["output"][0]["call_id"].as_str().unwrap().to_owned();
        let result = json!([{"type": "function_call_output", "call_id": call, "output": "fine"}]);
        let body = json!({"previous_response_id": id_of(&first), "input": result, "stream": true, "max_output_tokens": 64});
        let body = with(with(body, tools), json!({"model": "gpt-4o-mini"}));
        let second = Api::Responses.sends(&body).label(&label).to(&server).await;
        let text = second.text().to_owned();
        let second_id = text.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        // The third is new in each life: its reference has to be found in the journal.
        let third = after(&second_id, &format!("and now {life}")).label(&label).to(&server).await;
        assert!(!third.is_replayed());
        ids.push((id_of(&first), second_id));
        third.ok();
        assert!(text.contains("response.completed"), "{text}");
        server.kill().await;
    }
    assert!(ids.iter().all(|pair| *pair == ids[0]), "{ids:?}");
    assert_eq!(rig.mock.paid(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_in_the_runs_own_journal_is_refused_by_name() {
    let rig = Rig::new(mock::Options::default()).await;
    let server = rig.serve().await;
    let theirs = Api::Responses.says("a secret").run("theirs").to(&server).await;
    let (id, item) = (id_of(&theirs), theirs.json()["output"][0]["id"].as_str().unwrap().to_owned());
    let names = |item: &str| {
        let input = json!([{"type": "item_reference", "id": item}, {"role": "user", "content": "repeat it"}]);
        Api::Responses.sends(&with(Api::Responses.body(""), json!({"input": input})))
    };
    let asked = rig.mock.requests().len();
    for ask in [
        after(&id, "repeat it"),
        after("resp_never", "x"),
        names(&item),
        about("GET", &id, ""),
        about("GET", &id, "/input_items"),
        about("DELETE", &id, ""),
    ] {
        is_foreign(&server, ask).await;
    }
    assert_eq!(rig.mock.requests().len(), asked, "nothing was sent");
    assert!(server.entries("r").is_empty(), "nor charged");
    // Requests of the run that owns the answer may name it, also behind another server and after a death.
    let other = rig.serve().await;
    server.kill().await;
    for ask in
        [about("GET", &id, ""), about("GET", &id, "/input_items"), names(&item), after(&id, "repeat it")]
    {
        ask.run("theirs").to(&other).await.ok();
    }
    assert_eq!(about("GET", &id, "").run("theirs").to(&other).await.json(), theirs.json());
    let deleted = about("DELETE", &id, "").run("theirs").to(&other).await;
    assert_eq!(deleted.json()["deleted"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_body_only_references_is_reserved_at_the_models_maximum() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_limited(limit(Unit::Tokens, 20_000)).await;
    let first = Api::Responses.says(&"x".repeat(4000)).to(&server).await;
    // The bound of the input is all that the model takes (128,000 tokens), though the provider would bill a thousand.
    let refused = after(&id_of(&first), "go on").to(&server).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (402, "token_budget_exceeded"));
    server.raise("r", Unit::Tokens, 200_000).await;
    let answer = after(&id_of(&first), "go on").label("b").to(&server).await;
    let billed = answer.json()["usage"]["input_tokens"].as_u64().unwrap();
    assert!(billed > 1000, "the provider bills what it kept: {billed}");
    let entry = server.entries("r").pop().unwrap();
    let (usage, reserved) =
        (entry.call.as_ref().unwrap().usage.unwrap(), entry.call.as_ref().unwrap().reserved);
    assert_eq!(usage.input_total(), billed);
    assert_eq!(reserved[Unit::Tokens], 128_000 + 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_metered_yet_is_refused_by_its_field() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_limited(limit(Unit::CostNanoUsd, 5_000_000_000)).await;
    for (more, code, status, says) in [
        (json!({"background": true}), "not_metered", 403, "`background`"),
        (json!({"conversation": "conv_1"}), "not_metered", 403, "`conversation`"),
    ] {
        let refused = Api::Responses.sends(&with(Api::Responses.body("x"), more)).to(&server).await;
        assert_eq!((refused.status.as_u16(), refused.code().as_str()), (status, code));
        assert!(refused.text().contains(says), "{}", refused.text());
    }
    // A request without a price or a bound is not sent under a limit in usd, and is sent under another limit.
    let tokens = rig.serve_limited(limit(Unit::Tokens, 10_000_000)).await;
    for tools in
        [json!([{"type": "web_search"}]), json!([{"type": "file_search", "vector_store_ids": ["vs"]}])]
    {
        let ask = Api::Responses.sends(&with(Api::Responses.body("x"), json!({"tools": tools})));
        let run = tools[0]["type"].as_str().unwrap();
        let refused = ask.clone().run(run).to(&server).await;
        assert_eq!((refused.status.as_u16(), refused.code().as_str()), (402, "price_unknown"), "{run}");
        assert!(refused.text().contains(&format!("tools[0] {run}")), "{}", refused.text());
        ask.run(&format!("{run}-by-tokens")).to(&tokens).await.ok();
    }
    let bounded = json!({"tools": [{"type": "web_search"}], "max_tool_calls": 2});
    Api::Responses.sends(&with(Api::Responses.body("x"), bounded)).to(&server).await.ok();
    assert_eq!(rig.mock.paid(), 3);
}

// A provider says 200 of a response that failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_failed_is_charged_and_never_replayed() {
    let usage = r#""usage":{"input_tokens":9,"output_tokens":4}"#;
    let failed = format!(
        r#"{{"id":"resp_1","status":"failed","error":{{"code":"server_error","message":"oh no"}},{usage}}}"#
    );
    let frame =
        format!("event: response.failed\ndata: {{\"type\":\"response.failed\",\"response\":{failed}}}\n\n");
    for stream in [false, true] {
        let (text, wanted) = match stream {
            false => (scripted::json(200, &failed), failed.clone()),
            true => (format!("{}0\r\n\r\n", scripted::stream(&frame)), frame.clone()),
        };
        let upstream = Scripted::start(move |_| (text.clone(), Then::Close)).await;
        let rig = Rig::in_memory(mock::Options::default()).await;
        let server = rig.serve_with(towards(&rig, &upstream)).await;
        let ask = || if stream { Api::Responses.streams("x") } else { Api::Responses.says("x") };
        for label in ["a", "b"] {
            let answer = ask().label(label).to(&server).await;
            assert!(!answer.is_replayed(), "{stream}");
            assert_eq!((answer.status.as_u16(), answer.text()), (200, wanted.as_str()));
        }
        let entry = server.closed("r", 1).await;
        assert_eq!(entry.state, State::Failed);
        let call = entry.call.unwrap();
        assert_eq!((call.error.as_deref(), call.usage.map(|u| u.total())), (Some("oh no"), Some(13)));
        assert_eq!(upstream.requests().len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_find_each_others_answers() {
    let rig = Rig::new(mock::Options::default()).await;
    let server = rig.serve().await;
    let firsts = all(&server, (0..8).map(|n| Api::Responses.says(&format!("q{n}")))).await;
    let ids: Vec<String> = firsts.iter().map(id_of).collect();
    for answer in all(&server, ids.iter().map(|id| after(id, "go on"))).await {
        answer.ok();
    }
    assert_eq!(rig.mock.paid(), 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_is_found_wherever_it_stands_in_the_journal_and_whoever_wrote_it() {
    let rig = Rig::new(mock::Options::default()).await;
    let (one, two) = (rig.serve().await, rig.serve().await);
    let mut ids = Vec::new();
    for n in 0..70 {
        ids.push(id_of(&Api::Responses.says(&format!("q{n}")).to(&one).await));
    }
    // The newest first, then from within what was read, then from behind it.
    for n in [69, 50, 3, 0] {
        after(&ids[n], &format!("from {n}")).to(&two).await.ok();
    }
    // Ids of a call that was in flight when the journal was read, and of a later one.
    let slow = Api::Responses.says("slow\nmock: latency 300ms");
    let addr = one.addr;
    let slow = tokio::spawn(async move { slow.open(addr).await.rest().await });
    until("it is in flight", || rig.mock.paid() == 75).await;
    is_foreign(&two, after("resp_never", "x")).await;
    let slow = id_of(&slow.await.unwrap());
    let late = id_of(&Api::Responses.says("late").to(&one).await);
    for id in [late, slow] {
        after(&id, "go on").to(&two).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_another_run_is_continued_where_a_person_has_allowed_it() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_with(Config { foreign_responses: true, ..rig.config() }).await;
    let first = id_of(&Api::Responses.says("hello").run("a").to(&server).await);
    after(&first, "and now").run("b").to(&server).await.ok();
    assert_eq!(about("GET", &first, "").to(&server).await.status.as_u16(), 200);
}
