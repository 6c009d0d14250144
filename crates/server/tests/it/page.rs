//! The page: who gets in, what a visitor may do, and the tricks that do not work.

use std::sync::Arc;

use outlast_core::{
    envelope::unit::{Limits, Unit},
    run::{Policy, status::Status},
};
use outlast_mock as mock;
use outlast_server::door::{Access, Config, Sessions, Shows};
use serde_json::{Value, json};

use crate::{
    client::{Answer, Api, Ask, raw},
    rig::{Rig, Server},
};

const API: &str = "the-api-token";

/// A server as `outlast ui` makes one: nobody knows its API token.
async fn alone(read_only: bool) -> (Rig, Server, Arc<Sessions>) {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let access = Access { api_token: Some(API.into()), ..rig.config().access };
    let config = Config { access, ..rig.config() };
    let (server, sessions) = rig.serve_page(config, Shows::Alone, read_only).await;
    (rig, server, sessions)
}

fn enters(server: &Server, link: &str) -> Ask {
    Ask::new("POST", "/ui/session")
        .header("origin", &format!("http://{}", server.addr))
        .header("sec-fetch-site", "same-origin")
        .bytes(json!({ "link": link }).to_string())
}

async fn bearer(server: &Server, sessions: &Sessions) -> String {
    let told = enters(server, &sessions.link()).to(server).await;
    assert_eq!(told.status, 200, "{}", told.text());
    told.json()["bearer"].as_str().unwrap().to_owned()
}

async fn with(server: &Server, bearer: &str, method: &str, target: &str, body: Value) -> Answer {
    let bytes = if body.is_null() { String::new() } else { body.to_string() };
    Ask::new(method, target)
        .header("authorization", &format!("Bearer {bearer}"))
        .bytes(bytes)
        .to(server)
        .await
}

#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (status, code), "{}", answer.text());
}

#[tokio::test]
async fn a_link_lets_one_visitor_in_once() {
    let (_rig, server, sessions) = alone(false).await;
    refused(&Ask::new("GET", "/v1/runs").to(&server).await, 401, "no_token");
    let link = sessions.link();
    let told = enters(&server, &link).to(&server).await;
    let bearer = told.json()["bearer"].as_str().unwrap().to_owned();
    assert!(told.header("set-cookie").is_none(), "cookies ignore ports");
    assert_eq!(with(&server, &bearer, "GET", "/v1/runs", Value::Null).await.status, 200);
    // A used link, one that was never given, none at all.
    for link in [&link, "0000", ""] {
        refused(&enters(&server, link).to(&server).await, 401, "bad_link");
    }
    let other = sessions.link();
    for body in ["", "{}", "[]", "{\"link\": 7}"] {
        refused(&enters(&server, &other).bytes(body).to(&server).await, 401, "bad_link");
    }
    refused(&with(&server, "olp_made-up", "GET", "/v1/runs", Value::Null).await, 401, "session_over");
}

#[tokio::test]
async fn an_old_link_and_an_old_session_are_over() {
    let (rig, server, sessions) = alone(false).await;
    let (link, bearer) = (sessions.link(), bearer(&server, &sessions).await);
    rig.clock.suspend_ms(60_000);
    refused(&enters(&server, &link).to(&server).await, 401, "bad_link");
    assert_eq!(with(&server, &bearer, "GET", "/v1/runs", Value::Null).await.status, 200);
    rig.clock.suspend_ms(12 * 3_600_000);
    refused(&with(&server, &bearer, "GET", "/v1/runs", Value::Null).await, 401, "session_over");
}

