//! MCP servers that the agents start by their own settings: recorded, so that a tool that a kill cut off is not done twice
//! behind anybody's back. The person's files stay as they are.

use super::*;

/// Server of the standard library: its tool appends to a log, and waits for a file where it is told to.
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/python/mcp_server.py");

/// A model that makes the same call again after it was told of the first one: the worst that it could do.
fn model(bed: &Bed, tool: &str, wait: bool, times: usize) -> String {
    let mut arguments = json!({"text": "letter"});
    if wait {
        arguments["wait"] = text(&bed.path("answered")).into();
    }
    format!("mock: tool {tool} {arguments}\n").repeat(times)
}

/// Lines of the log that an effect of the tool left.
fn effects(bed: &Bed) -> usize {
    bed.text("effects").lines().filter(|line| line.starts_with("append letter ")).count()
}

/// States of the recorded tool calls.
fn recorded(bed: &Bed) -> Vec<String> {
    let is_recorded = |e: &&Value| e["kind"] == "tool" && e["key"] == "mail/append";
    bed.journal("r").iter().filter(is_recorded).map(|e| e["state"].as_str().unwrap().to_owned()).collect()
}

/// Kills the agent while its tool has had its effect and has not answered, and lets it be started again.
fn killed_in_the_tool(bed: &Bed, run: Proc) {
    until("the effect", || (effects(bed) == 1).then_some(()));
    assert!(kill(parent_of_recorder(bed).expect("a recorder of the server"), 9));
    // A second call, if one were made, would be answered at once.
    until("the next life", || (bed.show("r")["attempts"].as_array().unwrap().len() > 1).then_some(()));
    bed.write("answered", "");
    run.done().code(0);
}

/// The server's recorder, if it is up. Codex gives it none of the run's variables.
fn recorder(bed: &Bed) -> Option<u32> {
    let effects = bed.path("effects");
    let is_recorder = |words: &str| words.contains("\0mcp\0--name\0mail\0") && words.contains(text(&effects));
    let pids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.into_iter().find(|pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        is_recorder(&String::from_utf8_lossy(&words))
    })
}

