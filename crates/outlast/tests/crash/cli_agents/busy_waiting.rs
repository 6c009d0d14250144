//! The real programs under `--no-progress hold`: one that waits is held until what it waits for has moved, and one that
//! builds, tests and tries again never is.

use std::fs;

use serde_json::{Value, json};

use super::{Command, Path, bed, cli, run, text};
use crate::bed::{Bed, until};

/// A model that calls a tool with each of these inputs in turn.
fn model(tool: &str, inputs: &[Value]) -> String {
    inputs.iter().map(|input| format!("mock: tool {tool} {input}\n")).collect()
}

fn claude(bed: &Bed, program: &Path, script: &str) -> Command {
    let flags = ["--no-progress", "hold", "--", text(program), "-p", "--model", "claude-sonnet-4-5"];
    let mut command = run(bed, &flags);
    command.args(["--append-system-prompt", script, "--allowedTools", "Bash,Edit,Write", "--", "do it"]);
    command
}

fn codex(bed: &Bed, program: &Path, script: &str) -> Command {
    let flags =
        ["--no-progress", "hold", "--", text(program), "exec", "--skip-git-repo-check", "-m", "gpt-5"];
    let mut command = run(bed, &flags);
    command.args(["-s", "danger-full-access", "-c"]);
    command.arg(format!("developer_instructions={}", Value::from(script))).arg("do it");
    command
}

#[test]
fn codex_that_waits_for_its_own_process_is_held_until_that_has_ended() {
    let (program, bed) = (cli("codex"), bed());
    let begin = format!("mock: tool exec_command {}\n", json!({"cmd": "cat ../gate", "yield_time_ms": 250}));
    // The test does not know the number of the session that the agent gives its process. Any number gets the same
    // answer each time.
    let look = json!({"session_id": 1, "chars": "", "yield_time_ms": 250});
    let script = format!("{begin}{}", model("write_stdin", &vec![look; 6]));
    let run = bed.start(codex(&bed, &program, &script));
    until("its call is held", || run.output().contains("the agent's next call is held").then_some(()));
    // The sixth look is the fifth that brings nothing new.
    assert_eq!(bed.paid(), 7);
    fs::write(bed.path("gate"), "done").unwrap();
    let done = run.done().code(0);
    assert_eq!((bed.paid(), done.text.matches("is held").count()), (8, 1), "{}", done.text);
}

#[test]
fn claude_code_that_looks_at_a_file_again_and_again_is_held_for_a_part_of_its_waiting() {
    let (program, bed) = (cli("claude"), bed());
    bed.write("log", "compiling");
    let looks = vec![json!({"command": "sleep 1; cat ../log"}); 10];
    let run = bed.start(claude(&bed, &program, &model("Bash", &looks)));
    let done = run.done().code(0);
    done.tells(&["the agent waits busily: 5 calls in a row", "is held, for 1"]);
    assert!(bed.show("r")["money"]["busy_waiting_calls"].as_i64().unwrap() >= 5);
}

/// A night's work: a build that fails the same each time, a test that is tried again, a deployment that is refused.
fn work(key: &str) -> Vec<Value> {
    let commands = [
        "sh ../build",
        "sh ../build",
        "sh ../build; sleep 0.1",
        "sh ../test",
        "sh ../test",
        "for i in 1 2 3; do sh ../test && break; sleep 0.1; done",
        "for i in 1 2 3; do sh ../test && break; sleep 0.1; done",
        "git status; sh ../deploy",
        "git status; sh ../deploy",
        "sleep 0.1; sh ../deploy",
        "sleep 0.1; sh ../deploy",
        "sleep 0.1; sh ../deploy",
    ];
    commands.iter().chain(&commands).map(|command| json!({ key: command })).collect()
}

fn works(bed: &Bed, command: Command) {
    bed.write("build", "echo error: cannot find value x; false\n");
    bed.write("test", "echo 'test result: FAILED. 3 passed; 1 failed'; false\n");
    bed.write("deploy", "echo 503 try again later; false\n");
    let done = bed.run(command).code(0);
    assert_eq!(bed.paid(), 25, "{}", done.text);
    assert!(!done.text.contains("waits busily") && !done.text.contains("is held"), "{}", done.text);
    assert_eq!(bed.show("r")["money"]["busy_waiting_calls"], 0);
}

#[test]
fn claude_code_that_builds_and_tests_and_tries_again_is_never_held() {
    let (program, bed) = (cli("claude"), bed());
    let command = claude(&bed, &program, &model("Bash", &work("command")));
    works(&bed, command);
}

#[test]
fn codex_that_builds_and_tests_and_tries_again_is_never_held() {
    let (program, bed) = (cli("codex"), bed());
    let command = codex(&bed, &program, &model("exec_command", &work("cmd")));
    works(&bed, command);
}
