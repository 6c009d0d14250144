//! `outlast journal RUN ENTRY`: what was asked and answered, through the proxy and a fake provider.

use std::path::Path;

use crate::pins::{
    json::AGENT,
    server::{Provider, outlast, told},
};

/// A run with two calls, made by `AGENT`.
fn run(dir: &Path) {
    let provider = Provider::start(dir);
    let script = format!("{AGENT}ask 'hello there'; ask 'mock: reply Good morning'");
    let mut command = outlast(dir, &["run", "--run", "r", "--name", "said", "--", "bash", "-c", &script]);
    let output = command.envs(provider.variables()).env("OPENAI_API_KEY", "sk").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_entry_is_read_as_a_conversation() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    run(dir);
    let check = |words: &[&str], parts: &[&str]| {
        let words: Vec<&str> = ["journal", "r"].iter().chain(words).copied().collect();
        let shown = told(dir, &words);
        for part in parts {
            assert!(shown.contains(part), "{words:?} should show {part:?}: {shown}");
        }
        shown
    };
    check(
        &["2"],
        &[
            "\nrequest  max_tokens 9\n  user\n    mock: reply Good morning\n",
            "\nanswer\n  assistant\n    Good morning\n",
        ],
    );
    let diff = check(
        &["2", "--diff"],
        &["  0 turns as in entry 1\n", "-     hello there\n", "+     mock: reply Good morning\n"],
    );
    assert!(diff.ends_with("answer\n  assistant\n    Good morning\n"), "{diff}");
    check(
        &["2", "--raw"],
        &["{\"model\": \"gpt-4o-mini\", \"max_tokens\": 9,", "\"content\":\"Good morning\""],
    );
    let found = check(&["--grep", "GOOD"], &["    2  request  mock: reply Good morning\n"]);
    assert_eq!(found, "    2  request  mock: reply Good morning\n    2  answer   Good morning\n");
    check(&["1", "--grep", "good"], &["nothing that is kept of this run holds \"good\""]);
    assert_eq!(told(dir, &["journal", "--grep", "GOOD"]), format!("said\n{found}"), "in all runs");
    let nowhere = told(dir, &["journal", "--grep", "evening"]);
    assert_eq!(nowhere, "nothing that is kept of any run holds \"evening\"\n");
    let json: serde_json::Value = serde_json::from_str(&told(dir, &["journal", "r", "2", "--json"])).unwrap();
    assert_eq!(json["request"]["messages"][0]["content"], "mock: reply Good morning");
    assert_eq!(json["answer"]["choices"][0]["message"]["content"], "Good morning");
    let output = outlast(dir, &["journal", "r", "9"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error
            .starts_with("error: run said has no entry 9: its last is 2\nhint: `outlast journal said` lists"),
        "{error}"
    );
}
