//! Approvals and policies as RiskKernel's clients know them: asked by an agent, decided by a person, over crashes.

use outlast_core::envelope::unit::Unit;
use outlast_mock as mock;
use outlast_server::door::{Access, Config};
use serde_json::{Value, json};

use crate::{
    client::{Answer, Ask},
    rig::{Rig, Server},
};

const TOKEN: &str = "the-token-of-the-tests";

async fn ask(server: &Server, method: &str, target: &str, body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let ask = Ask::new(method, target).bytes(body).header("authorization", &format!("Bearer {TOKEN}"));
    ask.to(server).await
}

async fn says(server: &Server, method: &str, target: &str, body: Value, status: u16) -> Value {
    let answer = ask(server, method, target, &body).await;
    assert_eq!(answer.status, status, "{method} {target}: {}", answer.text());
    answer.json()
}

async fn refuses(server: &Server, method: &str, target: &str, body: Value, want: (u16, &str)) {
    let answer = ask(server, method, target, &body).await;
    let code = answer.json()["code"].as_str().unwrap_or_default().to_owned();
    assert_eq!((answer.status.as_u16(), code.as_str()), want, "{method} {target}: {}", answer.text());
}

/// A server that wants the token, where a policy by the name `careful` asks before anything is written.
async fn careful(rig: &Rig) -> Server {
    let access = Access { api_token: Some(TOKEN.into()), ..rig.config().access };
    let server = rig.serve_with(Config { access, ..rig.config() }).await;
    let policy = json!({
        "name": "careful", "budget": {"loops": 9, "dollars": 2.5}, "toolAllowlist": ["search", "file_*"],
        "approvalPolicy": {"requireFor": [{"sideEffect": "write"}]},
    });
    says(&server, "POST", "/v1/policies", policy, 201).await;
    server
}

async fn create(server: &Server) -> String {
    let run = says(server, "POST", "/v1/runs", json!({"policyRef": "careful"}), 201).await;
    run["id"].as_str().unwrap().to_owned()
}

fn write(path: &str) -> Value {
    // As the SDK sends it.
    json!({"tool": "file_write", "sideEffect": "write", "arguments": {"path": path}, "stepIndex": 0})
}

async fn request(server: &Server, run: &str, body: Value, status: u16) -> Value {
    says(server, "POST", &format!("/v1/runs/{run}/approvals"), body, status).await
}

async fn shown(server: &Server, run: &str) -> Value {
    says(server, "GET", &format!("/v1/runs/{run}"), Value::Null, 200).await
}

