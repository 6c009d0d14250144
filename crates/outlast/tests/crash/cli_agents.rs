//! Real CLI agents, killed while a tool of theirs runs: they go on in their own session, and their model is told
//! what became of the tool. `OUTLAST_TEST_CLIS` names the directory with their programs (`scripts/clis.sh`).

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use crate::bed::{Bed, Proc, kill, marked, text, until};

mod busy_waiting;
mod further;
mod intercept;
mod kept_sessions;
mod plan_windows;
mod resume_tax;
mod servers;
mod streaming;
mod whole_night;

/// The program. These stories are part of `make test-clients`, which installs it.
fn cli(name: &str) -> PathBuf {
    let directory = std::env::var_os("OUTLAST_TEST_CLIS").filter(|d| !d.is_empty());
    let program =
        Path::new(&directory.expect("OUTLAST_TEST_CLIS is not set: run `make test-clients`")).join(name);
    assert!(program.exists(), "{} is not installed: run `make test-clients`", program.display());
    program
}

/// A model that does a thing once: told to check before repeating it, it checks.
fn model(tool: &str, key: &str, command: &str, told: usize) -> String {
    let call = |command: &str| format!("tool {tool} {}", json!({key: command}));
    let check = format!("mock: {}\n", call("[ -s effects ] || echo effect >> effects"));
    format!("mock: unless \"check before repeating\" {}\n{}", call(command), check.repeat(told))
}

/// When the agent is killed: the tool waits at the gate before its effect, or behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Before,
    After,
}

impl When {
    /// Says who runs it, and waits. A process of its own does both: a shell that Codex started is ended with Codex, and that
    /// may be as soon as it has said so.
    fn command(self) -> &'static str {
        match self {
            When::Before => "(echo $PPID > ../cli; cat ../gate; true); echo effect >> effects",
            When::After => "echo effect >> effects; (echo $PPID > ../cli; cat ../gate; true)",
        }
    }
}

fn bed() -> Bed {
    let bed = Bed::new();
    bed.gate("gate");
    bed
}

/// `outlast run FLAGS -- AGENT …`, with nothing of the machine's own settings, and no other network.
fn run(bed: &Bed, flags: &[&str]) -> Command {
    let mut command = bed.outlast(&["run", "--run", "r", "--usd", "20"]);
    command.args(flags);
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
    command
}

fn claude(bed: &Bed, program: &Path, script: &str, more: &[&str]) -> Command {
    let mut command = run(bed, &["--", text(program), "-p", "--model", "claude-sonnet-4-5"]);
    command.args(["--append-system-prompt", script]).args(more).args([
        "--allowedTools",
        "Bash",
        "--",
        "do it once",
    ]);
    command
}

/// The pid that a tool wrote down.
fn agent_of(bed: &Bed) -> u32 {
    until("the tool runs", || bed.text("cli").trim().parse().ok())
}

/// As `agent_of`, for a Claude Code that has kept its session: it does so a little later than it begins its tool, and one
/// that is killed before is told in a new session.
fn claude_of(bed: &Bed) -> u32 {
    let pid = agent_of(bed);
    until("its session is kept", || {
        let mut found = Vec::new();
        files_below(&bed.path(".claude/projects"), &mut found);
        let kept = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains("\"tool_use\""));
        found.iter().any(kept).then_some(())
    });
    pid
}

/// Returns the text of the last user message in paid request number `at`.
fn last_asked(bed: &Bed, at: usize) -> String {
    let line = bed.text("paid.log").lines().nth(at).map(str::to_owned).unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    line["asked"].as_str().unwrap().to_owned()
}

fn files_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => files_below(&entry.path(), found),
            false => found.push(entry.path()),
        }
    }
}

/// The sessions that were begun.
fn sessions(bed: &Bed, directory: &str) -> usize {
    let mut found = Vec::new();
    files_below(&bed.path(directory), &mut found);
    found.iter().filter(|path| path.extension().is_some_and(|e| e == "jsonl")).count()
}

/// Checks that the agent went on once, in one session, and was told `outcome`; that the effect is there once; and that
/// every call was counted.
fn went_on(bed: &Bed, run: Proc, at: usize, outcome: &str, transcripts: &str) {
    run.done().code(0).tells(&["goes on in its session", "told of 1 tool call that was in flight"]);
    finished(bed, at, outcome, transcripts);
}

