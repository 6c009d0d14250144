//! Output of `--json`: members and their types, for a run that is made here.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use serde_json::Value;

use super::{
    pin,
    server::{Provider, outlast, told},
    shape::shape,
};

/// Asks the provider through the proxy with nothing but a shell: bash opens the socket.
pub const AGENT: &str = r#"
ask() {
    body="{\"model\": \"gpt-4o-mini\", \"max_tokens\": 9, \"messages\": [{\"role\": \"user\", \"content\": \"$1\"}]}"
    at=${OUTLAST_URL#http://}; at=${at%/}
    exec 3<>"/dev/tcp/${at%:*}/${at##*:}"
    printf 'POST /v1/chat/completions HTTP/1.1\r\nhost: %s\r\nconnection: close\r\nauthorization: Bearer %s\r\n' "$at" "$OUTLAST_TOKEN" >&3
    printf 'content-type: application/json\r\ncontent-length: %s\r\n\r\n%s' "${#body}" "$body" >&3
    # To its end: an answer that its client left halfway was not delivered.
    { head -n 1; cat >/dev/null; } <&3
    exec 3>&-
}
"#;

/// Every command that prints JSON, on a store in which runs were made.
const COMMANDS: &[&str] = &[
    "ls",
    "show killed",
    "show halted",
    "journal killed",
    "journal killed --divergence",
    "journal halted",
    "logs killed",
    "budget killed",
    "budget halted --add-calls 5",
    "budgets",
    "spend",
    "spend --by run,model,day,upstream,tag.team",
    "approvals --all",
    "jobs",
    "prices gpt-4o-mini --input 10 --output 5",
    "state keep",
    "state keep 5 --namespace n",
    "verify",
    "gc --older-than 1h --dry-run",
    "snapshot killed here",
    "fork killed --from-snapshot here --id forked",
    "budgets raise all --add-usd 1",
    "budgets remove all",
    "cancel halted --reason why",
    "ctx get --of killed",
    "ctx refs --of killed",
    "doctor",
];

#[test]
fn json_keeps_its_members_and_their_types() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    let provider = Provider::start(dir);
    told(dir, &["budgets", "set", "all", "--usd", "9", "--per", "day"]);
    let run = |flags: &[&str], script: &str| {
        let script = format!("{AGENT}{script}");
        let mut command = outlast(dir, &["run", "--json"]);
        command.args(flags).args(["--", "bash", "-c", &script]).envs(provider.variables());
        command.env("OPENAI_API_KEY", "sk-pin").output().unwrap()
    };
    let tagged = ["--run", "killed", "--name", "desk", "--tag", "team=search", "--kill-at", "call:2"];
    let done = run(&tagged, "ask one; ask two; outlast=1");
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    let done = run(&["--run", "halted", "--usd", "none", "--calls", "1"], "ask one; ask two");
    assert_eq!(done.status.code(), Some(75), "{}", String::from_utf8_lossy(&done.stderr));
    let mut found = String::new();
    for line in COMMANDS {
        let words: Vec<&str> = line.split(' ').chain(["--json"]).collect();
        let output = outlast(dir, &words).env("OPENAI_API_KEY", "sk-pin").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        writeln!(found, "outlast {line}: exit status {}", output.status.code().unwrap()).unwrap();
        let lines =
            serde_json::Deserializer::from_str(&text).into_iter::<Value>().collect::<Result<Vec<_>, _>>();
        match lines {
            Ok(values) if values.len() > 1 => {
                write!(found, "lines of\n{}", shape(&Value::Array(values))).unwrap()
            }
            Ok(values) => values.iter().for_each(|value| found += &shape(value)),
            Err(_) => writeln!(found, "  no JSON").unwrap(),
        }
        found += &errors(&output.stderr);
    }
    for line in [
        "show nobody",
        "runn",
        "resume nobody",
        "ls --store mysql://x",
        "attach killed",
        "logs killed --attempt 9",
    ] {
        let words: Vec<&str> = line.split(' ').chain(["--json"]).collect();
        let output = outlast(dir, &words).output().unwrap();
        writeln!(found, "outlast {line}: exit status {}", output.status.code().unwrap()).unwrap();
        found += &errors(&output.stderr);
    }
    // Whether the killed call was open at the attempt's end: the kill and the call's answer come in either order.
    let is_sure = |line: &&str| !line.ends_with(".open_at_end[]: int");
    let found: String = found.lines().filter(is_sure).map(|line| format!("{line}\n")).collect();
    pin("json", &found);
}

/// JSON on standard error.
fn errors(text: &[u8]) -> String {
    let Ok(value) = serde_json::from_slice::<Value>(text) else { return String::new() };
    format!("  on standard error, code {}:\n{}", value["error"]["code"], shape(&value))
}

/// The lines of a log in JSON: of each kind its fields.
#[test]
fn lines_of_the_log_keep_their_fields() {
    let home = tempfile::tempdir().unwrap();
    let provider = Provider::start(home.path());
    let server = super::server::Server::start(home.path(), &provider, &[]);
    drop(server);
    let mut command = outlast(home.path(), &["serve", "--listen", "127.0.0.1:0", "--log", "json"]);
    let log = home.path().join("json.log");
    let mut running = super::server::Running::start(command.envs(provider.variables()), log.clone());
    let at = running.tells("serving on http://");
    let body = r#"{"model": "gpt-4o-mini", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}"#;
    for attempt in ["1", "2"] {
        let headers =
            [("x-outlast-run", "r"), ("x-outlast-attempt", attempt), ("authorization", "Bearer sk-pin")];
        let answer = super::server::ask(&at, "POST", "/v1/chat/completions", &headers, body.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    let lines = super::server::until("a replay in the log", || {
        let text = fs::read_to_string(&log).unwrap();
        let lines: Vec<Value> = text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
        lines.iter().any(|l| l.to_string().contains("\"replayed\"")).then_some(lines)
    });
    let mut kinds: BTreeMap<String, Value> = BTreeMap::new();
    for line in lines {
        let message =
            line["message"].as_str().or(line["fields"]["message"].as_str()).unwrap_or_default().to_owned();
        if ["call", "replayed"].contains(&message.as_str()) {
            kinds.entry(message).or_insert(line);
        }
    }
    let found: String = kinds.iter().map(|(kind, line)| format!("{kind}\n{}", shape(line))).collect();
    pin("log", &found);
}