#[tokio::test]
async fn a_page_of_another_origin_or_port_gets_no_session_and_no_answer() {
    let (_rig, server, sessions) = alone(false).await;
    let port = server.addr.port();
    for (origin, site) in [
        ("https://evil.example".to_owned(), "cross-site"),
        ("null".to_owned(), "cross-site"),
        // Another port of this host: on loopback its requests pass the check of origins, and it shares our cookies.
        (format!("http://127.0.0.1:{}", port.wrapping_add(1)), "same-site"),
        (format!("http://localhost:{port}"), "cross-site"),
        // A browser that knows better than the header it was given.
        (format!("http://127.0.0.1:{port}"), "same-site"),
    ] {
        let link = sessions.link();
        let ask = enters(&server, &link).header("origin", &origin).header("sec-fetch-site", site);
        refused(&ask.to(&server).await, 403, "foreign_origin");
        // The link was not used up by it.
        assert_eq!(enters(&server, &link).to(&server).await.status, 200, "{origin}");
    }
    refused(&enters(&server, &sessions.link()).without("origin").to(&server).await, 403, "foreign_origin");
    // No answer allows another origin to read it, and a preflight gets nothing.
    let bearer = bearer(&server, &sessions).await;
    for target in ["/", "/ui/app.js", "/v1/runs"] {
        let ask = Ask::new("GET", target).header("authorization", &format!("Bearer {bearer}"));
        let answer = ask.header("origin", &format!("http://localhost:{}", port ^ 1)).to(&server).await;
        assert!(answer.header("access-control-allow-origin").is_none(), "{target}");
        let preflight = Ask::new("OPTIONS", target).header("origin", "http://localhost:1");
        let answer = preflight.header("access-control-request-headers", "authorization").to(&server).await;
        assert!(answer.header("access-control-allow-origin").is_none() && answer.status != 200, "{target}");
    }
}

#[tokio::test]
async fn a_name_that_was_rebound_to_this_machine_gets_nothing() {
    let (_rig, server, sessions) = alone(false).await;
    let bearer = bearer(&server, &sessions).await;
    for target in ["/", "/ui/app.js", "/ui/about", "/v1/runs", "/v1/approvals"] {
        let ask = Ask::new("GET", target).header("authorization", &format!("Bearer {bearer}"));
        refused(&ask.header("host", "evil.example").to(&server).await, 403, "foreign_host");
    }
    let link = sessions.link();
    let rebound =
        enters(&server, &link).header("host", "evil.example").header("origin", "http://evil.example");
    refused(&rebound.to(&server).await, 403, "foreign_host");
}

