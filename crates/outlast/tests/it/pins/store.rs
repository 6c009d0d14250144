//! A store that an earlier build wrote: it opens, reads as it did, and goes on.
//!
//! `store.db` is what `scripts/pin-fixture.py` wrote with the build of November 2026. It is copied, never changed.

use std::{fmt::Write as _, fs, path::Path};

use rusqlite::Connection;
use serde_json::{Value, json};

use super::{
    directory, pin,
    server::{Provider, Server, outlast, told},
};

/// The recorded store, in a directory of its own.
fn recorded(dir: &Path) {
    fs::copy(directory().join("store.db"), dir.join("runs.db")).unwrap();
    let logs = dir.join("runs.db.runs/desk-1/logs");
    fs::create_dir_all(&logs).unwrap();
    fs::write(logs.join("1.log"), "200\n").unwrap();
    fs::write(logs.join("2.log"), "200\n200\n200\n").unwrap();
}

/// Members whose value is the time that has passed until now, or the place of the copy.
fn steady(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if members.get("unit").is_some_and(|u| u == "wall_ms") {
                members.insert("spent".into(), json!("…"));
                members.insert("left".into(), json!("…"));
            }
            for name in ["wall_ms", "place", "until"] {
                if members.get(name).is_some_and(|v| !v.is_null()) {
                    members.insert(name.into(), json!("…"));
                }
            }
            members.values_mut().for_each(steady);
        }
        Value::Array(elements) => elements.iter_mut().for_each(steady),
        _ => {}
    }
}

const READS: &[&str] = &[
    "ls",
    "show desk-1",
    "show short-1",
    "show circle-1",
    "show torn-1",
    "show stopped-1",
    "show river",
    "show order-7",
    "show research-42",
    "show research-43",
    "show enrich-docs",
    "show kernel",
    "journal desk-1",
    "journal short-1",
    "journal torn-1",
    "journal river",
    "journal river --divergence",
    "journal order-7",
    "journal research-42",
    "journal kernel",
    "journal enrich-docs",
    "logs desk-1",
    "logs desk-1 --attempt 1",
    "approvals --all",
    "spend --by run,model,upstream,day,tag.team",
    "jobs",
    "inspect enrich-docs --gaps --attempts",
    "export enrich-docs",
    "resolve order-7",
    "state keys agent-1",
    "state keys agent-1 --namespace scratch",
    "state get agent-1 plan",
    "state get agent-1 plan --at 1",
    "state history agent-1 gone",
    "state diff agent-1 1 5",
    "state replay agent-1",
    "state keep",
    "state keep --namespace scratch",
    "state dump",
    "ctx get --of research-42",
    "gc --older-than 1s --dry-run",
    "verify",
];

#[test]
fn a_store_of_an_earlier_build_reads_as_it_did() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    recorded(dir);
    let mut found = String::new();
    for line in READS {
        let words: Vec<&str> = line.split(' ').chain(["--json"]).collect();
        let output = outlast(dir, &words).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        writeln!(found, "\n$ outlast {line} --json").unwrap();
        let mut values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        let read: Result<Vec<Value>, _> = values.by_ref().collect();
        match read {
            Ok(values) => values.into_iter().for_each(|mut value| {
                steady(&mut value);
                writeln!(found, "{}", serde_json::to_string_pretty(&value).unwrap()).unwrap();
            }),
            Err(_) => found += &text,
        }
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
    pin("store", &found);
}

/// A path, its headers and its body.
type Asked = (&'static str, Vec<(&'static str, &'static str)>, Value);

/// The calls of `scripts/pin-fixture.py`, as it sent them.
fn calls() -> Vec<Asked> {
    let text = "why tea?\nmock: reply because it is warm";
    let said = json!([{"role": "user", "content": text}]);
    let openai = || vec![("authorization", "Bearer sk-pin")];
    let claude = || vec![("x-api-key", "sk-pin"), ("anthropic-version", "2023-06-01")];
    let gemini = || vec![("x-goog-api-key", "pin")];
    let chat = json!({"model": "gpt-4o-mini", "max_tokens": 50, "messages": said});
    let response = json!({"model": "gpt-4o-mini", "max_output_tokens": 50, "input": text});
    let message = json!({"model": "claude-haiku-4-5", "max_tokens": 50, "messages": said});
    let contents = json!({"contents": [{"role": "user", "parts": [{"text": text}]}]});
    let streamed = |body: &Value| {
        let mut body = body.clone();
        body["stream"] = json!(true);
        body
    };
    vec![
        ("/v1/chat/completions", openai(), chat.clone()),
        ("/v1/chat/completions", openai(), streamed(&chat)),
        ("/v1/responses", openai(), response.clone()),
        ("/v1/responses", openai(), streamed(&response)),
        ("/v1/embeddings", openai(), json!({"model": "text-embedding-3-small", "input": "tea"})),
        ("/v1/messages", claude(), message.clone()),
        ("/v1/messages", claude(), streamed(&message)),
        ("/v1beta/models/gemini-2.5-flash:generateContent", gemini(), contents.clone()),
        ("/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse", gemini(), contents),
    ]
}

#[test]
fn answers_that_an_earlier_build_recorded_are_replayed_byte_by_byte() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    recorded(dir);
    let provider = Provider::start(dir);
    let server = Server::start(dir, &provider, &["--default-wall", "none"]);
    let mut found = String::new();
    for (path, mut headers, body) in calls() {
        headers.extend([("x-outlast-run", "river"), ("x-outlast-attempt", "second")]);
        headers.push(("content-type", "application/json"));
        let answer = server.ask("POST", path, &headers, &body.to_string());
        write!(found, "{path}\n  {}", answer.told(false)).unwrap();
        writeln!(found, "{}", answer.text).unwrap();
        assert_eq!(answer.header("x-outlast-replayed"), Some("true"), "{path}: {}", answer.told(true));
    }
    pin("replays", &found);
}

