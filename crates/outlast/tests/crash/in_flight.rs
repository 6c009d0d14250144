//! The note to a resumed agent about tools that a kill cut off, with a program that stands for Claude Code: the real ones
//! are in `cli_agents`.

use std::{fs, os::unix::fs::PermissionsExt as _};

use crate::bed::{Bed, OUTLAST, each, text};

/// In its first life it asks for an answer that names a tool, begins the tool before that answer has ended, and dies. The
/// file `kind` says which trace there is: the answer under way (`stream`), or the hook's entry (`hook`), or also a request with the
/// tool's result, which the session's file has not (`lost`) or has (`kept`); or the call in that file alone (`file`).
const CLAUDE: &str = r#"#!/usr/bin/env python3
import http.client, json, os, signal, subprocess, sys, urllib.parse
kind = open("../kind").read()
session = sys.argv[sys.argv.index("--session-id" if "--session-id" in sys.argv else "--resume") + 1]
if os.environ["OUTLAST_ATTEMPT"] != "1":
    note = open(os.environ["OUTLAST_AGENT_NOTE"]).read() if "OUTLAST_AGENT_NOTE" in os.environ else sys.argv[-1]
    open("../note", "w").write(note)
    sys.exit(0)
base = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
def ask(messages, script):
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    body = {"model": "claude-sonnet-4-5", "max_tokens": 50, "stream": True, "metadata": {"user_id": session},
            "system": script, "messages": messages, "tools": [{"name": "Bash", "input_schema": {"type": "object"}}]}
    headers = {"Authorization": "Bearer " + os.environ["ANTHROPIC_AUTH_TOKEN"], "anthropic-version": "2023-06-01", "Content-Type": "application/json"}
    connection.request("POST", base.path + "/v1/messages", json.dumps(body), headers)
    return connection.getresponse()
def hook(name, id):
    event = {"hook_event_name": name, "tool_name": "Bash", "tool_use_id": id, "session_id": session,
             "tool_input": {"command": "make deploy"}}
    subprocess.run([OUTLAST, "hook", "claude"], input=json.dumps(event).encode(), check=True)
said = {"role": "user", "content": "go"}
if kind == "stream":
    answer = ask([said], 'mock: tool Bash {"command": "make deploy"}\nmock: linger 3s')
    while b'"content_block_stop"' not in answer.readline(): pass
else:
    does = 'mock: tool Bash {"command": "make deploy"}'
    ask([said], does if kind == "done" else "mock: reply hello").read()
    if kind != "file":
        hook("PreToolUse", "t1")
    if kind != "hook":
        use = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "make deploy"}}]}
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "denied"}]}
        if kind != "file":
            ask([said, use, result], "mock: reply so be it").read()
        place = os.environ["HOME"] + "/.claude/projects/-work/"
        os.makedirs(place)
        with open(place + session + ".jsonl", "w") as file:
            for message in [said, use] + [result] * (kind in ("kept", "done")):
                file.write(json.dumps({"type": message["role"], "message": message}) + "\n")
open("half", "w").close()
os.kill(os.getpid(), signal.SIGKILL)
"#;

fn claude(bed: &Bed, kind: &str) -> std::path::PathBuf {
    let program = bed.write("claude", &CLAUDE.replace("OUTLAST,", &format!("{OUTLAST:?},")));
    bed.write("kind", kind);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn tool_that_was_begun_before_its_answer_had_ended_is_told() {
    // Bug: the note said "No tool call was in flight" while one was, or there was no note. Consequence: the model did the
    // effect again. Cause: only answers that had ended were read, and not the hook's own entries, nor the session's file.
    each(
        vec![
            ("stream", true, "unknown;"),
            ("hook", true, "ended, code unknown;"),
            ("lost", true, "finished; you had read its result, which this conversation has lost: `denied`;"),
            ("kept", false, ""),
            ("file", true, "unknown;"),
        ],
        |case| {
            let (kind, told, outcome) = case;
            let bed = Bed::new();
            let program = claude(&bed, kind);
            let done = bed.does(&["run", "--run", "r", "--", text(&program), "-p", "go"]).code(0);
            let note = bed.text("note");
            let wanted = "Before the crash you had started: Bash `make deploy`, at ";
            assert_eq!(note.contains(wanted), told, "{kind}: {note:?} {}", done.text);
            assert!(!told || note.contains(&format!("outcome: {outcome} check")), "{kind}: {note}");
            let tools: Vec<_> = bed.journal("r").into_iter().filter(|e| e["kind"] == "tool").collect();
            assert_eq!(tools.len(), 1, "{kind}: {tools:?}");
            assert_ne!(tools[0]["state"], "open", "{kind}: the outcome is known");
        },
    );
}

/// Bug: a session that knew a tool's result was resumed with files of before the tool, and its model believed that they were
/// there. Cause: only the person was told.
#[test]
fn files_that_were_brought_back_are_told_to_the_model() {
    let bed = Bed::new();
    let program = claude(&bed, "done");
    bed.does(&["run", "--run", "r", "--files", "--restarts", "0", "--", text(&program), "-p", "go"]).code(75);
    bed.does(&["resume", "r", "--add-restarts", "1", "--files", "1"]).code(0).tells(&["1 path restored"]);
    let note = bed.text("note");
    let wanted = "(killed by SIGKILL; then files were brought back as they were before you called Bash `make deploy`) and was";
    assert!(note.contains(wanted), "{note}");
}