#[tokio::test]
async fn every_answer_of_the_page_carries_the_policy() {
    let (_rig, server, _) = alone(false).await;
    for (target, status, kind) in [
        ("/", 200, "text/html; charset=utf-8"),
        ("/ui/app.js", 200, "text/javascript; charset=utf-8"),
        ("/ui/vendor/preact.mjs", 200, "text/javascript; charset=utf-8"),
        ("/ui/style.css", 200, "text/css; charset=utf-8"),
        ("/ui/about", 200, "application/json"),
        ("/ui/nothing.js", 404, "text/plain; charset=utf-8"),
    ] {
        let answer = Ask::new("GET", target).to(&server).await;
        assert_eq!((answer.status.as_u16(), answer.header("content-type")), (status, Some(kind)), "{target}");
        let policy = answer.header("content-security-policy").unwrap();
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
            "form-action 'none'",
        ] {
            assert!(policy.split("; ").any(|had| had == rule), "{target}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
    }
    let page = Ask::new("GET", "/").to(&server).await;
    assert!(!page.text().contains("<style") && !page.text().contains("onload"), "nothing inline");
}

#[tokio::test]
async fn a_path_that_wanders_finds_no_file() {
    let (_rig, server, _) = alone(false).await;
    for path in [
        "/ui/../app.js",
        "/ui/./app.js",
        "/ui//app.js",
        "/ui/app.js/",
        "/ui/%61pp.js",
        "/ui/..%2f..%2fCargo.toml",
        "/ui/vendor/../app.js",
        "/ui/vendor",
        "/ui/",
        "/ui",
        "/ui/app.js%00.css",
        "/ui/APP.JS",
        "/ui/LICENSE.preact",
        "/ui\\app.js",
        "//",
        "/index.html",
        "/app.js",
        "/run/x/ui/app.js",
        "/ui/app.js;x",
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", server.addr);
        let answer = raw(server.addr, request.as_bytes()).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        assert!(!answer.contains("import {"), "{path}");
    }
    for method in ["POST", "PUT", "DELETE"] {
        refused(&Ask::new(method, "/ui/app.js").to(&server).await, 405, "read_only");
    }
}

#[tokio::test]
async fn a_page_that_only_looks_changes_nothing() {
    let (_rig, server, sessions) = alone(true).await;
    server.driven("r", Limits::default(), Policy::default()).await;
    let bearer = bearer(&server, &sessions).await;
    for (method, target) in [
        ("POST", "/v1/runs/r/stop"),
        ("POST", "/v1/runs/r/budget"),
        ("POST", "/v1/runs/r/retry"),
        ("POST", "/v1/runs/r/fork"),
        ("POST", "/v1/runs/r/wake"),
        ("POST", "/v1/runs/r/cancel"),
        ("POST", "/v1/budgets/all/set"),
        ("POST", "/v1/budgets/all/raise"),
        ("POST", "/v1/budgets/all/remove"),
        ("POST", "/v1/runs"),
        ("POST", "/v1/approvals/apr_1_1"),
        ("POST", "/v1/policies"),
        ("PUT", "/v1/state/a/b/c"),
        ("DELETE", "/v1/state/a/b/c"),
        ("POST", "/v1/state/transaction"),
        ("PUT", "/v1/memory/facts"),
    ] {
        refused(&with(&server, &bearer, method, target, json!({})).await, 403, "page_only_looks");
    }
    assert_eq!(server.status("r"), Status::Running);
    assert_eq!(with(&server, &bearer, "GET", "/v1/runs/r/summary", Value::Null).await.status, 200);
}

#[tokio::test]
async fn a_visitor_changes_a_named_budget_which_remembers_who_did() {
    let (_rig, server, sessions) = alone(false).await;
    server.driven("r", Limits::default(), Policy::default()).await;
    let bearer = bearer(&server, &sessions).await;
    let says = async |act: &str, body: Value| {
        let told = with(&server, &bearer, "POST", &format!("/v1/budgets/all/{act}"), body).await;
        assert_eq!(told.status, 200, "{act}: {}", told.text());
        told.json()
    };
    let terms = json!({ "limits": { "cost_nano_usd": 5_000_000_000_i64 }, "per": "day" });
    let told = says("set", terms.clone()).await;
    assert_eq!((&told["changed"], &told["charged_runs"]), (&json!(true), &json!(1)), "{told}");
    assert_eq!(server.run("r").run.budgets.len(), 1);
    let again = says("set", terms).await;
    assert_eq!((&again["changed"], &again["charged_runs"]), (&json!(false), &json!(0)), "{again}");
    let told = says("raise", json!({ "add": { "cost_nano_usd": 1 } })).await;
    assert_eq!(told["limits"], json!({ "cost_nano_usd": 5_000_000_001_i64 }));
    // The list of runs tells the limit that a run is nearest to.
    let runs = with(&server, &bearer, "GET", "/v1/runs", Value::Null).await.json();
    let near = &runs["runs"][0]["tightest"];
    assert_eq!(
        (&near["whose"], &near["budget"], &near["unit"]),
        (&json!("budget"), &json!("all"), &json!("cost_nano_usd"))
    );
    let listed = with(&server, &bearer, "GET", "/v1/budgets", Value::Null).await.json();
    let acts = listed["budgets"][0]["acts"].as_array().unwrap();
    let whats: Vec<_> = acts.iter().map(|act| act["what"].as_str().unwrap()).collect();
    assert_eq!(whats, ["set", "raise"]);
    assert!(acts.iter().all(|act| act["by"].as_str().unwrap().starts_with("page:")), "{acts:?}");
    for (target, body, wanted) in [
        ("/v1/budgets/all/set", json!({ "limits": {} }), (400, "bad_limit")),
        ("/v1/budgets/all/set", json!({ "limits": { "loops": 1 } }), (400, "bad_limit")),
        ("/v1/budgets/all/set", json!({ "limits": { "calls": -1 } }), (400, "bad_request")),
        ("/v1/budgets/all/set", json!({ "limits": { "calls": 1 }, "per": "week" }), (400, "bad_request")),
        ("/v1/budgets/all/set", json!({ "limits": { "calls": 1 }, "tag": "team" }), (400, "bad_request")),
        ("/v1/budgets/all/set", json!({ "calls": 1 }), (400, "bad_request")),
        ("/v1/budgets/a%20b/set", json!({ "limits": { "calls": 1 } }), (400, "bad_request")),
        ("/v1/budgets/all/raise", json!({ "add": {} }), (400, "bad_request")),
        ("/v1/budgets/all/raise", json!({ "add": { "calls": 1 } }), (400, "bad_limit")),
        ("/v1/budgets/none/raise", json!({ "add": { "calls": 1 } }), (404, "unknown_budget")),
        ("/v1/budgets/none/remove", json!({}), (404, "unknown_budget")),
    ] {
        refused(&with(&server, &bearer, "POST", target, body).await, wanted.0, wanted.1);
    }
    says("remove", json!({})).await;
    assert_eq!(server.store.budgets().unwrap(), []);
}

#[tokio::test]
async fn a_visitor_acts_on_runs_that_others_began() {
    let (_rig, server, sessions) = alone(false).await;
    let limits = |usd: i64| {
        let mut limits = Limits::default();
        limits[Unit::CostNanoUsd] = Some(usd);
        limits
    };
    server.driven("r", limits(5_000_000_000), Policy::default()).await;
    let bearer = bearer(&server, &sessions).await;
    let raised = json!({ "add": { "cost_nano_usd": 1_000_000_000 }, "set": { "calls": 9 } });
    let told = with(&server, &bearer, "POST", "/v1/runs/r/budget", raised).await;
    assert_eq!((told.status.as_u16(), &told.json()["status"]), (200, &json!("running")), "{}", told.text());
    let envelope = server.run("r").envelope;
    assert_eq!(envelope.limits[Unit::CostNanoUsd], Some(6_000_000_000));
    assert_eq!(envelope.limits[Unit::Calls], Some(9));
    let forked = with(&server, &bearer, "POST", "/v1/runs/r/fork", json!({ "seq": 0, "id": "f" })).await;
    assert_eq!((forked.status.as_u16(), &forked.json()["created"]), (200, &json!(true)), "{}", forked.text());
    assert_eq!(server.run("f").run.origins[0].run, server.run_no("r"));
    let told = with(&server, &bearer, "POST", "/v1/runs/r/stop", Value::Null).await.json();
    let entries =
        with(&server, &bearer, "GET", "/v1/runs/r/entries", Value::Null).await.json()["entries"].clone();
    let acts: Vec<&Value> =
        entries.as_array().unwrap().iter().map(|e| &e["act"]).filter(|a| a.is_object()).collect();
    let by = acts[0]["by"].as_str().unwrap();
    assert!(by.starts_with("page:") && by.len() == 13, "{by}");
    let whats: Vec<_> = acts.iter().map(|act| act["what"].as_str().unwrap()).collect();
    assert_eq!((whats.as_slice(), acts[2]["by"].as_str()), (["raise", "fork", "stop"].as_slice(), Some(by)));
    assert_eq!(told["stop_requested"], true, "its driver ends it");
    assert_eq!(with(&server, &bearer, "POST", "/v1/runs/f/cancel", json!({})).await.status, 200);
    assert_eq!(server.status("f"), Status::Cancelled);
}

#[tokio::test]
async fn an_act_that_is_not_understood_changes_nothing() {
    let (_rig, server, sessions) = alone(false).await;
    server.driven("r", Limits::default(), Policy::default()).await;
    let bearer = bearer(&server, &sessions).await;
    for (verb, body, status, code) in [
        ("budget", json!({}), 400, "bad_request"),
        ("budget", json!({ "add": { "dollars": 1 } }), 400, "bad_request"),
        ("budget", json!({ "add": { "calls": -1 } }), 400, "bad_request"),
        ("budget", json!({ "add": { "calls": 1 } }), 400, "bad_limit"),
        ("budget", json!({ "set": { "calls": 1 }, "lift": ["calls"] }), 400, "bad_request"),
        ("budget", json!({ "raise": 1 }), 400, "bad_request"),
        ("stop", json!({ "now": true }), 400, "bad_request"),
        ("retry", json!({}), 400, "bad_request"),
        ("fork", json!({}), 400, "bad_request"),
        ("fork", json!({ "seq": 99 }), 400, "bad_request"),
        ("fork", json!({ "seq": 0, "attempt": 1 }), 400, "bad_request"),
        ("fork", json!({ "seq": 0, "id": "a b" }), 400, "bad_request"),
        // What is not there, or not in this state, is no defect of the server: a client would repeat a 500.
        ("fork", json!({ "attempt": 0 }), 404, "unknown_snapshot"),
        ("fork", json!({ "attempt": 99 }), 404, "unknown_snapshot"),
        ("fork", json!({ "seq": 0, "id": "r" }), 409, "run_exists"),
        ("retry", json!({ "keys": ["a"] }), 409, "not_a_job"),
        ("retry", json!({ "failed": true, "keys": ["a"] }), 409, "not_a_job"),
    ] {
        let answer = with(&server, &bearer, "POST", &format!("/v1/runs/r/{verb}"), body).await;
        refused(&answer, status, code);
    }
    refused(&with(&server, &bearer, "POST", "/v1/runs/nobody/stop", json!({})).await, 404, "unknown_run");
    assert_eq!(server.run("r").envelope.limits, Limits::default());
}

#[tokio::test]
async fn who_shows_nothing_and_a_run_act_on_no_run() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let (server, sessions) = rig.serve_page(rig.config(), Shows::Beside, false).await;
    let token = server.driven("r", Limits::default(), Policy::default()).await;
    let raise = Ask::new("POST", "/v1/runs/r/budget").bytes(json!({ "set": { "calls": 9 } }).to_string());
    refused(&raise.to(&server).await, 403, "only_the_command_decides");
    refused(&raise.target("/v1/runs/r/budget").token(&token).to(&server).await, 403, "no_run_decides");
    let approve = Ask::new("POST", "/v1/approvals/apr_1_1").bytes(r#"{"decision": "approve"}"#);
    refused(&approve.to(&server).await, 403, "only_the_command_decides");
    // A visitor of the page is a person, also where the listener has no API token.
    let bearer = bearer(&server, &sessions).await;
    let body = json!({ "set": { "calls": 9 } });
    assert_eq!(with(&server, &bearer, "POST", "/v1/runs/r/budget", body).await.status, 200);
    let one = with(&server, &bearer, "POST", "/v1/approvals/apr_1_1", json!({ "decision": "approve" })).await;
    refused(&one, 404, "unknown_approval");
    // A session that is over is no nobody, who would be let in here.
    refused(&with(&server, "olp_old", "GET", "/v1/runs", Value::Null).await, 401, "session_over");
}

#[tokio::test]
async fn a_session_calls_no_provider_and_the_lone_page_is_no_proxy() {
    let (rig, server, sessions) = alone(false).await;
    let bearer = bearer(&server, &sessions).await;
    let call = Api::Chat.says("x").without("x-outlast-run");
    let with_page = call.clone().header("authorization", &format!("Bearer {bearer}"));
    refused(&with_page.to(&server).await, 403, "unknown_path");
    let token = server.driven("r", Limits::default(), Policy::default()).await;
    refused(&call.clone().token(&token).to(&server).await, 403, "unknown_path");
    let (beside, sessions) = rig.serve_page(rig.config(), Shows::Beside, false).await;
    let bearer = self::bearer(&beside, &sessions).await;
    let with_page = call.header("authorization", &format!("Bearer {bearer}"));
    refused(&with_page.to(&beside).await, 401, "no_token");
    assert!(rig.mock.requests().is_empty());
}

#[tokio::test]
async fn settings_that_are_read_again_keep_the_sessions() {
    let rig = Rig::in_memory(mock::Options::default()).await;
    let (server, sessions) = rig.serve_page(rig.config(), Shows::Beside, false).await;
    let bearer = bearer(&server, &sessions).await;
    server.proxy.reconfigure(rig.config());
    assert_eq!(with(&server, &bearer, "GET", "/v1/runs", Value::Null).await.status, 200);
}