fn finished(bed: &Bed, at: usize, outcome: &str, transcripts: &str) {
    let asked = last_asked(bed, at);
    assert!(asked.contains("Before the crash you had started: "), "{asked}");
    assert!(asked.contains(&format!("outcome: {outcome}")), "{asked}");
    assert_eq!(bed.text("work/effects"), "effect\n");
    assert_eq!(sessions(bed, transcripts), 1);
    assert_eq!(bed.spent("r", "calls"), bed.paid() as i64);
    assert_eq!(marked("OUTLAST_RUN_ID=r").iter().filter(|pid| in_bed(bed, **pid)).count(), 0);
    assert_eq!(bed.status("r"), "completed");
}

/// Other tests' runs have the same id.
fn in_bed(bed: &Bed, pid: u32) -> bool {
    let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let store = format!("OUTLAST_STORE={}", bed.store().display());
    environ.split(|b| *b == 0).any(|entry| entry == store.as_bytes())
}

fn claude_is_killed(when: When) {
    let program = cli("claude");
    let bed = bed();
    let script = model("Bash", "command", when.command(), 1);
    let run = bed.start(claude(&bed, &program, &script, &[]));
    assert!(kill(claude_of(&bed), 9));
    went_on(&bed, run, 1, "ended by Outlast", ".claude/projects");
}

#[test]
fn claude_code_killed_before_its_tools_effect_is_told_so() {
    claude_is_killed(When::Before);
}

#[test]
fn claude_code_killed_after_its_tools_effect_is_told_so() {
    claude_is_killed(When::After);
}

fn codex_is_killed(when: When) {
    let program = cli("codex");
    let bed = bed();
    // The agent's history has a result of the call that was cut off: the script needs one more turn.
    let script = model("exec_command", "cmd", when.command(), 2);
    let mut command = run(&bed, &["--", text(&program), "exec", "--skip-git-repo-check", "-m", "gpt-5"]);
    command.args(["-s", "danger-full-access", "-c"]);
    command.arg(format!("developer_instructions={}", Value::from(script))).arg("do it once");
    let run = bed.start(command);
    assert!(kill(agent_of(&bed), 9));
    went_on(&bed, run, 1, "ended by Outlast", ".codex/sessions");
}

#[test]
fn codex_killed_before_its_tools_effect_is_told_so() {
    codex_is_killed(When::Before);
}

#[test]
fn codex_killed_after_its_tools_effect_is_told_so() {
    codex_is_killed(When::After);
}

/// The person's own hook keeps Claude Code from sending the result: their settings are merged with ours.
#[test]
fn claude_code_killed_behind_its_tools_end_is_told_the_exit_code() {
    let program = cli("claude");
    let bed = bed();
    let hook = json!([{"hooks": [{"type": "command", "command": "[ -e ../cli ] || { echo $PPID > ../cli; cat ../gate; }"}]}]);
    let settings = bed.write("theirs.json", &json!({"hooks": {"PostToolUse": hook}}).to_string());
    let script = model("Bash", "command", "echo effect >> effects; echo $PPID > ../agent", 1);
    let run = bed.start(claude(&bed, &program, &script, &["--settings", text(&settings)]));
    claude_of(&bed);
    until("its end is recorded", || {
        bed.journal("r").iter().any(|e| e["kind"] == "tool" && e["state"] == "done").then_some(())
    });
    assert!(kill(bed.text("agent").trim().parse().unwrap(), 9));
    run.done().code(0).tells(&["told of 1 tool call that was in flight"]);
    finished(&bed, 1, "finished with code 0", ".claude/projects");
}

#[test]
fn claude_code_killed_with_its_supervisor_is_told_by_the_next_one() {
    let program = cli("claude");
    let bed = bed();
    let script = model("Bash", "command", When::After.command(), 1);
    let mut run = bed.start(claude(&bed, &program, &script, &[]));
    claude_of(&bed);
    run.kill();
    let mut resume = bed.outlast(&["resume", "r"]);
    resume.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
    let resume = bed.start(resume);
    went_on(&bed, resume, 1, "ended by Outlast", ".claude/projects");
}

/// Whether a model was told that its tool was ended; it asks for more than the conversation, say a title.
fn is_told(bed: &Bed) -> bool {
    (0..bed.paid()).any(|at| last_asked(bed, at).contains("outcome: ended by Outlast"))
}