/// The agent's pid: the parent of the server's recorder.
fn parent_of_recorder(bed: &Bed) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", recorder(bed)?)).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The server's pid: the child of its recorder.
fn child_of_recorder(bed: &Bed) -> Option<u32> {
    let recorder = recorder(bed)?;
    let children = fs::read_to_string(format!("/proc/{recorder}/task/{recorder}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

fn server(bed: &Bed) -> Value {
    json!({"command": "python3", "args": [SERVER, text(&bed.path("effects"))]})
}

fn claude_bed(servers: &Value) -> Bed {
    let bed = Bed::new();
    bed.write(".claude.json", &json!({"mcpServers": servers}).to_string());
    bed
}

fn claude(bed: &Bed, script: &str, flags: &[&str]) -> Command {
    let program = cli("claude");
    let mut command = run(bed, flags);
    command.args([
        "--",
        text(&program),
        "-p",
        "--model",
        "claude-sonnet-4-5",
        "--append-system-prompt",
        script,
    ]);
    command.args(["--allowedTools", "mcp__mail__append", "--", "do it once"]);
    command
}

fn codex(bed: &Bed, script: &str) -> Command {
    let program = cli("codex");
    let mut command = run(bed, &["--", text(&program), "exec", "--skip-git-repo-check", "-m", "gpt-5"]);
    command.args(["--dangerously-bypass-approvals-and-sandbox", "-c"]);
    command.arg(format!("developer_instructions={}", Value::from(script))).arg("do it once");
    command
}

fn codex_bed() -> Bed {
    let bed = Bed::new();
    fs::create_dir_all(bed.path(".codex")).unwrap();
    let server = server(&bed);
    let config = format!("[mcp_servers.mail]\ncommand = {}\nargs = {}\n", server["command"], server["args"]);
    bed.write(".codex/config.toml", &config);
    bed
}

/// Checks that the call is in doubt, that its repetition was told so, and that its effect is there once.
fn is_never_silently_repeated(bed: &Bed) {
    assert_eq!(effects(bed), 1, "{}", bed.text("effects"));
    assert_eq!(recorded(bed), ["unknown"]);
    let asked: Vec<String> = bed.text("paid.log").lines().map(str::to_owned).collect();
    assert!(bed.does(&["journal", "r"]).text.contains("mail/append"), "{asked:?}");
    assert_eq!(bed.show("r")["mcp"]["recorded"], json!(["mail"]));
}

#[test]
fn claude_code_killed_in_a_tool_of_its_server_does_it_once() {
    let bed = claude_bed(&json!({}));
    let servers = json!({"mail": server(&bed), "issues": {"type": "http", "url": "http://127.0.0.1:9/mcp"}});
    let before = json!({"mcpServers": servers}).to_string();
    bed.write(".claude.json", &before);
    let script = model(&bed, "mcp__mail__append", true, 1);
    let run = bed.start(claude(&bed, &script, &[]));
    killed_in_the_tool(&bed, run);
    is_never_silently_repeated(&bed);
    bed.does(&["show", "r"]).code(0).tells(&["MCP servers: mail recorded; not recorded issues (at a URL)"]);
    let kept: Value = serde_json::from_str(&bed.text(".claude.json")).unwrap();
    assert_eq!(kept["mcpServers"], servers, "the person's file names the server as before");
}

#[test]
fn codex_killed_in_a_tool_of_its_server_does_it_once() {
    let bed = codex_bed();
    let before = bed.text(".codex/config.toml");
    // The agent's history has a result of the call that was cut off: the script needs one more turn.
    let script = model(&bed, "mcp__mail/append", true, 2);
    let run = bed.start(codex(&bed, &script));
    killed_in_the_tool(&bed, run);
    is_never_silently_repeated(&bed);
    assert_eq!(bed.text(".codex/config.toml"), before);
}

#[test]
fn claude_code_starts_no_server_that_the_person_has_not_approved_and_none_is_recorded_when_it_is_off() {
    let bed = claude_bed(&json!({}));
    let servers = json!({"mcpServers": {"mail": server(&bed)}}).to_string();
    bed.write("work/.mcp.json", &servers);
    let script = model(&bed, "mcp__mail__append", false, 1);
    // With -p nobody is asked, and Claude Code starts it itself.
    bed.run(claude(&bed, &script, &[])).code(0);
    assert_eq!((effects(&bed), recorded(&bed).len()), (1, 0));
    let left = &bed.show("r")["mcp"]["not_recorded"][0];
    assert_eq!((&left["name"], &left["why"]), (&json!("mail"), &json!("not approved in your own settings")));

    let bed = claude_bed(&json!({}));
    bed.write(".claude.json", &json!({"mcpServers": {"mail": server(&bed)}}).to_string());
    bed.run(claude(&bed, &model(&bed, "mcp__mail__append", false, 1), &["--mcp", "off"])).code(0);
    assert_eq!((effects(&bed), recorded(&bed).len()), (1, 0));
    assert_eq!(bed.show("r")["mcp"], Value::Null);
}

#[test]
fn a_server_that_the_person_approved_is_recorded() {
    let bed = claude_bed(&json!({}));
    bed.write("work/.mcp.json", &json!({"mcpServers": {"mail": server(&bed)}}).to_string());
    fs::create_dir_all(bed.path(".claude")).unwrap();
    bed.write(".claude/settings.json", r#"{"enabledMcpjsonServers": ["mail"]}"#);
    let script = model(&bed, "mcp__mail__append", false, 1);
    bed.run(claude(&bed, &script, &[])).code(0);
    assert_eq!((effects(&bed), recorded(&bed)), (1, vec!["done".to_owned()]));
}

/// Words that tell a model of a call in doubt: the recorder's, the note's, and the agent's own where the recorder is gone.
const TOLD: [&str; 4] =
    ["outcome unknown: ", "outcome: unknown; check before", "Connection closed", "Transport closed"];

/// Returns the text of the last request, which has the whole conversation.
fn last_request(bed: &Bed) -> String {
    let journal = bed.journal("r");
    let last = journal.iter().rfind(|e| e["kind"] == "call").unwrap();
    bed.json(&["journal", "r", &last["seq"].to_string()])["request"].to_string()
}

/// Kills one of the three processes around a call, once so many effects are there, and lets the run end. Each effect has
/// a key of its own: none was made twice by itself; a call was made anew only by a model that was told of the first.
fn whoever_is_killed(seed: u64, bed: &Bed, run: Command) {
    let victims = [parent_of_recorder, recorder, child_of_recorder];
    let (victim, at) = (victims[(seed % 3) as usize], 1 + (seed / 3) as usize % 3);
    let run = bed.start(run);
    let lines = || bed.text("effects").lines().filter(|line| line.starts_with("append ")).count();
    until("the effects", || (lines() >= at).then_some(()));
    if let Some(pid) = victim(bed) {
        kill(pid, 9);
    }
    run.done();
    let mut keys = std::collections::BTreeMap::new();
    for line in bed.text("effects").lines().filter(|line| line.starts_with("append ")) {
        let words: Vec<&str> = line.split(' ').collect();
        *keys.entry((words[1].to_owned(), words[2].to_owned())).or_insert(0) += 1;
    }
    let doubted = recorded(bed).iter().filter(|state| *state == "unknown").count();
    let made = keys.len();
    assert!(keys.values().all(|count| *count == 1), "seed {seed}: {keys:?}");
    let texts: std::collections::BTreeSet<&String> = keys.keys().map(|(text, _)| text).collect();
    assert!(made - texts.len() <= doubted, "seed {seed}: {made} effects, {doubted} told: {keys:?}");
    // A call whose recorder died, and that nobody made again, stays open.
    let in_doubt = recorded(bed).iter().filter(|state| *state != "done").count();
    if in_doubt > 0 {
        bed.does(&["show", "r"]).code(0).tells(&["in doubt: mail/append"]);
    }
    let request = last_request(bed);
    let told: usize = TOLD.iter().map(|words| request.matches(words).count()).sum();
    assert!(in_doubt <= told, "seed {seed}: {in_doubt} in doubt, {told} told: {request}");
    println!("seed {seed}: {made} effects of {} calls, {in_doubt} in doubt and told", texts.len());
}

/// Three letters, one after the other. With an even seed each tool goes on behind its effect, so that the kill comes in the
/// middle of it; else it comes about the answer.
fn letters(seed: u64, tool: &str) -> String {
    let takes = if seed.is_multiple_of(2) { 0.5 } else { 0.0 };
    let letter = |to| format!("mock: tool {tool} {}\n", json!({"text": to, "takes": takes}));
    ["ann", "bob", "cy"].map(letter).concat()
}

/// Returns the number of times that each agent is killed: `OUTLAST_TEST_KILLS`.
fn kills() -> u64 {
    std::env::var("OUTLAST_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(2)
}

#[test]
fn whoever_is_killed_claude_codes_calls_are_done_once_or_told() {
    for seed in 0..kills() {
        let bed = claude_bed(&json!({}));
        bed.write(".claude.json", &json!({"mcpServers": {"mail": server(&bed)}}).to_string());
        let run = claude(&bed, &letters(seed, "mcp__mail__append"), &[]);
        whoever_is_killed(seed, &bed, run);
    }
}

#[test]
fn whoever_is_killed_codexs_calls_are_done_once_or_told() {
    for seed in 0..kills() {
        let bed = codex_bed();
        let run = codex(&bed, &letters(seed, "mcp__mail/append"));
        whoever_is_killed(seed, &bed, run);
    }
}