#[tokio::test]
async fn a_run_is_under_the_policy_it_names_and_its_own_budget_goes_before() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = careful(&rig).await;
    let under = json!({"policyRef": "careful", "budget": {"loops": 3}});
    let run = says(&server, "POST", "/v1/runs", under, 201).await;
    assert_eq!(run["budget"], json!({"tokens": 0, "dollars": 2.5, "loops": 3, "seconds": 0}));
    let run = run["id"].as_str().unwrap();
    assert_eq!(server.envelope(run).limits[Unit::CostNanoUsd], Some(2_500_000_000));
    let free = json!({"status": "approved", "required": false});
    assert_eq!(request(&server, run, json!({"tool": "search", "sideEffect": "read"}), 200).await, free);
    // RiskKernel's clients send an empty side effect for a tool that only reads.
    assert_eq!(request(&server, run, json!({"tool": "search", "sideEffect": ""}), 200).await, free);
    let asked = request(&server, run, write("a"), 201).await;
    assert_eq!((&asked["status"], &asked["tool"]), (&json!("pending"), &json!("file_write")));
    assert_eq!((&asked["runId"], &asked["arguments"]), (&json!(run), &json!({"path": "a"})));
    // Nobody is asked about a tool that there is not: it is as good as denied, and the SDK stops to wait.
    let blocked = request(&server, run, json!({"tool": "shell"}), 201).await;
    assert_eq!((&blocked["status"], &blocked["outcome"]), (&json!("denied"), &json!("blocked")));
    // Without a policy nothing says that nobody need be asked.
    let other = says(&server, "POST", "/v1/runs", json!({}), 201).await;
    let asked = request(&server, other["id"].as_str().unwrap(), json!({"tool": "search"}), 201).await;
    assert_eq!(asked["status"], "pending");
    let reads = json!({"tool": "look", "sideEffect": ""});
    assert_eq!(request(&server, other["id"].as_str().unwrap(), reads, 200).await, free);
    refuses(&server, "POST", "/v1/runs", json!({"policyRef": "none"}), (404, "unknown_policy")).await;
    let target = format!("/v1/runs/{run}/approvals");
    for bad in [json!({}), json!({"tool": ""}), json!({"tool": 7}), json!([])] {
        refuses(&server, "POST", &target, bad, (400, "bad_request")).await;
    }
    refuses(&server, "POST", "/v1/runs/none/approvals", write("a"), (404, "unknown_run")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_outlives_the_server_and_its_decision_does_too() {
    let rig = Rig::new(mock::Options::default()).await;
    let server = careful(&rig).await;
    let run = create(&server).await;
    let asked = request(&server, &run, write("a"), 201).await;
    let id = asked["id"].as_str().unwrap();
    server.kill().await;
    let server = careful(&rig).await;
    let waiting = shown(&server, &run).await;
    assert_eq!(
        (&waiting["status"], &waiting["pendingApproval"]["id"]),
        (&json!("waiting_approval"), &json!(id))
    );
    // The agent asks again after its own death: it is the same question.
    assert_eq!(request(&server, &run, write("a"), 201).await["id"], id);
    let decided = json!({"decision": "approve", "reason": "looks right", "decidedBy": "ada"});
    let after = says(&server, "POST", &format!("/v1/runs/{run}/approve"), decided, 200).await;
    assert_eq!((&after["status"], &after["pendingApproval"]), (&json!("running"), &Value::Null));
    server.kill().await;
    let server = careful(&rig).await;
    for found in [
        says(&server, "GET", &format!("/v1/approvals/{id}"), Value::Null, 200).await,
        request(&server, &run, write("a"), 201).await,
    ] {
        let had = (&found["status"], &found["reason"], &found["decidedBy"]);
        assert_eq!(had, (&json!("approved"), &json!("looks right"), &json!("ada")));
    }
    // An approval for these arguments does not hold for others.
    assert_eq!(request(&server, &run, write("b"), 201).await["status"], "pending");
}

#[tokio::test]
async fn a_decision_is_for_one_pending_approval_of_the_run_and_its_arguments() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = careful(&rig).await;
    let (run, other) = (create(&server).await, create(&server).await);
    let target = format!("/v1/runs/{run}/approve");
    let approve = json!({"decision": "approve"});
    refuses(&server, "POST", &target, approve.clone(), (409, "no_pending_approval")).await;
    let first = request(&server, &run, write("a"), 201).await;
    let second = request(&server, &run, write("b"), 201).await;
    refuses(&server, "POST", &target, approve.clone(), (409, "ambiguous_approval")).await;
    let named = |more: Value| {
        let mut body = json!({"approvalId": first["id"], "decision": "approve"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let others = named(json!({"argumentsDigest": second["argumentsDigest"]}));
    refuses(&server, "POST", &target, others, (409, "other_arguments")).await;
    refuses(
        &server,
        "POST",
        &format!("/v1/runs/{other}/approve"),
        named(json!({})),
        (404, "unknown_approval"),
    )
    .await;
    let none = json!({"approvalId": "apr_1_999", "decision": "deny"});
    refuses(&server, "POST", &target, none, (404, "unknown_approval")).await;
    refuses(&server, "POST", &target, json!({"decision": "maybe"}), (400, "bad_request")).await;
    says(&server, "POST", &target, named(json!({"argumentsDigest": first["argumentsDigest"]})), 200).await;
    refuses(&server, "POST", &target, named(json!({"decision": "deny"})), (409, "already_decided")).await;
    // One is left: it needs no name.
    says(&server, "POST", &target, json!({"decision": "deny", "reason": "no"}), 200).await;
    let calls = says(&server, "GET", &format!("/v1/runs/{run}/tool-calls"), Value::Null, 200).await;
    let had: Vec<_> = calls.as_array().unwrap().iter().map(|c| (&c["arguments"], &c["status"])).collect();
    let (a, b) = (json!({"path": "a"}), json!({"path": "b"}));
    assert_eq!(had, [(&a, &json!("approved")), (&b, &json!("denied"))]);
}

#[tokio::test]
async fn what_nobody_decided_in_time_is_denied_to_the_sdk_and_a_timeout_in_the_list() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = careful(&rig).await;
    let run = create(&server).await;
    let asked = json!({"tool": "file_write", "sideEffect": "write", "expiresInSeconds": 10});
    let asked = request(&server, &run, asked, 201).await;
    let calls = format!("/v1/runs/{run}/tool-calls");
    assert_eq!(says(&server, "GET", &calls, Value::Null, 200).await, json!([]));
    rig.clock.advance_ms(11_000);
    let found =
        says(&server, "GET", &format!("/v1/approvals/{}", asked["id"].as_str().unwrap()), Value::Null, 200)
            .await;
    let had = (&found["status"], &found["outcome"], &found["reason"]);
    assert_eq!(had, (&json!("denied"), &json!("timeout"), &json!("nobody decided in time")));
    assert_eq!(says(&server, "GET", &calls, Value::Null, 200).await[0]["status"], "timeout");
    refuses(&server, "GET", "/v1/approvals/apr_1_999", Value::Null, (404, "unknown_approval")).await;
    let late = json!({"approvalId": asked["id"], "decision": "approve"});
    refuses(&server, "POST", &format!("/v1/runs/{run}/approve"), late, (409, "approval_expired")).await;
    assert_eq!(shown(&server, &run).await["pendingApproval"], Value::Null);
}

#[tokio::test]
async fn a_runs_own_token_decides_nothing_and_neither_does_who_has_none() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = careful(&rig).await;
    let run = create(&server).await;
    request(&server, &run, write("a"), 201).await;
    let token = server.driven("driven", Default::default(), Default::default()).await;
    let target = format!("/v1/runs/{run}/approve");
    let decide = || Ask::new("POST", &target).bytes(json!({"decision": "approve"}).to_string());
    let bearer = format!("Bearer {TOKEN}");
    for (ask, want) in [
        (decide().header("x-api-key", &token), (401, "no_token")),
        (decide().header("x-api-key", &token).header("authorization", &bearer), (403, "no_run_decides")),
        (
            decide().target(&format!("{target}?key={token}")).header("authorization", &bearer),
            (403, "no_run_decides"),
        ),
        (decide(), (401, "no_token")),
    ] {
        let answer = ask.to(&server).await;
        let code = answer.json()["code"].as_str().unwrap_or_default().to_owned();
        assert_eq!((answer.status.as_u16(), code.as_str()), want, "{ask:?}: {}", answer.text());
    }
    // Where there is no token, an agent could ask whatever anybody may: only the command decides.
    let open = rig.serve().await;
    let answer = decide().to(&open).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["code"]), (403, &json!("only_the_command_decides")));
    assert_eq!(shown(&server, &run).await["status"], "waiting_approval");
}