/// On a terminal of its own, where a person talks to it: killed while its tool runs, it is back in its session, and its
/// model is told once the person says something.
#[test]
fn interactive_claude_code_that_is_killed_is_back_in_its_session_and_told() {
    let program = cli("claude");
    let bed = bed();
    // A person who has answered its questions before.
    let directory = bed.path("work");
    let trusted = json!({text(&directory): {"hasTrustDialogAccepted": true}});
    bed.write(".claude.json", &json!({"hasCompletedOnboarding": true, "projects": trusted}).to_string());
    let script = model("Bash", "command", When::After.command(), 1);
    let mut command = run(&bed, &["--", text(&program), "--model", "claude-sonnet-4-5"]);
    command.args(["--append-system-prompt", &script, "--allowedTools", "Bash", "--", "do it once"]);
    command.env("TERM", "xterm-256color");
    let mut desk = crate::terminals::Desk::start(command);
    assert!(kill(claude_of(&bed), 9));
    desk.until_shown("goes on in its session");
    // Keys that are typed before it reads them are lost: it says when it does, by its prompt.
    until("it listens, and asks its model", || {
        desk.types("go on\r");
        let began = std::time::Instant::now();
        while !is_told(&bed) && began.elapsed().as_secs() < 3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        is_told(&bed).then_some(())
    });
    assert_eq!(bed.text("work/effects"), "effect\n");
    assert_eq!(sessions(&bed, ".claude/projects"), 1);
    bed.does(&["stop", "r"]).code(0);
    desk.ends(130, &["interrupted"]);
}

/// Killed before its session was on disk, the answer that asks for the tool is recorded: a new session is told.
#[test]
fn claude_code_that_had_kept_no_session_is_told_in_a_new_one() {
    // Bug: about once in thirty the killed agent's tool ran a second time. Consequence: its effect came twice. Cause: an
    // agent that dies before it has kept its session begins anew, and was given the recorded answer, and no note.
    let program = cli("claude");
    let bed = bed();
    let script = model("Bash", "command", When::After.command(), 1);
    // Without the requests no copy of its session is kept either.
    let mut command = run(&bed, &["--record", "answers", "--", text(&program), "-p"]);
    command.args(["--model", "claude-sonnet-4-5", "--append-system-prompt", &script]);
    command.args(["--allowedTools", "Bash", "--", "do it once"]);
    let mut run = bed.start(command);
    claude_of(&bed);
    run.kill();
    fs::remove_dir_all(bed.path(".claude/projects")).unwrap();
    let mut resume = bed.outlast(&["resume", "r"]);
    resume.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
    bed.start(resume)
        .done()
        .code(0)
        .tells(&["had kept no session", "told of 1 tool call that was in flight"]);
    finished(&bed, 1, "ended by Outlast", ".claude/projects");
}

/// A script's first agent has finished, its second is killed: the restarted script begins the first anew, whose
/// answer is replayed, and goes on with the second.
#[test]
fn an_agent_that_a_script_starts_goes_on_in_its_own_session() {
    let program = cli("claude");
    let bed = bed();
    let agent = format!(
        "{} agent -- {} -p --model claude-sonnet-4-5 --allowedTools Bash --append-system-prompt",
        crate::bed::OUTLAST,
        text(&program)
    );
    let script = bed.write("two", &model("Bash", "command", When::After.command(), 1));
    let loops = format!(
        "set -e; {agent} 'mock: reply one' -- first; {agent} \"$(cat {})\" -- second; echo all done",
        script.display()
    );
    let mut command = run(&bed, &["--", "sh", "-c"]);
    command.arg(loops);
    let run = bed.start(command);
    claude_of(&bed);
    let supervised: u32 = until("the script is found", || {
        marked("OUTLAST_RUN_ID=r").into_iter().find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            in_bed(&bed, *pid) && line.starts_with(b"sh\0-c\0")
        })
    });
    assert!(kill(supervised, 9));
    run.done().code(0).tells(&["goes on in its session", "told of 1 tool call", "all done"]);
    let asked = last_asked(&bed, 2);
    assert!(asked.contains("outcome: ended by Outlast"), "{asked}");
    assert_eq!(bed.text("work/effects"), "effect\n");
    assert_eq!(sessions(&bed, ".claude/projects"), 3, "the first began anew");
    assert_eq!(bed.paid(), 4, "the first one's answer was replayed");
}

#[test]
fn an_agent_that_asks_the_proxy_for_nothing_is_told_of() {
    let bed = Bed::new();
    let done = bed.does(&["run", "--agent", "claude", "--", "true"]);
    done.code(0).tells(&["NOTHING METERED: claude"]);
    let done = bed.does(&["run", "--agent", "none", "--", "sh", "-c", "true"]).code(0);
    done.tells(&["NOTHING METERED: sh"]);
    // Nobody expects a call of what is no agent.
    let done = bed.does(&["run", "--new", "--agent", "none", "--name", "plain", "--", "true"]).code(0);
    assert!(!done.text.contains("NOTHING METERED"), "{}", done.text);
    let told = bed.does(&["show", "plain"]).code(0);
    assert!(!told.text.contains("NOTHING METERED"), "{}", told.text);
    bed.does(&["run", "--agent", "hal", "--", "true"]).code(2).tells(&["no such adapter", "claude, codex"]);
}

