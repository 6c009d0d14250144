//! Refusals by a limit and by what a run is, in the shape of each dialect's SDK.

use std::fmt::Write as _;

use serde_json::json;

use super::{
    pin,
    server::{Provider, Server, told},
};

const MODEL: &str = "gpt-4o-mini";

/// Path, credential, body of a call, with `text` in it.
fn calls(text: &str, model: &str) -> Vec<Call> {
    let said = json!([{"role": "user", "content": text}]);
    let openai = vec![("authorization", "Bearer sk-pin")];
    let claude = vec![("x-api-key", "sk-pin"), ("anthropic-version", "2023-06-01")];
    let contents = json!({"contents": [{"role": "user", "parts": [{"text": text}]}]});
    vec![
        (
            "/v1/chat/completions",
            openai.clone(),
            json!({"model": model, "max_tokens": 9, "messages": said}).to_string(),
        ),
        (
            "/v1/responses",
            openai.clone(),
            json!({"model": model, "max_output_tokens": 16, "input": text, "stream": true}).to_string(),
        ),
        ("/v1/embeddings", openai, json!({"model": "text-embedding-3-small", "input": text}).to_string()),
        (
            "/v1/messages",
            claude,
            json!({"model": "claude-haiku-4-5", "max_tokens": 9, "messages": said}).to_string(),
        ),
        (
            "/v1beta/models/gemini-2.5-flash:generateContent",
            vec![("x-goog-api-key", "pin")],
            contents.to_string(),
        ),
    ]
}

type Call = (&'static str, Vec<(&'static str, &'static str)>, String);

/// Sends the call in the run's name and tells what came.
fn asked(server: &Server, what: &str, run: &str, (path, headers, body): &Call) -> String {
    let mut headers = headers.clone();
    headers.extend([("x-outlast-run", run), ("content-type", "application/json")]);
    let answer = server.ask("POST", path, &headers, body);
    format!("{what}: {path}\n  {}", answer.told(answer.status >= 400))
}

#[test]
fn refusals_by_a_limit_keep_their_shape_in_each_dialect() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    let provider = Provider::start(dir);
    let server = Server::start(dir, &provider, &["--default-loops", "1"]);
    let mut found = String::new();
    for (first, second) in calls("first", MODEL).iter().zip(calls("second", MODEL).iter()) {
        let run = format!("limit-{}", first.0.len());
        found += &asked(&server, "the first", &run, first);
        found += &asked(&server, "beyond the limit", &run, second);
        found += &asked(&server, "halted", &run, second);
        let ended = format!("ended-{}", first.0.len());
        asked(&server, "", &ended, first);
        told(dir, &["cancel", &ended]);
        found += &asked(&server, "cancelled", &ended, second);
    }
    for (name, budget) in [
        ("dollars", json!({"dollars": 0.000_000_1})),
        ("tokens", json!({"tokens": 3})),
        ("seconds", json!({"seconds": 0.001})),
        ("loops", json!({"loops": 1})),
    ] {
        let body = json!({"name": name, "budget": budget}).to_string();
        let run = server.ask("POST", "/v1/runs", &[], &body).json()["id"].as_str().unwrap().to_owned();
        found += &asked(&server, name, &run, &calls("one", MODEL)[0]);
        found += &asked(&server, name, &run, &calls("two", MODEL)[0]);
        for path in [format!("/v1/runs/{run}/steps"), format!("/v1/runs/{run}/checkpoints")] {
            let answer = server.ask("POST", &path, &[], "{}");
            write!(found, "{name}: {}\n  {}", path.replace(&run, "{run}"), answer.told(true)).unwrap();
        }
    }
    found += &asked(&server, "no price", "unpriced", &calls("one", "a-model-that-nobody-knows")[0]);
    told(dir, &["run", "--run", "done", "--calls", "1", "--", "true"]);
    found += &asked(&server, "a completed run", "done", &calls("one", MODEL)[0]);
    pin("limits", &found);
}
