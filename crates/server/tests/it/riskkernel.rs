//! RiskKernel's REST surface and proxy headers: what its clients know, and what it gets wrong, right.

use outlast_core::{
    engine::run::start::Start,
    envelope::unit::{Limits, Unit},
    journal::{Kind, State},
    run::{Command, Spec, status::Status},
    store::{Ask as _, Durability, Error},
    words::id::RunId,
};
use outlast_mock::{self as mock, FixedUsage};
use outlast_server::door::{Access, Config};
use serde_json::{Value, json};

use crate::{
    client::{Answer, Api, Ask, all, ask_and_leave, with},
    failing::{Failing, Fate},
    rig::{Rig, Server, limit, until},
};

/// Cost of a call of `call`, with 1000 tokens in and 500 out.
const COST: i64 = 450_000;

pub fn fixed() -> mock::Options {
    mock::Options { usage: Some(FixedUsage { input: 1000, output: 500 }), ..mock::Options::default() }
}

/// A call of `run` whose bound is a little over what it costs; `text` tells it from others.
pub fn call(run: &str, text: &str) -> Ask {
    let text = format!("{text}\n{}", "x".repeat(920));
    let body = with(Api::Chat.body(&text), json!({"max_tokens": 500}));
    Api::Chat.sends(&body).without("x-outlast-run").header("x-riskkernel-run-id", run)
}

fn request(method: &str, target: &str, body: &Value) -> Ask {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    Ask::new(method, target).bytes(body)
}

async fn ask(server: &Server, method: &str, target: &str, body: Value) -> Answer {
    request(method, target, &body).to(server).await
}

pub async fn says(server: &Server, method: &str, target: &str, body: Value, status: u16) -> Value {
    let answer = ask(server, method, target, body).await;
    assert_eq!(answer.status, status, "{method} {target}: {}", answer.text());
    answer.json()
}

pub async fn refuses(server: &Server, method: &str, target: &str, body: Value, want: (u16, &str)) {
    let answer = ask(server, method, target, body).await;
    let had = answer.json();
    let code = had["code"].as_str().unwrap_or_default();
    assert_eq!((answer.status.as_u16(), code), want, "{method} {target}: {}", answer.text());
    assert!(had["message"].as_str().is_some_and(|m| !m.is_empty()), "{had}");
    assert_eq!(answer.header("x-outlast-code"), Some(code));
}

/// A run with this budget: its id.
pub async fn create(server: &Server, budget: Value) -> String {
    let run = says(server, "POST", "/v1/runs", json!({"name": "research", "budget": budget}), 201).await;
    run["id"].as_str().unwrap().to_owned()
}

async fn shown(server: &Server, run: &str) -> Value {
    says(server, "GET", &format!("/v1/runs/{run}"), Value::Null, 200).await
}

pub async fn step(server: &Server, run: &str) -> Answer {
    ask(server, "POST", &format!("/v1/runs/{run}/steps"), json!({})).await
}

pub async fn served() -> (Rig, Server) {
    let rig = Rig::in_memory(fixed()).await;
    let server = rig.serve().await;
    (rig, server)
}

#[tokio::test]
async fn a_run_is_created_with_its_budget_and_shown_with_what_it_used() {
    let (_rig, server) = served().await;
    let asked = json!({
        "name": "research", "metadata": {"team": "search"},
        "budget": {"tokens": 5000, "dollars": 0.25, "loops": 20, "seconds": 300},
    });
    let created = says(&server, "POST", "/v1/runs", asked, 201).await;
    let id = created["id"].as_str().unwrap();
    assert_eq!(shown(&server, id).await["id"], created["id"]);
    for (key, want) in [
        ("name", json!("research")),
        ("status", json!("running")),
        ("haltReason", json!("")),
        ("metadata", json!({"team": "search"})),
        ("budget", json!({"tokens": 5000, "dollars": 0.25, "loops": 20, "seconds": 300})),
    ] {
        assert_eq!(created[key], want, "{key}");
    }
    let none = json!({"tokens": 0, "promptTokens": 0, "completionTokens": 0, "dollars": 0.0, "loops": 0, "elapsedSeconds": 0});
    assert_eq!(created["usage"], none);
    assert_eq!(step(&server, id).await.json(), json!({"stepIndex": 1}));
    call(id, "one").to(&server).await.ok();
    let after = shown(&server, id).await;
    let used = json!({"tokens": 1500, "promptTokens": 1000, "completionTokens": 500, "dollars": 0.00045, "loops": 1, "elapsedSeconds": 0});
    assert_eq!(after["usage"], used);
    assert!(after["updatedAt"].as_str() > after["createdAt"].as_str(), "{after}");
}

