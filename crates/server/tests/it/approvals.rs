//! Approvals and policies over REST: who asks, who reads, who decides.

use outlast_core::{
    envelope::unit::Limits,
    run::{Policy, status::Status},
};
use outlast_mock as mock;
use outlast_server::door::{Access, Config};
use serde_json::{Value, json};

use crate::{
    client::{Answer, Api, Ask},
    rig::{Rig, Server},
};

const API: &str = "the-api-token";

/// A server with an API token, and one without on the same store.
async fn served() -> (Rig, Server) {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve_with(guarded(&rig)).await;
    (rig, server)
}

fn guarded(rig: &Rig) -> Config {
    let access = Access { api_token: Some(API.into()), ..rig.config().access };
    Config { access, ..rig.config() }
}

async fn driven(server: &Server, id: &str) -> String {
    server.driven(id, Limits::default(), Policy::default()).await
}

async fn sends(server: &Server, token: &str, method: &str, target: &str, body: Value) -> Answer {
    let bytes = if body.is_null() { String::new() } else { body.to_string() };
    Ask::new(method, target).token(token).bytes(bytes).to(server).await
}

#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (status, code), "{}", answer.text());
}

fn deploy(to: &str) -> Value {
    json!({"tool": "deploy", "sideEffect": "write", "arguments": {"to": to, "user": "u"}})
}

#[tokio::test]
async fn a_run_asks_with_its_token_and_a_person_decides_with_the_api_token() {
    let (_rig, server) = served().await;
    let token = driven(&server, "r").await;
    let asked = sends(&server, &token, "POST", "/v1/approvals", deploy("prod")).await;
    assert_eq!(asked.status, 201, "{}", asked.text());
    let pending = asked.json();
    assert_eq!((&pending["status"], &pending["required"]), (&json!("pending"), &json!(true)));
    assert_eq!((&pending["runId"], &pending["tool"]), (&json!("r"), &json!("deploy")));
    assert_eq!((&pending["sideEffect"], &pending["stepIndex"]), (&json!("write"), &json!(0)));
    assert_eq!(pending["arguments"], json!({"to": "prod", "user": "u"}));
    assert_eq!(server.status("r"), Status::Waiting);
    // The same in another spelling is the same question.
    let spelled = r#"{"tool":"deploy","sideEffect":"write","arguments":{ "user":"\u0075" , "to":"prod"}}"#;
    let again = Ask::new("POST", "/v1/approvals").token(&token).bytes(spelled).to(&server).await;
    assert_eq!(again.json(), pending);
    let id = pending["id"].as_str().unwrap();
    let one = format!("/v1/approvals/{id}");
    let said = json!({"decision": "approve", "reason": "ok", "decidedBy": "ann", "argumentsDigest": pending["argumentsDigest"]});
    let decided = sends(&server, API, "POST", &one, said.clone()).await;
    assert_eq!(decided.status, 200, "{}", decided.text());
    assert_eq!(sends(&server, API, "POST", &one, said).await.json(), decided.json(), "twice is once");
    let seen = sends(&server, &token, "GET", &one, Value::Null).await.json();
    assert_eq!(seen, decided.json());
    assert_eq!(
        (&seen["status"], &seen["decidedBy"], &seen["reason"]),
        (&json!("approved"), &json!("ann"), &json!("ok"))
    );
    assert_eq!(server.status("r"), Status::Running);
    let found = sends(&server, &token, "POST", "/v1/approvals", deploy("prod")).await;
    assert_eq!((found.status.as_u16(), found.json()), (200, decided.json()));
}

