//! Requests that are refused, in each dialect; probes and metrics.

use std::{collections::BTreeSet, fmt::Write as _};

use rustix::process::Signal;

use super::{
    pin,
    server::{Provider, Server, until},
};

const CHAT: &str = "/v1/chat/completions";
const JSON: (&str, &str) = ("content-type", "application/json");
const KEY: (&str, &str) = ("authorization", "Bearer sk-pin");
const RUN: (&str, &str) = ("x-outlast-run", "r");
const GOOD: &str =
    r#"{"model": "gpt-4o-mini", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}"#;

#[test]
fn requests_are_refused_as_they_were() {
    let home = tempfile::tempdir().unwrap();
    let provider = Provider::start(home.path());
    let server = Server::start(home.path(), &provider, &["--max-body", "64KiB", "--upstream-retries", "0"]);
    let mut found = String::new();
    let large = format!("{{\"model\": \"{}\"}}", "x".repeat(70_000));
    let many = "y".repeat(200);
    let again = GOOD.replace("\"x\"", r#""z\nmock: status 503""#);
    for (what, headers, body) in [
        ("a call", vec![], GOOD),
        ("the same", vec![], GOOD),
        ("the same, in another attempt", vec![("x-outlast-attempt", "2")], GOOD),
        ("no JSON", vec![], "no json"),
        ("a key twice", vec![], r#"{"model": "a", "model": "b"}"#),
        ("without a model", vec![], "{}"),
        ("another type", vec![], r#"{"model": 5}"#),
        ("another encoding", vec![("content-encoding", "compress")], GOOD),
        ("a broken encoding", vec![("content-encoding", "gzip")], GOOD),
        ("too large", vec![], large.as_str()),
        ("a bad run", vec![("x-outlast-run", "a b")], GOOD),
        ("a long attempt", vec![("x-outlast-attempt", many.as_str())], GOOD),
        ("two runs", vec![("x-riskkernel-run-id", "s")], GOOD),
        ("a scope", vec![("x-outlast-scope", "7")], GOOD),
        ("a bad token", vec![("authorization", "Bearer ol_x")], GOOD),
        ("bad retries", vec![("x-outlast-retries", "3")], GOOD),
        ("no key", vec![("authorization", "")], GOOD),
        ("an upstream that fails", vec![], again.as_str()),
        ("a foreign host", vec![("host", "evil.example")], GOOD),
        ("by RiskKernel's header", vec![("x-outlast-run", ""), ("x-riskkernel-run-id", "k")], GOOD),
    ] {
        let own = [RUN, KEY, JSON].into_iter().filter(|(name, _)| !headers.iter().any(|(n, _)| n == name));
        let sent: Vec<_> = own.chain(headers.iter().copied()).filter(|(_, v)| !v.is_empty()).collect();
        let answer = server.ask("POST", CHAT, &sent, body);
        write!(found, "{what}\n  {}", answer.told(answer.status >= 400)).unwrap();
    }
    for (what, path, headers, body) in [
        (
            "a foreign response",
            "/v1/responses",
            vec![KEY],
            r#"{"model": "gpt-4o-mini", "input": "x", "previous_response_id": "r"}"#,
        ),
        (
            "in the background",
            "/v1/responses",
            vec![KEY],
            r#"{"model": "gpt-4o-mini", "input": "x", "background": true}"#,
        ),
        ("no JSON", "/v1/messages", vec![("x-api-key", "k")], "no json"),
        (
            "no JSON",
            "/v1beta/models/gemini-2.5-flash:generateContent",
            vec![("x-goog-api-key", "k")],
            "no json",
        ),
        ("no JSON", "/v1/embeddings", vec![KEY], "no json"),
    ] {
        let headers: Vec<_> = headers.into_iter().chain([RUN, JSON]).collect();
        let answer = server.ask("POST", path, &headers, body);
        write!(found, "{what}: {path}\n  {}", answer.told(true)).unwrap();
    }
    drop(provider);
    let answer = server.ask("POST", CHAT, &[RUN, KEY, JSON], &GOOD.replace("\"x\"", "\"gone\""));
    write!(found, "the upstream is gone\n  {}", answer.told(true)).unwrap();
    pin("refusals", &found);
}

/// Names, types and labels; and that all of it is there from the start, or after which event.
#[test]
fn metrics_keep_their_names_and_a_server_that_drains_says_so() {
    let home = tempfile::tempdir().unwrap();
    let provider = Provider::start(home.path());
    super::server::told(home.path(), &["budgets", "set", "all", "--usd", "9", "--per", "day"]);
    let server = Server::start(home.path(), &provider, &["--drain", "60s"]);
    let mut found = format!("at the start\n{}", metrics(&server));
    let good = [RUN, KEY, JSON];
    server.ask("POST", CHAT, &good, GOOD);
    server.ask("POST", CHAT, &[RUN, KEY, JSON, ("x-outlast-attempt", "2")], GOOD);
    server.ask("POST", CHAT, &good, "no json");
    server.ask("POST", CHAT, &good, &GOOD.replace("\"x\"", r#""w\nmock: status 429""#));
    found += &format!("after calls\n{}", metrics(&server));
    let at = server.at.clone();
    let slow = GOOD.replace("\"x\"", r#""slow\nmock: latency 600s""#);
    let caller =
        std::thread::spawn(move || super::server::ask(&at, "POST", CHAT, &[RUN, KEY, JSON], slow.as_bytes()));
    let in_flight =
        || server.ask("GET", "/metrics", &[], "").text.contains("outlast_calls_in_flight 1").then_some(());
    until("a call in flight", in_flight);
    server.running.signal(Signal::TERM);
    let ready = until("it drains", || {
        Some(server.ask("GET", "/readyz", &[], "")).filter(|answer| answer.status != 200)
    });
    write!(found, "drains: /readyz\n  {}", ready.told(true)).unwrap();
    for (method, path) in
        [("POST", CHAT), ("GET", "/livez"), ("POST", "/v1/runs"), ("GET", "/v1/state/n/a/k")]
    {
        let answer = server.ask(method, path, &good, GOOD);
        write!(found, "drains: {path}\n  {}", answer.told(true)).unwrap();
    }
    server.running.signal(Signal::TERM);
    drop(caller.join());
    pin("metrics", &found);
}

/// `name type {labels}`, sorted.
fn metrics(server: &Server) -> String {
    let answer = server.ask("GET", "/metrics", &[], "");
    let mut lines = BTreeSet::from([format!("  content-type: {}\n", answer.header("content-type").unwrap())]);
    for line in answer.text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            lines.insert(format!("  {kind}\n"));
        } else if !line.starts_with('#') {
            let (name, labels) = line.split_once('{').map_or((line, ""), |(n, l)| (n, l));
            let name = name.split(' ').next().unwrap();
            let labels = labels.split_once('}').map_or("", |(labels, _)| labels);
            let labels: Vec<&str> = labels.split(',').filter_map(|l| Some(l.split_once('=')?.0)).collect();
            lines.insert(format!("  {name} {{{}}}\n", labels.join(",")));
        }
    }
    lines.into_iter().collect()
}