#[tokio::test]
async fn a_budget_is_what_it_says_to_the_nano_dollar() {
    let (_rig, server) = served().await;
    let check = async |budget: Value, unit: Unit, want: Option<i64>| {
        let had = server.envelope(&create(&server, budget.clone()).await).limits[unit];
        assert_eq!(had, want, "{budget}");
    };
    check(json!({"dollars": 0.25}), Unit::CostNanoUsd, Some(250_000_000)).await;
    // Sums of floats, as programs send them.
    check(json!({"dollars": 0.25000000000000006}), Unit::CostNanoUsd, Some(250_000_000)).await;
    check(json!({"dollars": 0.1 + 0.2}), Unit::CostNanoUsd, Some(300_000_000)).await;
    check(json!({"dollars": 5}), Unit::CostNanoUsd, Some(5_000_000_000)).await;
    check(json!({"seconds": 1.5}), Unit::WallMs, Some(1_500)).await;
    check(json!({"loops": 3}), Unit::Loops, Some(3)).await;
    // A limit that is left out, or 0, is no limit.
    check(json!({"loops": 3}), Unit::CostNanoUsd, None).await;
    check(json!({"loops": 3, "dollars": 0}), Unit::CostNanoUsd, None).await;
}

#[tokio::test]
async fn a_run_without_a_budget_has_the_servers_own() {
    let rig = Rig::in_memory(fixed()).await;
    let server = rig.serve_limited(limit(Unit::Loops, 7)).await;
    for budget in [Value::Null, json!({}), json!({"tokens": 0, "dollars": 0, "loops": 0, "seconds": 0})] {
        let run = create(&server, budget.clone()).await;
        assert_eq!(shown(&server, &run).await["budget"]["loops"], 7, "{budget}");
    }
}

