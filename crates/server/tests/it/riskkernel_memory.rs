//! Data that agents keep through RiskKernel's routes: checkpoints of a run, and facts that outlive it.

use outlast_core::{
    engine::{
        checkpoint::{Checkpoint, Name},
        op::Actor,
        run::claim::Enter,
    },
    journal::payload::Payload,
    store::{Ask as _, Durability},
};
use serde_json::{Value, json};

use crate::{
    rig::Rig,
    riskkernel::{call, create, fixed, refuses, says, served, step},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_found_after_a_restart_and_never_hidden_by_an_automatic_one() {
    let rig = Rig::new(fixed()).await;
    let server = rig.serve().await;
    let run = create(&server, json!({"loops": 50})).await;
    let (save, latest) = (format!("/v1/runs/{run}/checkpoints"), format!("/v1/checkpoints/{run}"));
    refuses(&server, "GET", &latest, Value::Null, (404, "no_checkpoint")).await;
    step(&server, &run).await;
    call(&run, "one").to(&server).await.ok();
    let payload = json!({"cursor": 5, "messages": [{"é": 1.50}], "n": 12345678901234567890_u64});
    let saved = says(&server, "POST", &save, json!({"name": "progress", "payload": payload}), 201).await;
    assert_eq!(saved, json!({"ok": true}));
    // A checkpoint of Outlast's own, and a later entry of the run.
    let (no, instance) = (server.run_no(&run), server.node.instance());
    let entered =
        server.store.ask(Enter { run: no, label: None, instance }, Durability::Synced).await.unwrap();
    let actor = Actor { run: no, attempt: entered.attempt, instance };
    let automatic =
        Checkpoint { actor, slot: entered.slot, name: Name::own("session"), value: Payload::encode(b"{}") };
    server.store.ask(automatic, Durability::Synced).await.unwrap();
    step(&server, &run).await;
    call(&run, "two").to(&server).await.ok();
    server.kill().await;
    let server = rig.serve().await;
    let found = says(&server, "GET", &latest, Value::Null, 200).await;
    assert_eq!(
        (&found["payload"], &found["name"], &found["runId"]),
        (&payload, &json!("progress"), &json!(run))
    );
    // As it stood when it was saved.
    assert_eq!((&found["stepIndex"], &found["usage"]["loops"]), (&json!(1), &json!(1)));
    assert_eq!((&found["usage"]["tokens"], &found["usage"]["promptTokens"]), (&json!(1500), &json!(1000)));
    says(&server, "POST", &save, json!({}), 201).await;
    assert_eq!(says(&server, "GET", &latest, Value::Null, 200).await["payload"], json!({}));
    for body in [json!({"payload": [1]}), json!({"payload": "x"}), json!({"name": "outlast:session"})] {
        refuses(&server, "POST", &save, body, (400, "bad_request")).await;
    }
    let large = "x".repeat(3 << 20);
    says(&server, "POST", &save, json!({"payload": {"large": large}}), 201).await;
    assert_eq!(says(&server, "GET", &latest, Value::Null, 200).await["payload"]["large"], large);
}

#[tokio::test]
async fn facts_are_kept_in_the_state_with_the_run_that_found_them() {
    let (_rig, server) = served().await;
    let run = create(&server, json!({"loops": 5})).await;
    let put = |namespace: &str, key: &str, value: &str, run: &str| json!({"namespace": namespace, "key": key, "value": value, "runId": run});
    let fact = says(&server, "PUT", "/v1/memory/facts", put("team é", "b", "1", &run), 201).await;
    assert_eq!((&fact["value"], &fact["runId"]), (&json!("1"), &json!(run)));
    says(&server, "PUT", "/v1/memory/facts", put("team é", "b", "say \"2\"", &run), 201).await;
    says(&server, "PUT", "/v1/memory/facts", put("team é", "a", "3", ""), 201).await;
    says(&server, "PUT", "/v1/memory/facts", put("", "a", "elsewhere", ""), 201).await;
    let facts =
        says(&server, "GET", "/v1/memory/facts?namespace=team%20%C3%A9&more=1", Value::Null, 200).await;
    let had: Vec<_> =
        facts.as_array().unwrap().iter().map(|f| (&f["key"], &f["value"], f.get("runId"))).collect();
    let (a, b, three, two, run) = (json!("a"), json!("b"), json!("3"), json!("say \"2\""), json!(run));
    assert_eq!(had, [(&a, &three, None), (&b, &two, Some(&run))]);
    assert_eq!(says(&server, "GET", "/v1/memory/facts", Value::Null, 200).await[0]["value"], "elsewhere");
    // The same, by the state's own route: with its history.
    let state = says(&server, "GET", "/v1/state/team%20%C3%A9/facts/b", Value::Null, 200).await;
    assert_eq!((&state["value"], &state["version"], &state["run"]), (&two, &json!(2), &run));
    refuses(&server, "PUT", "/v1/memory/facts", put("n", "", "v", ""), (400, "bad_request")).await;
    refuses(&server, "PUT", "/v1/memory/facts", put("n", "k", "v", "none"), (404, "unknown_run")).await;
    let own = put("run:else", "k", "v", "");
    refuses(&server, "PUT", "/v1/memory/facts", own, (403, "read_only_namespace")).await;
    assert_eq!(says(&server, "GET", "/v1/memory?namespace=n&q=x", Value::Null, 200).await, json!([]));
    refuses(&server, "GET", "/v1/memory/entry?name=x", Value::Null, (404, "no_memory_file")).await;
    refuses(&server, "GET", "/v1/memory/entry", Value::Null, (400, "bad_request")).await;
}

#[tokio::test]
async fn more_facts_than_a_page_are_listed_whole() {
    let (_rig, server) = served().await;
    let changes: Vec<Value> =
        (0..2_300).map(|n| json!({"agent": "facts", "key": format!("k{n:04}"), "value": n})).collect();
    says(&server, "POST", "/v1/state/transaction", json!({"changes": changes}), 200).await;
    let facts = says(&server, "GET", "/v1/memory/facts?namespace=default", Value::Null, 200).await;
    assert_eq!(facts.as_array().unwrap().len(), 2_300);
    // A value that another interface wrote is any JSON: its text is the fact.
    assert_eq!(facts[2_299]["value"], "2299");
}
