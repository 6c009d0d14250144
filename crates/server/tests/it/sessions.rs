//! Sessions: a program without the engine works in a run through the server, under the rules of any process.

use std::sync::Arc;

use outlast_core::{
    envelope::unit::{Limits, Unit},
    reads::forked::Forked,
    run::{Policy, status::Status},
};
use outlast_mock as mock;
use outlast_server::door::{Access, Config};
use serde_json::{Value, json};

use crate::{
    client::{Answer, Api, Ask, Opened},
    rig::{Rig, Server, limit, until, within},
};

const API: &str = "the-api-token";

async fn served() -> (Rig, Server) {
    // As the program opens a store.
    let (rig, _) = Rig::on(|memory| Arc::new(Forked::new(memory))).await;
    let access = Access { api_token: Some(API.into()), ..rig.config().access };
    let server = rig.serve_with(Config { access, ..rig.config() }).await;
    (rig, server)
}

/// A session, and the connection that it lives by.
struct Program<'a> {
    server: &'a Server,
    token: String,
    first: Value,
    lines: Opened,
}

/// A request for a session, by a program with a name.
fn asking(mut wanted: Value) -> Ask {
    if wanted["program"].is_null() {
        wanted["program"] = json!("a test");
    }
    Ask::new("POST", "/v1/run_sessions").bytes(wanted.to_string())
}

async fn refused(server: &Server, token: &str, wanted: Value) -> Answer {
    asking(wanted).token(token).to(server).await
}

async fn begin<'a>(server: &'a Server, token: &str, wanted: Value) -> Program<'a> {
    let ask = asking(wanted).token(token);
    let mut lines = ask.open(server.addr).await;
    lines.read_until("\n").await;
    let first = serde_json::from_slice(lines.so_far().split(|b| *b == b'\n').next().unwrap()).unwrap();
    Program { server, token: token.to_owned(), first, lines }
}

