//! Budgets of a fleet: the operator of the server reads them, and no client sets them.

use std::time::Duration;

use outlast_core::{
    engine::budget::{SetBudget, Source},
    envelope::{
        budget::{Name, Per, Terms},
        unit::{Limits, Unit},
    },
    run::{Policy, Spec, status::Status},
    store::{Ask as _, Durability, RunView},
};
use outlast_mock as mock;
use outlast_server::door::{Access, ApiTokens, Config};
use serde_json::json;

use crate::{
    client::{Api, Ask},
    rig::{Rig, Server, limit, until},
};

async fn set(server: &Server, name: &str, limits: Limits) {
    set_for(server, name, limits, None).await;
}

async fn set_for(server: &Server, name: &str, limits: Limits, tag: Option<(String, String)>) {
    let terms = Terms { limits, per: Per::Day, tag };
    let set = SetBudget { name: Name::new(name).unwrap(), terms, source: Source::Command };
    server.store.ask(set, Durability::Synced).await.unwrap();
}

/// All that a person decides of a run.
fn decided(view: &RunView) -> (Limits, Policy, Spec, bool) {
    (view.envelope.limits, view.run.policy, view.spec.clone(), view.run.budgets.is_empty())
}

const WORDS: [&str; 12] = [
    "usd",
    "tokens",
    "calls",
    "budget",
    "limit",
    "in-doubt",
    "record",
    "prices",
    "policy",
    "on-divergence",
    "admission",
    "tag",
];

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_its_run_token_sets_no_limit_and_no_policy() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    set(&server, "all", limit(Unit::Calls, 1_000)).await;
    let token = server.driven("r", limit(Unit::Calls, 3), Policy::default()).await;
    let (before, budgets) = (decided(&server.run("r")), server.store.budgets().unwrap());
    // By a header of a call, whatever it is called,
    let mut call = Api::Chat.says("one");
    for word in WORDS {
        for name in [format!("x-outlast-{word}"), format!("x-riskkernel-{word}"), format!("outlast-{word}")] {
            call = call.header(&name, "1000000");
        }
    }
    call.token(&token).to(&server).await.ok();
    // by a word in its query,
    let query: Vec<String> = WORDS.iter().map(|w| format!("{w}=1000000")).collect();
    let target = format!("{}?{}", Api::Chat.path(), query.join("&"));
    Api::Chat.says("two").target(&target).token(&token).to(&server).await.ok();
    // and by what REST there is.
    let body = json!({"usd": 1000, "limits": {"calls": null}, "policy": {"in_doubt": "refund"}}).to_string();
    let runs = [
        "/v1/runs/r",
        "/v1/runs/r/budget",
        "/v1/runs/r/policy",
        "/v1/budgets",
        "/v1/budgets/all",
        "/v1/budgets/all/set",
        "/v1/budgets/all/raise",
        "/v1/budgets/all/remove",
        "/v1/spend",
    ];
    for path in runs {
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            for target in [path.to_owned(), format!("/run/{token}{path}")] {
                let ask = Ask::new(method, &target).bytes(body.clone());
                let refused = ask.header("content-type", "application/json").token(&token).to(&server).await;
                assert!(
                    refused.status.is_client_error(),
                    "{method} {target}: {} {}",
                    refused.status,
                    refused.text()
                );
            }
        }
    }
    assert_eq!(decided(&server.run("r")), before);
    let terms = |views: Vec<outlast_core::envelope::budget::BudgetView>| {
        views.into_iter().map(|v| (v.budget.name, v.budget.terms)).collect::<Vec<_>>()
    };
    assert_eq!(terms(server.store.budgets().unwrap()), terms(budgets));
    Api::Chat.says("three").token(&token).to(&server).await.ok();
    let refused = Api::Chat.says("four").header("x-outlast-calls", "9").token(&token).to(&server).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (402, "call_budget_exceeded".into()));
}