/// The token of the agent never decides, wherever it stands and whatever comes with it; and without an API token
/// nobody does over REST.
#[tokio::test]
async fn an_agent_cannot_approve_what_it_asked_for() {
    let (rig, server) = served().await;
    let token = driven(&server, "r").await;
    let id = sends(&server, &token, "POST", "/v1/approvals", deploy("prod")).await.json()["id"].clone();
    let one = format!("/v1/approvals/{}", id.as_str().unwrap());
    let yes = json!({"decision": "approve"}).to_string();
    let ask = |target: &str| Ask::new("POST", target).bytes(yes.clone());
    let both = format!("Bearer {API}");
    for with_token in [
        ask(&one).token(&token),
        ask(&one).header("x-api-key", &token),
        ask(&one).header("authorization", &both).header("x-api-key", &token),
        ask(&format!("/run/{token}{one}")),
        ask(&format!("/run/{token}{one}")).header("authorization", &both),
        ask(&format!("{one}?key={token}")).header("authorization", &both),
    ] {
        refused(&with_token.to(&server).await, 403, "no_run_decides");
    }
    refused(&ask(&one).to(&server).await, 401, "no_token");
    refused(&ask(&one).token("wrong").to(&server).await, 401, "no_token");
    refused(&ask(&one).header("x-outlast-run", "r").to(&server).await, 401, "no_token");
    let evil = ask(&one).token(API).header("origin", "https://evil.example");
    refused(&evil.to(&server).await, 403, "foreign_origin");
    let open = rig.serve().await;
    refused(&ask(&one).to(&open).await, 403, "only_the_command_decides");
    refused(&ask(&one).header("x-outlast-run", "r").to(&open).await, 403, "only_the_command_decides");
    let access = Access { only_run: Some(server.run_no("r")), ..rig.config().access };
    let supervised = rig.serve_with(Config { access, ..rig.config() }).await;
    refused(&ask(&one).token(&token).to(&supervised).await, 403, "no_run_decides");
    refused(&ask(&one).to(&supervised).await, 401, "run_token_wanted");
    assert_eq!(server.status("r"), Status::Waiting);
}

