//! Every route of `outlast serve` and of a run's proxy, each asked in the right way and in the wrong one.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use serde_json::{Value, json};

use super::{
    pin,
    server::{Provider, Running, Server, ask, outlast, told, until},
};

const RUN: (&str, &str) = ("x-outlast-run", "r");

/// Our own routes over one story, in order. `{run}` and `{approval}` are ids that earlier answers gave.
const STORY: &[(&str, &str, &str)] = &[
    ("GET", "/livez", ""),
    ("GET", "/readyz", ""),
    ("GET", "/healthz", ""),
    ("GET", "/version", ""),
    ("PUT", "/v1/state/default/a/plan", r#"{"n": 1}"#),
    ("PUT", "/v1/state/default/a/plan?expected_version=1", r#"{"n": 2}"#),
    ("PUT", "/v1/state/default/a/plan?expected_version=7", r#"{"n": 3}"#),
    ("PUT", "/v1/state/run:other/a/plan", "1"),
    ("GET", "/v1/state/default/a/plan", ""),
    ("GET", "/v1/state/default/a/plan?version=1", ""),
    ("GET", "/v1/state/default/a/plan?verison=1", ""),
    ("GET", "/v1/state/default/a/none", ""),
    ("GET", "/v1/state/default/a/plan/history?after=0&limit=1", ""),
    ("DELETE", "/v1/state/default/a/plan", ""),
    ("GET", "/v1/state/default/a/plan", ""),
    ("PATCH", "/v1/state/default/a/plan", ""),
    ("PUT", "/v1/state/default/a/k", "no json"),
    ("PUT", "/v1/state/default/a/k", "[1]"),
    ("GET", "/v1/state/keys?agent=a", ""),
    ("GET", "/v1/state/keys?cursor=x", ""),
    ("GET", "/v1/state/scan?agent=a&limit=1", ""),
    ("GET", "/v1/state/replay?agent=a", ""),
    ("GET", "/v1/state/resume_point?agent=a", ""),
    (
        "POST",
        "/v1/state/transaction",
        r#"{"id": "tx", "changes": [{"namespace": "default", "agent": "a", "key": "t", "value": 1}]}"#,
    ),
    ("GET", "/v1/state/transaction?id=tx", ""),
    ("GET", "/v1/state/transaction?id=none", ""),
    ("GET", "/v1/state/keep?namespace=default", ""),
    ("PUT", "/v1/state/keep?namespace=default", r#"{"keep": 0}"#),
    ("PUT", "/v1/state/keep?namespace=default", r#"{"keep": 1}"#),
    ("GET", "/v1/state/default/a/plan?version=1", ""),
    ("GET", "/v1/state/nowhere", ""),
    ("POST", "/v1/runs", r#"{"name": "kernel", "budget": {"dollars": 1.5}, "metadata": {"team": "a"}}"#),
    ("POST", "/v1/runs", "no json"),
    ("GET", "/v1/runs", ""),
    ("GET", "/v1/runs/{run}", ""),
    ("GET", "/v1/runs/nobody", ""),
    ("POST", "/v1/runs/{run}/steps", "{}"),
    ("GET", "/v1/checkpoints/{run}", ""),
    ("POST", "/v1/runs/{run}/checkpoints", r#"{"name": "cp", "payload": {"at": 1}}"#),
    ("GET", "/v1/checkpoints/{run}", ""),
    ("POST", "/v1/runs/{run}/approve", r#"{"decision": "approve"}"#),
    ("POST", "/v1/runs/{run}/approvals", r#"{"tool": "deploy", "arguments": {"to": "prod"}}"#),
    ("GET", "/v1/runs/{run}/tool-calls", ""),
    ("POST", "/v1/runs/{run}/approve", r#"{"decision": "approve"}"#),
    ("GET", "/v1/memory/facts?namespace=n", ""),
    ("PUT", "/v1/memory/facts", r#"{"namespace": "n", "key": "k", "value": "v"}"#),
    ("GET", "/v1/memory/facts?namespace=n", ""),
    ("GET", "/v1/memory", ""),
    ("GET", "/v1/memory/entry?name=x", ""),
    ("GET", "/v1/policies", ""),
    (
        "POST",
        "/v1/policies",
        r#"{"name": "careful", "budget": {"dollars": 2}, "tools": ["x"], "needsApproval": [{"tool": "x"}]}"#,
    ),
    ("GET", "/v1/policies", ""),
    ("GET", "/v1/policies/careful", ""),
    ("GET", "/v1/policies/none", ""),
    ("GET", "/v1/approvals", ""),
    ("GET", "/v1/approvals?status=strange", ""),
    ("POST", "/v1/approvals", r#"{"tool": ""}"#),
    ("POST", "/v1/approvals", r#"{"tool": "t", "arguments": {"a": 1}, "key": "k"}"#),
    ("POST", "/v1/approvals", r#"{"tool": "t", "arguments": {"a": 2}, "key": "k"}"#),
    ("GET", "/v1/approvals/{approval}", ""),
    ("GET", "/v1/approvals/apr_9_9", ""),
    ("POST", "/v1/approvals/{approval}", r#"{"decision": "approve"}"#),
    ("DELETE", "/v1/approvals/{approval}", ""),
    ("GET", "/v1/budgets", ""),
    ("POST", "/v1/budgets", "{}"),
    ("GET", "/v1/spend", ""),
    ("GET", "/v1/spend?by=team", ""),
    ("POST", "/v1/runs/{run}/complete", "{}"),
    ("POST", "/v1/runs/{run}/steps", "{}"),
    ("POST", "/v1/runs/{run}/cancel", "{}"),
];

#[test]
fn our_own_routes_answer_as_they_did() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    let provider = Provider::start(dir);
    told(dir, &["budgets", "set", "all", "--usd", "9", "--per", "day"]);
    fs::write(dir.join("token"), "a-token-of-some-length").unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(dir.join("token"), private).unwrap();
    let open = Server::start(dir, &provider, &["--default-wall", "none"]);
    let flags = ["--api-token-file", "token", "--allow-host", "outlast.example", "--default-usd", "1"];
    let guarded = Server::start(dir, &provider, &flags);
    let bearer = ("authorization", "Bearer a-token-of-some-length");
    let mut found = String::new();
    let mut ids: BTreeMap<&str, String> = BTreeMap::new();
    for (method, path, body) in STORY {
        let target = ids.iter().fold(path.to_string(), |t, (name, id)| t.replace(name, id));
        let asks = *path == "/v1/approvals" && *method == "POST";
        let sets = *path == "/v1/policies" && *method == "POST";
        let answer = match sets {
            true => guarded.ask(method, &target, &[bearer], body),
            false => open.ask(method, &target, if asks { &[RUN] } else { &[] }, body),
        };
        writeln!(found, "{method} {path} {body}").unwrap();
        write!(found, "  {}", answer.told(true)).unwrap();
        if let (Some(id), Value::Object(_)) = (answer.json()["id"].as_str(), answer.json()) {
            let name = if *path == "/v1/runs" { "{run}" } else { "{approval}" };
            ids.entry(name).or_insert(id.to_owned());
        }
        // Behind an API token: which of them want it, and what they say with it.
        let bare = guarded.ask("GET", &target, &[], "").told(false);
        write!(found, "  without the API token: {bare}").unwrap();
    }
    for (what, headers) in [
        ("a foreign host", vec![("host", "evil.example"), bearer]),
        ("our name", vec![("host", "outlast.example"), bearer]),
        ("a foreign page", vec![("origin", "http://evil.example"), bearer]),
        ("a wrong token", vec![("authorization", "Bearer another-token-of-some-length")]),
    ] {
        let answer = guarded.ask("GET", "/v1/budgets", &headers, "");
        write!(found, "{what}\n  {}", answer.told(true)).unwrap();
    }
    let answer = open.ask("POST", "/v1/policies", &[], r#"{"name": "careful"}"#);
    write!(found, "a policy where there is no API token\n  {}", answer.told(true)).unwrap();
    let word = json!({"decision": "deny", "reason": "no"}).to_string();
    for _ in 0..2 {
        let target = format!("/v1/approvals/{}", ids["{approval}"]);
        let answer = guarded.ask("POST", &target, &[bearer], &word);
        write!(found, "a decision with the API token\n  {}", answer.told(true)).unwrap();
    }
    pin("routes", &found);
}

/// The paths of the providers' APIs: which are metered, which pass, which are refused by name.
#[test]
fn paths_of_the_providers_are_routed_as_they_were() {
    let home = tempfile::tempdir().unwrap();
    let provider = Provider::start(home.path());
    let server = Server::start(home.path(), &provider, &["--default-loops", "none"]);
    let mut found = String::new();
    let mut asks = |method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        let answer = server.ask(method, path, headers, body);
        write!(found, "{method} {path} {body}\n  {}", answer.told(false)).unwrap();
    };
    let openai = [RUN, ("authorization", "Bearer sk-pin"), ("content-type", "application/json")];
    let claude = [RUN, ("x-api-key", "sk-pin"), ("anthropic-version", "2023-06-01")];
    let gemini = [RUN, ("x-goog-api-key", "pin")];
    for path in [
        "/v1/models",
        "/v1/models/gpt-4o-mini",
        "/v1/responses/resp_x",
        "/v1/responses/resp_x/input_items",
        "/v1/files",
        "/v1/nothing",
        "/nothing",
        "/v1/a//b",
        "/v1/%2e%2e/x",
        "/v1/x%2fy",
        "/u/none/v1/models",
        "/run/x/v1/models",
    ] {
        asks("GET", path, &openai, "");
    }
    asks("GET", "http://example.com/v1/models", &openai, "");
    asks("GET", "/v1/models", &claude, "");
    asks("GET", "/v1beta/models", &gemini, "");
    for last in [
        "responses/compact",
        "responses/input_tokens",
        "conversations",
        "completions",
        "images/generations",
        "videos",
        "audio/speech",
        "realtime/sessions",
        "assistants",
        "threads",
        "batches",
        "uploads",
        "vector_stores",
        "containers",
        "fine_tuning/jobs",
        "evals",
        "moderations",
        "agents",
        "skills",
        "files",
        "complete",
        "messages/batches",
        "sessions",
        "environments",
        "projects/p/x:rawPredict",
    ] {
        asks("POST", &format!("/v1/{last}"), &openai, "{}");
    }
    for path in [
        "/v1beta/models/gemini-2.5-flash:embedContent",
        "/v1beta/models/gemini-2.5-flash:predict",
        "/v1beta/models/gemini-2.5-flash:batchGenerateContent",
        "/v1beta/models/gemini-2.5-flash:what",
        "/v1beta/cachedContents",
        "/v1beta/files",
        "/v1beta/interactions",
        "/model/x/invoke",
        "/api/chat",
    ] {
        asks("POST", path, &gemini, "{}");
    }
    asks("GET", "/v1/realtime", &[RUN, ("upgrade", "websocket"), ("connection", "upgrade")], "");
    pin("paths", &found);
}

/// `outlast run` has the same proxy for its own run: whose token, which paths, what its agent is told.
#[test]
fn a_runs_own_proxy_answers_as_it_did() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    let provider = Provider::start(dir);
    let script = "env | grep -E 'OUTLAST_|BASE_URL|API_KEY' > env.new; mv env.new env.txt; sleep 60";
    let mut command = outlast(dir, &["run", "--run", "r", "--usd", "1", "--", "sh", "-c", script]);
    command.envs(provider.variables()).env("OPENAI_API_KEY", "sk-pin").env("ANTHROPIC_API_KEY", "sk-pin");
    let _running = Running::start(&mut command, dir.join("run.log"));
    let env = until("the agent", || fs::read_to_string(dir.join("env.txt")).ok());
    let env: BTreeMap<&str, &str> = env.lines().filter_map(|l| l.split_once('=')).collect();
    let (url, token) = (env["OUTLAST_URL"], env["OUTLAST_TOKEN"]);
    let at = url.strip_prefix("http://").unwrap().trim_end_matches('/');
    let mut found = String::from("the agent's variables\n");
    for (name, value) in &env {
        let value = value.replace(at, "ADDRESS").replace(token, "TOKEN");
        let value = value.replace(dir.to_str().unwrap(), "DIR");
        let value = if *name == "OUTLAST_MARK" { format!("{} bytes", value.len()) } else { value };
        writeln!(found, "  {name}={value}").unwrap();
    }
    let (prefix, rest) = token.split_once('_').unwrap();
    writeln!(found, "a run token: {prefix}_ and {} bytes", rest.len()).unwrap();
    let bearer = format!("Bearer {token}");
    let good = [("authorization", bearer.as_str())];
    let chat =
        json!({"model": "gpt-4o-mini", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]});
    let chat = chat.to_string();
    for (what, method, path, headers, body) in [
        ("no token", "GET", "/v1/models", vec![], ""),
        ("a key", "GET", "/v1/models", vec![("authorization", "Bearer sk-x")], ""),
        ("a bad token", "GET", "/v1/models", vec![("authorization", "Bearer ol_x")], ""),
        ("its token", "GET", "/v1/models", good.to_vec(), ""),
        ("another run", "GET", "/v1/models", vec![good[0], ("x-outlast-run", "other")], ""),
        ("a scope", "POST", "/v1/chat/completions", vec![good[0], ("x-outlast-scope", "9")], chat.as_str()),
        (
            "a bad scope",
            "POST",
            "/v1/chat/completions",
            vec![good[0], ("x-outlast-scope", "x")],
            chat.as_str(),
        ),
        ("a call", "POST", "/v1/chat/completions", good.to_vec(), chat.as_str()),
        ("its state", "PUT", "/v1/state/run:r/me/plan", good.to_vec(), "[1]"),
        ("its question", "POST", "/v1/approvals", good.to_vec(), r#"{"tool": "t"}"#),
        ("a decision", "POST", "/v1/approvals/apr_1_2", good.to_vec(), r#"{"decision": "approve"}"#),
        ("a policy", "POST", "/v1/policies", good.to_vec(), r#"{"name": "x"}"#),
        ("RiskKernel's", "POST", "/v1/runs", good.to_vec(), "{}"),
        ("probe", "GET", "/livez", vec![], ""),
        ("probe", "GET", "/readyz", vec![], ""),
        ("probe", "GET", "/metrics", vec![], ""),
        ("probe", "GET", "/version", vec![], ""),
        ("budgets", "GET", "/v1/budgets", good.to_vec(), ""),
        ("spend", "GET", "/v1/spend", good.to_vec(), ""),
    ] {
        let answer = ask(at, method, path, &headers, body.as_bytes());
        write!(found, "{what}: {method} {path}\n  {}", answer.told(path != "/metrics")).unwrap();
    }
    pin("own-proxy", &found);
}

#[test]
fn the_description_of_the_routes_is_as_it_was() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let text = fs::read_to_string(format!("{root}/openapi.json"))
        .or_else(|_| fs::read_to_string(format!("{root}/reference/openapi.json")))
        .unwrap();
    let api: Value = serde_json::from_str(&text).unwrap();
    let mut found = String::new();
    outline("", &api, &mut found);
    pin("openapi", &found);
}

/// Everything but prose: descriptions and summaries are left out.
fn outline(place: &str, value: &Value, found: &mut String) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                let prose = ["description", "summary"].contains(&name.as_str()) && value.is_string();
                if !prose {
                    outline(&format!("{place}/{name}"), value, found);
                }
            }
        }
        Value::Array(elements) => {
            for (at, value) in elements.iter().enumerate() {
                outline(&format!("{place}/{at}"), value, found);
            }
        }
        _ => writeln!(found, "{place} {value}").unwrap(),
    }
}