#[test]
fn a_store_of_an_earlier_build_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    recorded(dir);
    let provider = Provider::start(dir);
    let json = |words: &[&str]| -> Value {
        serde_json::from_str(&told(dir, &[words, &["--json"]].concat())).unwrap()
    };
    // A run that was stopped, with its command and its standard input.
    let resumed = outlast(dir, &["resume", "stopped-1"]).envs(provider.variables()).output().unwrap();
    assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
    assert_eq!(String::from_utf8_lossy(&resumed.stdout), "again: 2\n");
    assert_eq!(json(&["show", "stopped-1"])["status"], "completed");
    // A call of a dead supervisor is in doubt, and stays charged.
    let server = Server::start(dir, &provider, &[]);
    let torn = json(&["show", "torn-1"]);
    assert_eq!(torn["status"], "interrupted");
    // The next version and the next commit of a key.
    let put =
        server.ask("PUT", "/v1/state/default/agent-1/plan?expected_version=2", &[], "{\"n\": 3}").json();
    assert_eq!((&put["commit"], &put["versions"]), (&json!(6), &json!([3])), "{put}");
    let kept = server.ask("GET", "/v1/state/scratch/agent-1/n/history", &[], "").json();
    assert_eq!(kept["versions"].as_array().map(Vec::len), Some(3), "{kept}");
    // A question that was pending is decided; a run token of the store's key is good.
    told(dir, &["approve", "apr_9_13", "--by", "ann"]);
    assert_eq!(json(&["show", "river"])["status"], "running");
    // A step in doubt is resolved, a job's items are reset, a fork and a budget change.
    told(dir, &["resolve", "order-7", "charge", "--result", "{\"receipt\": 1}"]);
    told(dir, &["retry", "enrich-docs", "--failed"]);
    told(dir, &["fork", "research-42", "--from-snapshot", "before-the-draft", "--id", "research-44"]);
    told(dir, &["budget", "short-1", "--add-calls", "3"]);
    told(dir, &["budgets", "raise", "team-search", "--add-usd", "1"]);
    assert_eq!(json(&["verify"])["damage"], json!([]));
    assert_eq!(json(&["ls"])["runs"].as_array().unwrap().len(), 15);
}

/// The tables of a new store, and the numbers by which a file is known.
#[test]
fn a_new_store_has_the_tables_that_it_had() {
    let home = tempfile::tempdir().unwrap();
    told(home.path(), &["budgets", "set", "all", "--usd", "9", "--per", "day"]);
    let tables = |path: &Path| {
        let db = Connection::open(path).unwrap();
        let number = |name: &str| db.pragma_query_value(None, name, |r| r.get::<_, i64>(0)).unwrap();
        let mut text = format!("user_version {}\n", number("user_version"));
        writeln!(text, "application_id {:#x}", number("application_id")).unwrap();
        let sql = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, name";
        let mut statement = db.prepare(sql).unwrap();
        let rows = statement.query_map([], |r| r.get::<_, String>(0)).unwrap();
        for sql in rows {
            writeln!(text, "{}", sql.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")).unwrap();
        }
        text
    };
    pin("schema", &tables(&home.path().join("runs.db")));

    let columns = |path: &Path| -> Vec<(String, String, String, bool)> {
        let db = Connection::open(path).unwrap();
        let sql = "SELECT m.name, c.name, c.type, c.\"notnull\" FROM sqlite_master m, pragma_table_info(m.name) c \
                   UNION ALL SELECT name, sql, '', 0 FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL \
                   ORDER BY 1, 2";
        let mut statement = db.prepare(sql).unwrap();
        let rows = statement.query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?))).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    };
    let old = tempfile::tempdir().unwrap();
    std::fs::copy(directory().join("store.db"), old.path().join("runs.db")).unwrap();
    told(old.path(), &["ls"]);
    let brought = columns(&old.path().join("runs.db"));
    assert_eq!(
        brought,
        columns(&home.path().join("runs.db")),
        "the recorded store is brought to other tables"
    );
}