#[tokio::test]
async fn a_run_reads_its_own_approvals_only() {
    let (_rig, server) = served().await;
    let (mine, other) = (driven(&server, "mine").await, driven(&server, "other").await);
    let ask = async |token: &str, to: &str| {
        sends(&server, token, "POST", "/v1/approvals", deploy(to)).await.json()["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (first, second, theirs) = (ask(&mine, "a").await, ask(&mine, "b").await, ask(&other, "c").await);
    let list = async |token: &str, query: &str| -> Vec<String> {
        let answer = sends(&server, token, "GET", &format!("/v1/approvals{query}"), Value::Null).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json().as_array().unwrap().iter().map(|a| a["id"].as_str().unwrap().to_owned()).collect()
    };
    let said = json!({"decision": "deny"});
    sends(&server, API, "POST", &format!("/v1/approvals/{first}"), said).await.ok();
    assert_eq!(list(&mine, "").await, [&*second, &*first]);
    assert_eq!(list(&mine, "?status=pending").await, [&*second]);
    assert_eq!(list(&mine, "?run=other").await, [""; 0]);
    assert_eq!(list(API, "").await.len(), 3);
    assert_eq!(list(API, "?status=denied").await, [&*first]);
    assert_eq!(list(API, "?run=other&status=").await, [&*theirs]);
    assert_eq!(list(API, "?run=nobody").await, [""; 0]);
    assert_eq!(list(API, "?limit=1").await.len(), 1);
    let theirs = format!("/v1/approvals/{theirs}");
    refused(&sends(&server, &mine, "GET", &theirs, Value::Null).await, 404, "unknown_approval");
    for bad in ["?status=x", "?limit=0", "?what=1"] {
        let target = format!("/v1/approvals{bad}");
        refused(&sends(&server, API, "GET", &target, Value::Null).await, 400, "bad_request");
    }
    refused(&sends(&server, API, "GET", "/v1/approvals/nothing", Value::Null).await, 404, "unknown_approval");
    refused(&sends(&server, "", "GET", "/v1/approvals", Value::Null).await, 401, "no_token");
}

#[tokio::test]
async fn a_decision_for_other_arguments_is_refused() {
    let (_rig, server) = served().await;
    let token = driven(&server, "r").await;
    let ask = |arguments: Value| json!({"tool": "deploy", "key": "release", "arguments": arguments});
    let asked = sends(&server, &token, "POST", "/v1/approvals", ask(json!({"to": "test"}))).await.json();
    let other = sends(&server, &token, "POST", "/v1/approvals", deploy("prod")).await.json();
    let one = format!("/v1/approvals/{}", asked["id"].as_str().unwrap());
    let said = |digest: &Value| json!({"decision": "approve", "argumentsDigest": digest});
    refused(
        &sends(&server, API, "POST", &one, said(&other["argumentsDigest"])).await,
        409,
        "other_arguments",
    );
    sends(&server, API, "POST", &one, said(&asked["argumentsDigest"])).await.ok();
    let changed = sends(&server, &token, "POST", "/v1/approvals", ask(json!({"to": "prod"}))).await;
    refused(&changed, 409, "other_arguments");
    refused(&sends(&server, API, "POST", &one, json!({"decision": "deny"})).await, 409, "already_decided");
    for bad in [json!({}), json!({"decision": "maybe"}), json!(1)] {
        refused(&sends(&server, API, "POST", &one, bad).await, 400, "bad_request");
    }
    for bad in [json!({}), json!([]), json!({"tool": 1})] {
        refused(&sends(&server, &token, "POST", "/v1/approvals", bad).await, 400, "bad_request");
    }
    let twice =
        Ask::new("POST", "/v1/approvals").token(&token).bytes(r#"{"tool":"t","arguments":{"a":1,"a":2}}"#);
    refused(&twice.to(&server).await, 400, "bad_request");
    let expired = json!({"tool": "t", "expiresInSeconds": 0});
    refused(&sends(&server, &token, "POST", "/v1/approvals", expired).await, 400, "bad_approval");
    refused(&sends(&server, API, "POST", "/v1/approvals", deploy("x")).await, 403, "no_run");
}

/// Callers by header have no token: the server knows them by their run.
#[tokio::test]
async fn what_is_pending_survives_the_death_of_the_server_and_of_its_callers() {
    let (rig, server) = served().await;
    let ask = async |server: &Server| {
        let asked = Ask::new("POST", "/v1/approvals").token(API).run("r").bytes(deploy("prod").to_string());
        asked.to(server).await
    };
    let pending = ask(&server).await;
    assert_eq!(pending.status, 201, "{}", pending.text());
    server.kill().await;
    let next = rig.serve_with(guarded(&rig)).await;
    assert_eq!(next.status("r"), Status::Waiting);
    assert_eq!(ask(&next).await.json(), pending.json());
    let one = format!("/v1/approvals/{}", pending.json()["id"].as_str().unwrap());
    // An id alone may mean another question, where a store lost its last commits.
    refused(&sends(&next, API, "POST", &one, json!({"decision": "approve"})).await, 400, "bad_request");
    let digest = &pending.json()["argumentsDigest"];
    let said = json!({"decision": "approve", "argumentsDigest": digest});
    sends(&next, API, "POST", &one, said).await.ok();
    assert_eq!(next.status("r"), Status::Running);
    next.kill().await;
    let last = rig.serve_with(guarded(&rig)).await;
    assert_eq!(ask(&last).await.json()["status"], "approved");
    Api::Chat.says("hello").header("authorization", &format!("Bearer {API}")).run("r").to(&last).await.ok();
}

#[tokio::test]
async fn policies_are_kept_under_their_names_in_the_words_of_riskkernel() {
    let (rig, server) = served().await;
    let sent = json!({
        "name": "careful",
        "budget": {"tokens": 1000, "dollars": 0.25, "loops": 10, "seconds": 60},
        "toolAllowlist": ["search", "db_*"],
        "approvalPolicy": {"requireFor": [{"tool": "db_drop", "sideEffect": ""}, {"sideEffect": "write"}]},
        "unknown": true,
    });
    let put = sends(&server, API, "POST", "/v1/policies", sent).await;
    assert_eq!(put.status, 201, "{}", put.text());
    let kept = put.json();
    assert_eq!(kept["budget"], json!({"tokens": 1000, "dollars": 0.25, "loops": 10, "seconds": 60}));
    assert_eq!(kept["toolAllowlist"], json!(["search", "db_*"]));
    let require = json!([{"tool": "db_drop", "sideEffect": ""}, {"tool": "", "sideEffect": "write"}]);
    assert_eq!(kept["approvalPolicy"]["requireFor"], require);
    assert_eq!(sends(&server, API, "GET", "/v1/policies/careful", Value::Null).await.json(), kept);
    let bare = sends(&server, API, "POST", "/v1/policies", json!({"name": "bare"})).await;
    assert_eq!(bare.status, 201);
    let listed = sends(&server, API, "GET", "/v1/policies", Value::Null).await.json();
    assert_eq!(
        listed.as_array().unwrap().iter().map(|p| &p["name"]).collect::<Vec<_>>(),
        ["bare", "careful"]
    );
    assert_eq!(listed[0]["budget"], json!({"tokens": 0, "dollars": 0.0, "loops": 0, "seconds": 0}));
    refused(&sends(&server, API, "GET", "/v1/policies/none", Value::Null).await, 404, "unknown_policy");
    for bad in [
        json!({}),
        json!({"name": "a b"}),
        json!({"name": "x", "budget": {"tokens": -1}}),
        json!({"name": "x", "budget": {"dollars": -1}}),
        json!({"name": "x", "budget": {"dollars": "1"}}),
    ] {
        refused(&sends(&server, API, "POST", "/v1/policies", bad).await, 400, "bad_request");
    }
    // An agent may not change the policy that it is under, over whichever route.
    let token = driven(&server, "r").await;
    for (method, target) in
        [("POST", "/v1/policies"), ("GET", "/v1/policies"), ("GET", "/v1/policies/careful")]
    {
        let answer = sends(&server, &token, method, target, json!({"name": "careful"})).await;
        refused(&answer, 403, "no_run_decides");
    }
    let access = Access { only_run: Some(server.run_no("r")), ..rig.config().access };
    let supervised = rig.serve_with(Config { access, ..rig.config() }).await;
    let state = "/v1/state/outlast%3Apolicies/policy/careful";
    refused(&sends(&supervised, &token, "PUT", state, json!({})).await, 403, "read_only_namespace");
}

#[tokio::test]
async fn all_that_the_rules_for_alerts_look_at_is_measured() {
    let (rig, server) = served().await;
    let token = driven(&server, "asks").await;
    driven(&server, "works").await;
    let asked = sends(&server, &token, "POST", "/v1/approvals", deploy("prod")).await.json();
    rig.clock.advance_ms(1_000_000);
    let measured = async || sends(&server, API, "GET", "/metrics", Value::Null).await.text().to_owned();
    let text = measured().await;
    let value = |text: &str, name: &str| -> u64 {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_else(|| panic!("{name} in\n{text}"));
        line.trim().parse().unwrap()
    };
    assert_eq!(
        ["running", "waiting", "failed"].map(|s| value(&text, &format!("outlast_runs{{status=\"{s}\"}}"))),
        [1, 1, 0]
    );
    for age in ["outlast_oldest_approval_seconds ", "outlast_silence_seconds "] {
        assert!((1_000..2_000).contains(&value(&text, age)), "{age}: {text}");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/alerts.yml");
    let rules = std::fs::read_to_string(path).unwrap();
    let words =
        rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|w| w.starts_with("outlast_"));
    let names: std::collections::BTreeSet<&str> = words.collect();
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        assert!(text.contains(&format!("# TYPE {name} ")), "{name} in\n{text}");
    }
    let said = json!({"decision": "deny", "decidedBy": "ann", "argumentsDigest": asked["argumentsDigest"]});
    let one = format!("/v1/approvals/{}", asked["id"].as_str().unwrap());
    assert_eq!(sends(&server, API, "POST", &one, said).await.status, 200);
    assert_eq!(value(&measured().await, "outlast_oldest_approval_seconds "), 0);
}