/// Bug: a header made runs without tags, whatever it said. Consequence: a team's budget held for none of its callers, and
/// nobody could tell whose a call was. Cause: only `POST /v1/runs` and the command line had tags.
#[tokio::test(flavor = "multi_thread")]
async fn a_header_callers_run_has_its_tags_and_the_name_of_its_token() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let tokens = ApiTokens::parse("ann the-token-of-ann-24\nbob the-token-of-bob-24").unwrap();
    let access = Access { api_token: Some(tokens), loopback: true, ..Access::default() };
    let config = Config { access, admit_wait: Duration::ZERO, ..rig.config() };
    let server = rig.serve_with(config).await;
    set_for(&server, "search", limit(Unit::Calls, 2), Some(("team".into(), "search".into()))).await;
    let ask = |run: &str, who: &str, tags: &str| {
        let token = format!("the-token-of-{who}-24");
        let call = Api::Chat.says(run).run(run).header("x-api-key", &token);
        call.header("x-outlast-tags", tags)
    };
    ask("one", "ann", "team=search,env=test").to(&server).await.ok();
    let tags = |run: &str| {
        let spec = server.run(run).spec;
        spec.tags.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(tags("one"), "caller=ann env=test team=search");
    let caller = |seq: usize| server.entries("one")[seq].call.as_ref().unwrap().caller.clone();
    assert_eq!(caller(0).as_deref(), Some("ann"));
    // Another's call in it is known as theirs; one under other tags would be charged to another team.
    ask("one", "bob", "").to(&server).await.ok();
    assert_eq!(caller(1).as_deref(), Some("bob"));
    let refused = ask("one", "ann", "team=ads").to(&server).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (403, "other_tags".into()));
    let refused = ask("two", "bob", "team=search").to(&server).await;
    assert_eq!(refused.status.as_u16(), 429, "the team has had its two calls: {}", refused.text());
    ask("three", "bob", "team=ads").to(&server).await.ok();
    let get = Ask::new("GET", "/metrics").header("authorization", "Bearer the-token-of-ann-24");
    let metrics = get.to(&server).await.text().to_owned();
    for (name, calls) in [("ann", 1), ("bob", 2)] {
        let line = format!("outlast_caller_calls_total{{caller=\"{name}\"}} {calls}\n");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_created_refuses_fields_that_it_does_not_know() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    let create = |body: &str| {
        Ask::new("POST", "/v1/runs").bytes(body.to_owned()).header("content-type", "application/json")
    };
    let refused = create(r#"{"tgas": {"team": "search"}}"#).to(&server).await;
    assert_eq!(refused.status.as_u16(), 400, "{}", refused.text());
    assert!(refused.text().contains("tgas") && refused.text().contains("metadata"), "{}", refused.text());
    let made = create(r#"{"tags": {"team": "search"}}"#).to(&server).await;
    let id = made.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(server.run(&id).spec.tags["team"], "search");
    let refused = create(r#"{"tags": {"caller": "ann"}}"#).to(&server).await;
    assert_eq!(refused.status.as_u16(), 400, "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_and_spend_are_read_with_the_api_token_alone() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let access = Access { api_token: Some("the-api-token".into()), loopback: true, ..Access::default() };
    let server = rig.serve_with(Config { access, ..rig.config() }).await;
    set(&server, "all", limit(Unit::Calls, 2)).await;
    let token = server.driven("r", Limits::default(), Policy::default()).await;
    for text in ["one", "two"] {
        Api::Chat.says(text).token(&token).to(&server).await.ok();
    }
    let waits = Api::Chat.says("three").token(&token).throw(server.addr).await;
    until("the run waits", || server.status("r") == Status::Waiting).await;
    let get = |target: &str| Ask::new("GET", target).header("authorization", "Bearer the-api-token");
    let told = get("/v1/budgets").to(&server).await.json();
    let mut one = told["budgets"][0].clone();
    let (period, until_at) = (one["period"].take(), one["until"].take());
    assert!(period.as_str().is_some_and(|p| p.len() == 10) && until_at.as_str().is_some(), "{told}");
    assert_eq!(
        one,
        json!({
            "name": "all", "per": "day", "tag": null, "period": null, "until": null, "acts": [], "waiting": ["r"],
            "units": [{"unit": "calls", "limit": 2, "spent": 2, "reserved": 0, "in_doubt": 0, "left": 0}],
        })
    );
    let spend = get("/v1/spend?by=upstream,model,run,tag.team").to(&server).await.json();
    let line = &spend["lines"][0];
    assert_eq!(
        (&line["upstream"], &line["run"], &line["tag.team"]),
        (&json!("openai"), &json!("r"), &json!(null))
    );
    let spent = server.envelope("r").spent;
    for sum in [line, &spend["total"]] {
        assert_eq!((&sum["calls"], &sum["spent_nano_usd"]), (&json!(2), &json!(spent.cost())), "{spend}");
    }
    assert_eq!(
        get("/v1/spend?since=1970-01-01T00:00:00Z&until=1970-01-02T00:00:00Z").to(&server).await.json()["lines"],
        json!([])
    );
    for (target, code) in [
        ("/v1/spend?by=team", "bad_request"),
        ("/v1/spend?from=1", "bad_request"),
        ("/v1/spend?since=yesterday", "bad_request"),
        ("/v1/spend?since=1970-01-01T00:00:00Z&since=1970-01-01T00:00:00Z", "bad_request"),
        ("/v1/budgets?by=day", "bad_request"),
    ] {
        let refused = get(target).to(&server).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (400, code.into()), "{target}");
    }
    for target in ["/v1/budgets", "/v1/spend"] {
        for credential in ["wrong", token.as_str()] {
            let ask = Ask::new("GET", target).header("authorization", &format!("Bearer {credential}"));
            let refused = ask.to(&server).await;
            assert_eq!((refused.status.as_u16(), refused.code()), (401, "no_token".into()), "{target}");
        }
        let refused = Ask { ..get(target) }.header("origin", "https://elsewhere.example").to(&server).await;
        assert_eq!(refused.status, 403, "{target}");
    }
    let metrics = get("/metrics").to(&server).await;
    let wanted = "outlast_budget_spent{budget=\"all\",per=\"day\",unit=\"calls\"} 2\n";
    assert!(metrics.text().contains(wanted), "{}", metrics.text());
    drop(waits);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_too_long_is_told_to_come_again_and_its_run_is_not_halted() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let wait = std::time::Duration::from_millis(50);
    let server = rig.serve_with(Config { admit_wait: wait, ..rig.config() }).await;
    set(&server, "all", limit(Unit::Calls, 0)).await;
    let token = server.driven("r", Limits::default(), Policy::default()).await;
    for api in [Api::Chat, Api::Messages] {
        let told = api.says("one").token(&token).to(&server).await;
        assert_eq!((told.status.as_u16(), told.header("retry-after")), (429, Some("5")), "{}", told.text());
        assert!(
            told.text().contains("the budget all for ") && told.text().contains("go on by themselves at")
        );
        assert!(!told.text().contains("outlast budgets"), "{}", told.text());
        assert_eq!(server.status("r"), Status::Waiting);
    }
    set(&server, "all", limit(Unit::Calls, 5)).await;
    Api::Chat.says("one").token(&token).to(&server).await.ok();
    assert_eq!(server.status("r"), Status::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_newest_first_by_status_and_page_by_page() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    for run in ["a", "b", "c"] {
        Api::Chat.says("hello").run(run).to(&server).await.ok();
    }
    Ask::new("POST", "/v1/runs/b/complete").to(&server).await.ok();
    let list = async |query: &str| {
        let told = Ask::new("GET", &format!("/v1/runs{query}")).to(&server).await.json();
        let ids = told["runs"].as_array().unwrap().iter().map(|r| r["run"].as_str().unwrap().to_owned());
        (ids.collect::<Vec<_>>(), told["cursor"].as_str().map(str::to_owned))
    };
    assert_eq!(list("").await, (vec!["c".into(), "b".into(), "a".into()], None));
    assert_eq!(list("?status=completed").await, (vec!["b".into()], None));
    let (first, cursor) = list("?limit=2").await;
    assert_eq!(first, ["c", "b"]);
    assert_eq!(list(&format!("?limit=2&cursor={}", cursor.unwrap())).await, (vec!["a".into()], None));
    let told = Ask::new("GET", "/v1/runs?limit=1").to(&server).await.json();
    let (run, spent) = (&told["runs"][0], server.envelope("c").spent);
    assert_eq!((&run["calls"], &run["spent_nano_usd"]), (&json!(1), &json!(spent.cost())));
    for wrong in ["?status=done", "?limit=0", "?limit=1001", "?cursor=x", "?before=1", "?since=x"] {
        let refused = Ask::new("GET", &format!("/v1/runs{wrong}")).to(&server).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (400, "bad_request".into()), "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_asks_nothing_is_completed_and_any_other_goes_on() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let server = rig.serve().await;
    server.driven("supervised", Limits::default(), Policy::default()).await;
    Api::Chat.says("hello").run("idle").to(&server).await.ok();
    Ask::new("POST", "/v1/runs/stopped/cancel").to(&server).await;
    // A call is on its way for as long as its provider takes.
    let slow = Api::Chat.streams("hello\nmock: hang").run("slow").open(server.addr).await;
    rig.clock.advance_ms(59_000);
    Api::Chat.says("hello").run("busy").to(&server).await.ok();
    assert_eq!(server.proxy.end_idle(60_000).await.unwrap(), 0);
    rig.clock.advance_ms(1_000);
    assert_eq!(server.proxy.end_idle(60_000).await.unwrap(), 1);
    assert_eq!(server.status("idle"), Status::Completed);
    for run in ["supervised", "slow", "busy"] {
        assert_eq!(server.status(run), Status::Running, "{run}");
    }
    let late = Api::Chat.says("more").run("idle").to(&server).await;
    assert_eq!((late.status.as_u16(), late.code()), (403, "run_ended".into()));
    drop(slow);
}