impl Program<'_> {
    async fn tries(&self, deed: Value) -> Answer {
        let target = format!("/v1/run_sessions/{}", self.first["session"].as_str().unwrap());
        Ask::new("POST", &target).token(&self.token).bytes(deed.to_string()).to(self.server).await
    }

    async fn does(&self, deed: Value) -> Value {
        let answer = self.tries(deed.clone()).await;
        assert_eq!(answer.status, 200, "{deed}: {}", answer.text());
        answer.json()
    }

    async fn begins(&self, key: &str) -> Value {
        self.does(json!({ "begin_step": { "key": key } })).await
    }

    async fn records(&self, seq: &Value, value: Value) -> Value {
        self.does(json!({ "record": { "seq": seq, "value": value } })).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_a_dead_client_recorded_is_given_to_the_next_and_one_that_it_began_is_begun_again() {
    let (_rig, server) = served().await;
    let first = begin(&server, API, json!({ "run": "r" })).await;
    assert_eq!((&first.first["created"], &first.first["attempt"]), (&json!(true), &json!(1)));
    let a = first.begins("a").await;
    assert_eq!((&a["state"], &a["begun_before"]), (&json!("open"), &json!(false)));
    first.records(&a["seq"], json!({ "value": 1.50 })).await;
    let b = first.begins("b").await;
    let left = first.first["session"].as_str().unwrap().to_owned();
    drop(first);
    let second = begin(&server, API, json!({ "run": "r" })).await;
    assert_eq!((&second.first["created"], &second.first["attempt"]), (&json!(false), &json!(2)));
    assert_eq!(second.begins("a").await["value"], json!({ "value": 1.50 }));
    let again = second.begins("b").await;
    assert_eq!((&again["seq"], &again["begun_before"]), (&b["seq"], &json!(true)));
    let steps = second.does(json!({ "steps": { "after": 0 } })).await;
    assert_eq!(
        steps["rows"][0],
        json!({ "seq": 1, "key": "a", "state": "done", "value": { "value": 1.50 } })
    );
    // Whoever has the old session is told that it is over.
    let target = format!("/v1/run_sessions/{left}");
    let late = json!({ "record": { "seq": b["seq"], "value": 2 } }).to_string();
    assert_eq!(Ask::new("POST", &target).token(API).bytes(late).to(&server).await.code(), "unknown_session");
    second.records(&again["seq"], json!(2)).await;
    assert_eq!(second.does(json!({ "end": { "how": "complete" } })).await["status"], "completed");
    // A completed run replays, and takes nothing new.
    let third = begin(&server, API, json!({ "run": "r" })).await;
    assert_eq!(third.first["attempt"], Value::Null);
    assert_eq!(third.does(json!({ "value": { "seq": 2 } })).await["value"], 2);
    assert_eq!(third.tries(json!({ "begin_step": { "key": "c" } })).await.code(), "run_completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_has_a_run_and_who_takes_it_over_shuts_the_other_out() {
    let (_rig, server) = served().await;
    let first = begin(&server, API, json!({ "run": "r", "program": "node a.js" })).await;
    let open = first.begins("s").await;
    let held = refused(&server, API, json!({ "run": "r" })).await;
    assert_eq!((held.status.as_u16(), held.code().as_str()), (403, "run_held"));
    assert!(held.text().contains("node a.js"), "{}", held.text());
    let second = begin(&server, API, json!({ "run": "r", "takeover": true })).await;
    let code = first.tries(json!({ "begin_step": { "key": "t" } })).await.code();
    assert!(["instance_dead", "lease_lost"].contains(&code.as_str()), "{code}");
    let again = second.begins("s").await;
    assert_eq!(again["begun_before"], true);
    let late = first.tries(json!({ "record": { "seq": open["seq"], "value": 1 } })).await;
    assert_eq!(late.code(), "already_taken");
    second.records(&again["seq"], json!(2)).await;
    assert_eq!(second.begins("s").await["value"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_may_happen_once_is_in_doubt_until_a_person_says_what_came_of_it() {
    let (_rig, server) = served().await;
    let charge = json!({ "begin_step": { "key": "charge", "at_most_once": true } });
    let first = begin(&server, API, json!({ "run": "r" })).await;
    let begun = first.does(charge.clone()).await;
    drop(first);
    let second = begin(&server, API, json!({ "run": "r" })).await;
    assert_eq!(second.does(charge.clone()).await, json!({ "seq": begun["seq"], "state": "in_doubt" }));
    let said =
        json!({ "resolve_step": { "key": "charge", "seq": begun["seq"], "value": { "value": "receipt" } } });
    second.does(said).await;
    assert_eq!(second.does(charge).await["value"], json!({ "value": "receipt" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn items_of_a_dead_worker_are_claimed_by_the_next_and_state_commits_with_them() {
    let (_rig, server) = served().await;
    let job = json!({ "run": "j", "job": "j" });
    let (one, two) = (begin(&server, API, job.clone()).await, begin(&server, API, job).await);
    let claim = |key: &str| json!({ "claim_item": { "key": key, "index": 0, "content": "x" } });
    let a = one.does(claim("a")).await;
    assert_eq!((&a["claim"], &a["tries"]), (&json!("run"), &json!(1)));
    assert_eq!(two.does(claim("a")).await["claim"], "held");
    let change = json!([{ "namespace": "n", "agent": "g", "key": "k", "value": [1], "expected": 0 }]);
    let done =
        json!({ "record_item": { "seq": a["seq"], "end": { "done": { "value": 7 } }, "changes": change } });
    assert_eq!(one.does(done).await["standing"], "done");
    let get = json!({ "get": { "namespace": "n", "agent": "g", "key": "k" } });
    assert_eq!(two.does(get).await, json!({ "version": 1, "value": [1] }));
    one.does(claim("b")).await;
    drop(one);
    until("the worker is dead", || server.store.live_instances().unwrap().len() == 2).await;
    let b = two.does(claim("b")).await;
    assert_eq!((&b["claim"], &b["continued"], &b["deaths"]), (&json!("run"), &json!(true), &json!(1)));
    let rows = two.does(json!({ "items": { "after": 0 } })).await["rows"].clone();
    assert_eq!((&rows[0]["key"], &rows[0]["value"]), (&json!("a"), &json!({ "value": 7 })));
    assert_eq!((&rows[1]["standing"], rows[1].get("value")), (&json!("open"), None));
    two.does(json!({ "record_item": { "seq": b["seq"], "end": { "failed": "no key" } } })).await;
    let spared = two.does(json!({ "spare_item": { "key": "b", "seq": b["seq"] } })).await;
    assert_eq!(spared, json!({ "standing": "failed" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_in_a_session_and_other_limits_are_refused() {
    let (_rig, server) = served().await;
    let first =
        begin(&server, API, json!({ "run": "r", "limits": { "loops": 1, "cost_nano_usd": 5 } })).await;
    assert_eq!(first.does(json!({ "count_loop": { "key": "1" } })).await, json!({ "loops": 1 }));
    let reserve = json!({ "reserve": { "label": "speech", "nano_usd": 3, "tokens": 0 } });
    let held = first.does(reserve.clone()).await;
    assert!(first.does(reserve.clone()).await["waits_for"].is_string());
    first.does(json!({ "settle": { "seq": held["seq"], "nano_usd": 2, "tokens": 0 } })).await;
    assert_eq!(server.envelope("r").spent[Unit::CostNanoUsd], 2);
    let over = first.tries(json!({ "count_loop": { "key": "2" } })).await;
    assert_eq!((over.status.as_u16(), over.code().as_str()), (402, "loop_budget_exceeded"));
    assert_eq!(first.tries(json!({ "begin_step": { "key": "s" } })).await.code(), "loop_budget_exceeded");
    assert_eq!(server.status("r"), Status::Halted);
    drop(first);
    let other = json!({ "run": "r", "limits": { "loops": 2 } });
    assert_eq!(refused(&server, API, other).await.code(), "budget_changed");
    let raised = json!({ "run": "r", "limits": { "loops": 2 }, "amend": true });
    let second = begin(&server, API, raised).await;
    assert_eq!(second.does(json!({ "count_loop": { "key": "2" } })).await, json!({ "loops": 2 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bearer_of_a_run_token_works_in_its_own_attempt_and_below_its_run() {
    let (_rig, server) = served().await;
    let token = server.driven("r", limit(Unit::Loops, 3), Policy::default()).await;
    server.driven("other", Limits::default(), Policy::default()).await;
    let own = begin(&server, &token, json!({})).await;
    assert_eq!((&own.first["run"], &own.first["is_driver"]), (&json!("r"), &json!(false)));
    let step = own.begins("s").await;
    own.records(&step["seq"], json!(1)).await;
    // Another process of the attempt is held off.
    assert_eq!(refused(&server, &token, json!({})).await.code(), "run_held");
    let child = begin(&server, &token, json!({ "run": "c" })).await;
    assert_eq!(server.run("c").run.parent, Some(server.run_no("r")));
    child.does(json!({ "end": { "how": "complete" } })).await;
    assert_eq!(refused(&server, &token, json!({ "run": "other" })).await.code(), "foreign_run");
    own.does(json!({ "end": { "how": "complete" } })).await;
    assert_eq!(server.status("r"), Status::Running, "its supervisor goes on driving it");
    // A call with the session's token belongs to its run.
    let next = begin(&server, &token, json!({})).await;
    let its = next.first["token"].as_str().unwrap();
    Api::Chat.says("hello").token(its).to(&server).await.ok();
    assert_eq!(server.run("r").envelope.spent[Unit::Calls], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_credential_works_in_runs_that_only_servers_have_served() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    server.driven("driven", Limits::default(), Policy::default()).await;
    let most = json!({ "run": "r", "limits": { "cost_nano_usd": i64::MAX } });
    let mut first = asking(most).open(server.addr).await;
    first.read_until("\n").await;
    let usual = rig.config().default_limits[Unit::CostNanoUsd];
    assert_eq!(server.envelope("r").limits[Unit::CostNanoUsd], usual.or(Some(i64::MAX)));
    drop(first);
    let mut second = asking(json!({ "run": "r" })).open(server.addr).await;
    second.read_until("\n").await;
    let held = asking(json!({ "run": "driven", "takeover": true })).to(&server).await;
    assert_eq!(held.code(), "others_run", "{}", held.text());
    assert_eq!(server.status("driven"), Status::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_who_stops_the_run_is_heard_in_its_session() {
    let (_rig, server) = served().await;
    let mut program = begin(&server, API, json!({ "run": "r" })).await;
    let open = program.begins("s").await;
    Ask::new("POST", "/v1/runs/r/stop").token(API).to(&server).await.ok();
    within("the word", program.lines.read_until(r#"{"word":"stop"}"#)).await;
    assert_eq!(program.tries(json!({ "begin_step": { "key": "t" } })).await.code(), "stop_requested");
    // What is open is recorded all the same.
    program.records(&open["seq"], json!(1)).await;
    assert_eq!(program.does(json!({ "end": { "how": "stopped" } })).await["status"], "interrupted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_begins_with_the_steps_of_its_origin_up_to_its_point() {
    let (_rig, server) = served().await;
    let first = begin(&server, API, json!({ "run": "r" })).await;
    for (key, value) in [("a", 1), ("b", 2)] {
        let step = first.begins(key).await;
        first.records(&step["seq"], json!(value)).await;
        if key == "a" {
            first.does(json!({ "name_snapshot": { "name": "half" } })).await;
        }
    }
    let fork = begin(&server, API, json!({ "run": "r", "from": { "snapshot": "half" } })).await;
    assert_eq!(fork.first["run"], "r:half");
    assert_eq!(fork.begins("a").await["value"], 1);
    assert_eq!(fork.begins("b").await["state"], "open");
    let none = refused(&server, API, json!({ "run": "r", "from": { "snapshot": "none" } })).await;
    assert_eq!(none.code(), "unknown_snapshot");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_deed_is_refused() {
    let (_rig, server) = served().await;
    let program = begin(&server, API, json!({ "run": "r" })).await;
    for bad in [
        json!({}),
        json!({ "forget": {} }),
        json!({ "count_loop": { "key": "1", "by": 2 } }),
        json!({ "save_checkpoint": { "name": "outlast:x", "value": 1 } }),
    ] {
        assert_eq!(program.tries(bad.clone()).await.code(), "bad_request", "{bad}");
    }
    assert_eq!(refused(&server, API, json!({ "run": "r/../s" })).await.code(), "bad_request");
    let nameless = Ask::new("POST", "/v1/run_sessions").token(API).to(&server).await;
    assert_eq!(nameless.code(), "bad_request");
    assert_eq!(refused(&server, "wrong", json!({ "run": "r" })).await.status, 401);
    let closing = json!({ "record": { "seq": 99, "value": 1 } });
    assert_eq!(program.tries(closing).await.code(), "unknown_entry");
}