#[test]
fn a_tool_call_that_cannot_be_recorded_is_not_made() {
    let bed = Bed::new();
    let event = json!({
        "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_use_id": "t1",
        "tool_input": {"command": "make deploy"},
    });
    let hook = format!("printf '%s' '{event}' | {} hook claude; echo $?", crate::bed::OUTLAST);
    let mut command = bed.outlast(&["run", "--run", "r", "--", "sh", "-c"]);
    command.arg(format!("env > ../env; {hook}"));
    bed.run(command).code(0).tells(&["\n0\n"]);
    assert_eq!(bed.journal("r")[0]["kind"], "tool");
    // The attempt is over: a process of it that lived on would begin something that nobody knows of.
    let mut stale = Command::new("sh");
    stale.args(["-c", &hook]).env_clear();
    let env = bed.text("env");
    stale.envs(env.lines().filter_map(|line| line.split_once('=')));
    bed.run(stale).code(0).tells(&["this call was not made", "2\n"]);
}

/// A run in a run spends of its parent's budget, by its parent's proxy, once.
#[test]
fn a_run_in_a_run_is_its_child_and_is_paid_once() {
    let bed = Bed::new();
    let calls = crate::agents::Calls::new(2).words(&bed);
    let quoted: Vec<String> = calls.iter().map(|word| format!("'{word}'")).collect();
    let child = format!("{} run --run child -- {}", crate::bed::OUTLAST, quoted.join(" "));
    let done = bed.run(crate::agents::shell(&bed, &["--run", "r", "--calls", "5"], &child)).code(0);
    assert!(done.text.contains("and its parent's"), "{}", done.text);
    assert_eq!((bed.paid(), bed.spent("child", "calls"), bed.spent("r", "calls")), (2, 2, 2));
    assert_eq!(bed.show("child")["parent"], "r");
}

/// The child's supervisor is killed; the restarted parent types the same line again: it is the same child.
#[test]
fn a_child_run_that_died_is_resumed_by_its_restarted_parent() {
    let bed = Bed::new();
    let kill = crate::agents::Kill { who: "parent", at: 2, when: "before" };
    let calls = crate::agents::Calls { kill: Some(kill), ..crate::agents::Calls::new(3) }.words(&bed);
    let quoted: Vec<String> = calls.iter().map(|word| format!("'{word}'")).collect();
    let child = format!("{} run -- {}; exit $?", crate::bed::OUTLAST, quoted.join(" "));
    bed.run(crate::agents::shell(&bed, &["--run", "r"], &child))
        .code(0)
        .tells(&["attempt 1 died (exited with 137)", "the interrupted run of this command"]);
    let runs = bed.json(&["ls"]);
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(2), "{runs}");
    assert_eq!((bed.paid(), bed.spent("r", "calls")), (3, 3), "the first answer was replayed");
}

/// An agent that the person declared: it makes a call, and dies behind it in its first life.
const DECLARED: &str = r#"#!/usr/bin/env python3
import http.client, json, os, signal, sys, urllib.parse
with open("../words", "a") as words:
    words.write(json.dumps(sys.argv[1:]) + "\n")
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
body = {"model": "gpt-4o-mini", "max_tokens": 10, "messages": [{"role": "user", "content": sys.argv[-1]}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
connection.request("POST", base.path + "/chat/completions", json.dumps(body), headers)
connection.getresponse().read()
if os.environ["OUTLAST_ATTEMPT"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
"#;

#[test]
fn a_declared_agent_goes_on_in_the_session_that_was_chosen_for_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let bed = Bed::new();
    fs::create_dir_all(bed.path(".config/outlast")).unwrap();
    bed.write(
        ".config/outlast/outlast.toml",
        "[agents.kimi]\nmatch = \"kimi-cli\"\nnew_args = [\"--session={session}\", \"{args}\"]\n\
         resume_args = [\"--session={session}\", \"{note}\"]\n",
    );
    let program = bed.write("kimi-cli", DECLARED);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    bed.does(&["run", "--run", "r", "--", text(&program), "hello"])
        .code(0)
        .tells(&["kimi goes on in its session"]);
    let words: Vec<Vec<String>> =
        bed.text("words").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((words.len(), words[0][1].as_str()), (2, "hello"));
    assert_eq!(words[0][0], words[1][0], "one session");
    assert!(words[1][1].starts_with("[Outlast] Your program ended (killed by SIGKILL)"), "{words:?}");
}