#[tokio::test]
async fn what_was_asked_wrongly_is_said_and_creates_nothing() {
    let (_rig, server) = served().await;
    for body in [
        json!([]),
        json!({"budget": {"dollars": -1}}),
        json!({"budget": {"loops": -1}}),
        json!({"budget": {"loops": 2.5}}),
        json!({"budget": {"dollars": "5"}}),
        json!({"budget": {"dollars": 1e300}}),
        json!({"budget": 5}),
        json!({"budget": [1, 2]}),
        json!({"budget": {"seconds": true}}),
        json!({"metadata": {"a": 1}}),
        json!({"name": 7}),
        // A field, or a limit, that nobody knows would be a limit that holds for nothing.
        json!({"unknown": [1]}),
        json!({"budget": {"dollar": 1}}),
    ] {
        refuses(&server, "POST", "/v1/runs", body, (400, "bad_request")).await;
    }
    let cut = Ask::new("POST", "/v1/runs").bytes("{\"name\": ").to(&server).await;
    assert_eq!((cut.status.as_u16(), &cut.json()["code"]), (400, &json!("bad_request")));
    refuses(&server, "POST", "/v1/runs", json!({"policyRef": "none"}), (404, "unknown_policy")).await;
    assert_eq!(server.store.runs(&Default::default()).unwrap().len(), 0);
    for (method, target) in [
        ("GET", "/v1/runs/none"),
        ("GET", "/v1/runs/%20no%20id"),
        ("POST", "/v1/runs/none/steps"),
        ("POST", "/v1/runs/none/checkpoints"),
        ("POST", "/v1/runs/none/cancel"),
        ("GET", "/v1/checkpoints/none"),
    ] {
        let body = if method == "POST" { json!({}) } else { Value::Null };
        refuses(&server, method, target, body, (404, "unknown_run")).await;
    }
    for (method, target) in [("PUT", "/v1/runs"), ("DELETE", "/v1/runs/r"), ("GET", "/v1/runs/r/none")] {
        refuses(&server, method, target, Value::Null, (404, "no_route")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_halted_run_is_halted_after_a_restart_and_a_cancel_leaves_it_so() {
    let rig = Rig::new(fixed()).await;
    let server = rig.serve().await;
    let run = create(&server, json!({"loops": 3})).await;
    for n in 1..=3 {
        assert_eq!(step(&server, &run).await.json(), json!({"stepIndex": n}));
    }
    let target = format!("/v1/runs/{run}/steps");
    refuses(&server, "POST", &target, json!({}), (402, "loop_budget_exceeded")).await;
    server.kill().await;
    let server = rig.serve().await;
    refuses(&server, "POST", &target, json!({}), (402, "loop_budget_exceeded")).await;
    let refused = call(&run, "x").to(&server).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (402, "loop_budget_exceeded"));
    assert_eq!(refused.header("x-riskkernel-halt-reason"), Some("loop_budget_exceeded"));
    assert_eq!(refused.header("x-riskkernel-run-id"), Some(run.as_str()));
    let cancelled =
        says(&server, "POST", &format!("/v1/runs/{run}/cancel"), json!({"reason": "error"}), 200).await;
    assert_eq!(
        (&cancelled["status"], &cancelled["haltReason"]),
        (&json!("halted"), &json!("loop_budget_exceeded"))
    );
    assert_eq!(shown(&server, &run).await["usage"]["loops"], 3);
    refuses(&server, "POST", &target, json!({}), (402, "loop_budget_exceeded")).await;
    assert_eq!(rig.mock.paid(), 0);
    // Somebody raises it: it goes on, with what it had used.
    server.raise(&run, Unit::Loops, 1).await;
    assert_eq!(step(&server, &run).await.json(), json!({"stepIndex": 4}));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_run_does_not_begin_again_with_the_server() {
    let rig = Rig::new(fixed()).await;
    let server = rig.serve().await;
    let run = create(&server, json!({"seconds": 10})).await;
    rig.clock.advance_ms(6_000);
    assert_eq!(step(&server, &run).await.status, 200);
    server.kill().await;
    rig.clock.advance_ms(6_000);
    let server = rig.serve().await;
    refuses(&server, "POST", &format!("/v1/runs/{run}/steps"), json!({}), (402, "time_budget_exceeded"))
        .await;
    let had = shown(&server, &run).await;
    assert_eq!((&had["status"], &had["haltReason"]), (&json!("halted"), &json!("time_budget_exceeded")));
    assert!(had["usage"]["elapsedSeconds"].as_i64() >= Some(12), "{had}");
}

#[tokio::test]
async fn what_a_header_created_is_found_here_and_what_was_created_here_is_a_run_of_headers() {
    let rig = Rig::in_memory(fixed()).await;
    let server = rig.serve_limited(limit(Unit::Loops, 9)).await;
    call("by-header", "one").to(&server).await.ok();
    let had = shown(&server, "by-header").await;
    assert_eq!((&had["usage"]["tokens"], &had["budget"]["loops"]), (&json!(1500), &json!(9)));
    assert_eq!(step(&server, "by-header").await.json(), json!({"stepIndex": 2}));
    let run = create(&server, json!({"tokens": 2000})).await;
    call(&run, "one").to(&server).await.ok();
    let ours = call(&run, "by our own header").without("x-riskkernel-run-id").run(&run).to(&server).await;
    assert_eq!((ours.status.as_u16(), ours.code().as_str()), (402, "token_budget_exceeded"));
    assert_eq!(shown(&server, &run).await["haltReason"], "token_budget_exceeded");
    assert_eq!(server.run(&run).run.id.as_str(), run);
}

#[tokio::test]
async fn a_turn_is_one_loop_whether_its_step_or_its_call_is_counted() {
    let (_rig, server) = served().await;
    let run = create(&server, json!({"loops": 50})).await;
    for n in 1..=4 {
        assert_eq!(step(&server, &run).await.json(), json!({"stepIndex": n}));
        call(&run, &format!("a{n}")).to(&server).await.ok();
        call(&run, &format!("b{n}")).to(&server).await.ok();
    }
    assert_eq!(shown(&server, &run).await["usage"]["loops"], 4);
    // In a run that registers no loops, each call counts as one.
    let other = create(&server, json!({"loops": 2})).await;
    call(&other, "a").to(&server).await.ok();
    call(&other, "b").to(&server).await.ok();
    let refused = call(&other, "c").to(&server).await;
    assert_eq!(refused.code(), "loop_budget_exceeded");
}

#[tokio::test]
async fn a_cancelled_run_takes_nothing_more_and_says_so() {
    let (rig, server) = served().await;
    let run = create(&server, json!({"loops": 50})).await;
    call(&run, "before").to(&server).await.ok();
    let cancel = format!("/v1/runs/{run}/cancel");
    for _ in 0..2 {
        let had = says(&server, "POST", &cancel, json!({"reason": "enough"}), 200).await;
        assert_eq!((&had["status"], &had["haltReason"]), (&json!("cancelled"), &json!("cancelled")));
    }
    assert_eq!(server.run(&run).run.error.as_deref(), Some("enough"));
    refuses(&server, "POST", &format!("/v1/runs/{run}/steps"), json!({}), (402, "cancelled")).await;
    refuses(&server, "POST", &format!("/v1/runs/{run}/checkpoints"), json!({}), (402, "cancelled")).await;
    let refused = call(&run, "after").to(&server).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (403, "run_ended"));
    assert_eq!(rig.mock.paid(), 1);
}

#[tokio::test]
async fn a_run_is_completed_by_who_says_so_and_stays_completed() {
    let (_rig, server) = served().await;
    let run = create(&server, json!({"loops": 1})).await;
    step(&server, &run).await;
    for word in ["complete", "complete", "cancel"] {
        let had = says(&server, "POST", &format!("/v1/runs/{run}/{word}"), json!({}), 200).await;
        assert_eq!((&had["status"], &had["haltReason"]), (&json!("completed"), &json!("")), "{word}");
    }
    refuses(&server, "POST", &format!("/v1/runs/{run}/steps"), json!({}), (403, "run_ended")).await;
    assert_eq!(call(&run, "late").to(&server).await.code(), "run_ended");
    // The agent may have finished with the answers that it had, although a further call was refused.
    let halted = create(&server, json!({"loops": 1})).await;
    step(&server, &halted).await;
    assert_eq!(step(&server, &halted).await.status, 402);
    let had = says(&server, "POST", &format!("/v1/runs/{halted}/complete"), json!({}), 200).await;
    assert_eq!((&had["status"], &had["haltReason"]), (&json!("completed"), &json!("")));
}

#[tokio::test]
async fn an_answer_whose_client_left_is_charged_and_given_to_its_retry() {
    let (rig, server) = served().await;
    let run = create(&server, json!({"loops": 50})).await;
    let paid = async { until("it is at the provider", || rig.mock.paid() == 1).await };
    ask_and_leave(server.addr, &call(&run, "mock: latency 200ms\none"), paid).await;
    server.at_rest(&run).await;
    assert_eq!(shown(&server, &run).await["usage"]["dollars"], 0.00045);
    let again = call(&run, "mock: latency 200ms\none").to(&server).await;
    assert!(again.is_replayed());
    again.ok();
    assert_eq!((rig.mock.paid(), server.envelope(&run).spent.cost()), (1, COST));
}

#[tokio::test]
async fn tools_and_what_the_upstream_refuses_pass_as_they_are() {
    let (rig, server) = served().await;
    let run = create(&server, json!({"loops": 50})).await;
    let limited = call(&run, "mock: status 429").to(&server).await;
    assert_eq!((limited.status.as_u16(), limited.header("retry-after")), (429, Some("1")));
    let tools = json!({"tools": [{"type": "function", "function": {"name": "search", "parameters": {}}}]});
    let body = with(Api::Chat.body("mock: tool search {\"q\": \"river\"}"), tools.clone());
    let ask = Api::Chat.sends(&body).without("x-outlast-run").header("x-riskkernel-run-id", &run);
    let answer = ask.to(&server).await.json();
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "search");
    let sent: Value = serde_json::from_slice(&rig.mock.requests().last().unwrap().body).unwrap();
    assert_eq!(sent["tools"], tools["tools"]);
}

#[tokio::test]
async fn the_proxys_headers_tell_what_a_call_came_to() {
    let (_rig, server) = served().await;
    let run = create(&server, json!({"loops": 50})).await;
    step(&server, &run).await;
    step(&server, &run).await;
    let told = |a: &Answer| {
        ["run-id", "step", "cost-usd", "tokens", "halt-reason"]
            .map(|name| a.header(&format!("x-riskkernel-{name}")).map(str::to_owned))
    };
    let want = |rest: [Option<&str>; 4]| {
        let mut all = vec![Some(run.clone())];
        all.extend(rest.map(|text| text.map(str::to_owned)));
        <[Option<String>; 5]>::try_from(all).unwrap()
    };
    let paid = call(&run, "one").label("a").to(&server).await;
    assert_eq!(told(&paid), want([Some("2"), Some("0.000450"), Some("1500"), None]));
    // A replayed answer costs nothing.
    let again = call(&run, "one").label("b").to(&server).await;
    assert!(again.is_replayed());
    assert_eq!(told(&again), want([Some("2"), Some("0.000000"), Some("0"), None]));
    // The head of a stream goes out before its cost is known.
    let stream = with(Api::Chat.body("streamed"), json!({"stream": true}));
    let stream = Api::Chat.sends(&stream).without("x-outlast-run").header("x-riskkernel-run-id", &run);
    assert_eq!(told(&stream.to(&server).await), want([Some("2"), None, None, None]));
    // A caller without RiskKernel's header gets none of its headers.
    let other = Api::Chat.says("two").run(&run).to(&server).await;
    assert_eq!(told(&other), [None, None, None, None, None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_store_never_allow_twice_the_budget() {
    let rig = Rig::new(fixed()).await;
    let (one, two) = (rig.serve().await, rig.serve().await);
    let run = create(&one, json!({"loops": 20})).await;
    let target = format!("/v1/runs/{run}/steps");
    let steps = || (0..50).map(|_| request("POST", &target, &json!({})));
    let (first, second) = tokio::join!(all(&one, steps()), all(&two, steps()));
    let answers: Vec<Answer> = first.into_iter().chain(second).collect();
    let mut counted: Vec<i64> =
        answers.iter().filter(|a| a.status == 200).map(|a| a.json()["stepIndex"].as_i64().unwrap()).collect();
    counted.sort_unstable();
    assert_eq!(counted, (1..=20).collect::<Vec<_>>());
    assert!(answers.iter().all(|a| a.status == 200 || a.json()["code"] == "loop_budget_exceeded"));
    // The same of money: twenty calls' worth, and a little for the bound that stands above the cost.
    let run = create(&two, json!({"dollars": 0.009045})).await;
    let calls = |server: &str| {
        let (run, server) = (run.clone(), server.to_owned());
        (0..50).map(move |n| call(&run, &format!("{server}{n}")))
    };
    let (first, second) = tokio::join!(all(&one, calls("one")), all(&two, calls("two")));
    let served = first.iter().chain(&second).filter(|a| a.status == 200).count();
    assert!((18..=20).contains(&served), "{served}");
    assert_eq!(rig.mock.paid(), served as u64);
    let had = shown(&one, &run).await;
    assert_eq!((&had["status"], &had["haltReason"]), (&json!("halted"), &json!("dollar_budget_exceeded")));
    assert_eq!(server_spent(&two, &run), served as i64 * COST);
}

fn server_spent(server: &Server, run: &str) -> i64 {
    server.envelope(run).spent.cost()
}

#[tokio::test(flavor = "multi_thread")]
async fn forty_crashes_with_a_call_in_flight_are_charged_and_halt_the_run() {
    let rig = Rig::new(fixed()).await;
    let mut server = rig.serve().await;
    let run = create(&server, json!({"dollars": 0.009045})).await;
    let mut lost = 0;
    for n in 0..40 {
        let paid = rig.mock.paid();
        let thrown = call(&run, &format!("mock: hang\nlost {n}")).throw(server.addr).await;
        let gone = || rig.mock.paid() > paid || server.status(&run) == Status::Halted;
        until("the call is at the provider, or refused", gone).await;
        lost += usize::from(rig.mock.paid() > paid);
        drop(thrown);
        server.kill().await;
        server = rig.serve().await;
    }
    assert!((18..=20).contains(&lost), "{lost}");
    let had = shown(&server, &run).await;
    assert_eq!((&had["status"], &had["haltReason"]), (&json!("halted"), &json!("dollar_budget_exceeded")));
    let dollars = had["usage"]["dollars"].as_f64().unwrap();
    assert!((0.0081..=0.009045).contains(&dollars), "{had}");
    // The upstream may have gone before the server was quite dead: that answer is cut off.
    let lost_ones = server.entries(&run);
    assert!(lost_ones.iter().all(|e| matches!(e.state, State::Unknown | State::Failed)), "{lost_ones:?}");
    assert_eq!(lost_ones.len(), lost);
}

#[tokio::test]
async fn a_model_without_a_price_is_refused_under_a_dollar_limit() {
    let (rig, server) = served().await;
    let run = create(&server, json!({"dollars": 1})).await;
    let body = with(Api::Chat.body("x"), json!({"model": "nobody-knows-this"}));
    let ask = Api::Chat.sends(&body).without("x-outlast-run").header("x-riskkernel-run-id", &run);
    let refused = ask.to(&server).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (402, "price_unknown"));
    assert_eq!(rig.mock.paid(), 0);
}

#[tokio::test]
async fn a_store_that_fails_is_said_and_nothing_goes_on_without_it() {
    let (rig, failing) = Rig::on(Failing::new).await;
    let server = rig.serve().await;
    let run = create(&server, json!({"loops": 5})).await;
    let full = Error::Full { why: "no space left on device".into() };
    for (op, target, body) in [
        ("CountLoop", format!("/v1/runs/{run}/steps"), json!({})),
        ("Checkpoint", format!("/v1/runs/{run}/checkpoints"), json!({"payload": {}})),
        ("Start", "/v1/runs".to_owned(), json!({})),
        ("Tell", format!("/v1/runs/{run}/cancel"), json!({})),
    ] {
        failing.let_fail(op, Fate::Fails(full.clone()));
        refuses(&server, "POST", &target, body, (503, "store_full")).await;
        failing.mend();
    }
    assert_eq!(shown(&server, &run).await["usage"]["loops"], 0);
    assert_eq!(server.entries(&run).iter().filter(|e| e.kind == Kind::Checkpoint).count(), 0);
}

#[tokio::test]
async fn a_server_that_was_stopped_for_too_long_goes_on_under_a_new_number() {
    let rig = Rig::new(fixed()).await;
    let (server, other) = (rig.serve().await, rig.serve().await);
    let run = create(&server, json!({"loops": 5})).await;
    server.is_declared_dead_by(&other).await;
    assert_eq!(step(&server, &run).await.json(), json!({"stepIndex": 1}));
}

#[tokio::test]
async fn who_has_no_token_gets_in_nowhere_but_to_the_probes() {
    let rig = Rig::in_memory(fixed()).await;
    let access = Access { api_token: Some("secret".into()), ..rig.config().access };
    let server = rig.serve_with(Config { access, ..rig.config() }).await;
    let create = || request("POST", "/v1/runs", &json!({}));
    for (ask, want) in [
        (create(), 401),
        (create().header("authorization", "Bearer wrong"), 401),
        (create().header("authorization", "Bearer secret").header("host", "evil.example"), 403),
        (create().header("authorization", "Bearer secret").header("origin", "https://evil.example"), 403),
        (request("GET", "/v1/runs/none/such", &Value::Null), 401),
        (create().header("authorization", "Bearer secret"), 201),
    ] {
        let answer = ask.to(&server).await;
        assert_eq!(answer.status, want, "{ask:?}: {}", answer.text());
        assert!(want == 201 || answer.json()["code"].is_string(), "{}", answer.text());
    }
    assert_eq!(says(&server, "GET", "/healthz", Value::Null, 200).await, json!({"status": "ok"}));
    let version = says(&server, "GET", "/version", Value::Null, 200).await;
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert!(version["commit"].is_string() && version["date"].is_string());
}

#[tokio::test]
async fn a_supervisors_listener_has_none_of_these_routes_for_others() {
    let rig = Rig::in_memory(fixed()).await;
    let setup = rig.serve().await;
    setup.driven("mine", Limits::default(), Default::default()).await;
    let access = Access { only_run: Some(setup.run_no("mine")), ..rig.config().access };
    let server = rig.serve_with(Config { access, ..rig.config() }).await;
    refuses(&server, "POST", "/v1/runs", json!({}), (401, "run_token_wanted")).await;
    // And what a supervisor drives is not driven from here.
    refuses(&setup, "POST", "/v1/runs/mine/steps", json!({}), (403, "run_held")).await;
    assert_eq!(shown(&setup, "mine").await["status"], "running");
}

#[tokio::test]
async fn tokens_of_calls_that_end_later_are_counted_when_they_do() {
    let (rig, server) = served().await;
    let run = create(&server, json!({"loops": 50})).await;
    call(&run, "one").to(&server).await.ok();
    assert_eq!(shown(&server, &run).await["usage"]["promptTokens"], 1000);
    let paid = rig.mock.paid();
    let slow = call(&run, "mock: latency 300ms\nslow");
    let addr = server.addr;
    let slow = tokio::spawn(async move { slow.open(addr).await.rest().await });
    until("it is on its way", || rig.mock.paid() > paid).await;
    call(&run, "two").to(&server).await.ok();
    assert!(shown(&server, &run).await["usage"]["promptTokens"].as_i64() >= Some(2000));
    slow.await.unwrap().ok();
    for _ in 0..2 {
        assert_eq!(shown(&server, &run).await["usage"]["promptTokens"], 3000);
    }
}

/// Bug: on a listener without an API token any caller cancelled a supervised run, replaced a policy and created a run of
/// 1,000 usd.
/// Consequence: an agent that was refused by its own run's proxy asked `outlast serve` beside it.
/// Cause: a caller without a token was let in as the person, and one with a run token was not.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_token_changes_only_runs_that_a_request_began_and_within_the_defaults() {
    let rig = Rig::in_memory(fixed()).await;
    let server = rig.serve_limited(limit(Unit::CostNanoUsd, 5_000_000_000)).await;
    let own = create(&server, json!({"loops": 2})).await;
    let spec = Spec { command: Some(Command::default()), ..Spec::default() };
    let start = Start { spec, ..Start::new(RunId::new("supervised").unwrap()) };
    server.store.ask(start, Durability::Synced).await.unwrap();
    for verb in ["cancel", "complete", "steps", "checkpoints", "approvals"] {
        let target = format!("/v1/runs/supervised/{verb}");
        refuses(&server, "POST", &target, json!({"tool": "t"}), (403, "others_run")).await;
    }
    assert_eq!(call("supervised", "hello").to(&server).await.code(), "others_run");
    server.driven("driven", Limits::default(), Default::default()).await;
    refuses(&server, "POST", "/v1/runs/driven/cancel", json!({}), (403, "others_run")).await;
    assert_eq!(server.status("driven"), Status::Running);
    let policy = json!({"name": "careful", "budget": {"dollars": 999}});
    refuses(&server, "POST", "/v1/policies", policy, (403, "only_the_command_decides")).await;

    let usd = |run: String| server.envelope(&run).limits[Unit::CostNanoUsd];
    assert_eq!(usd(create(&server, json!({"dollars": 1000})).await), Some(5_000_000_000));
    assert_eq!(usd(create(&server, json!({"dollars": 2})).await), Some(2_000_000_000));
    assert_eq!(usd(own.clone()), Some(5_000_000_000));
    step(&server, &own).await.ok();
    says(&server, "POST", &format!("/v1/runs/{own}/cancel"), json!({}), 200).await;
}
