//! Further agents as they are published: each goes on in its own session when it is killed in a tool, is metered, and its
//! model is told what became of the tool. `OUTLAST_TEST_KILLS` says how often each is killed.

use super::{
    kept_sessions::{Damage, conversations, is_damaged},
    *,
};
use crate::bed::Dice;

/// One agent: how it is started, and how its model asks for a shell command.
struct Agent {
    name: &'static str,
    /// Tool that runs a shell command, and what it wants beside the command.
    tool: &'static str,
    beside: &'static [(&'static str, &'static str)],
    /// Arguments before the prompt.
    words: &'static [&'static str],
    /// File in the agent's directory that becomes part of its system text.
    instructions: &'static str,
    variables: &'static [(&'static str, &'static str)],
    /// Directory of its session files; `None` if it keeps none, or keeps them before it asks its model.
    sessions: Option<&'static str>,
}

const OPENCODE: Agent = Agent {
    name: "opencode",
    tool: "bash",
    beside: &[("description", "does it")],
    words: &["run", "--auto", "-m", "anthropic/claude-sonnet-4-5"],
    instructions: "AGENTS.md",
    variables: &[("OPENCODE_DISABLE_MODELS_FETCH", "1"), ("OPENCODE_DISABLE_AUTOUPDATE", "1")],
    sessions: None,
};

const GEMINI: Agent = Agent {
    name: "gemini",
    tool: "run_shell_command",
    beside: &[("description", "does it")],
    words: &["--yolo", "--skip-trust", "-m", "gemini-2.5-flash", "-p"],
    instructions: "system.md",
    variables: &[("GEMINI_SYSTEM_MD", "system.md")],
    sessions: Some(".gemini/tmp"),
};

const QWEN: Agent = Agent {
    name: "qwen",
    tool: "run_shell_command",
    beside: &[("description", "does it")],
    words: &["--yolo", "-m", "gpt-5", "-p"],
    instructions: "system.md",
    variables: &[("QWEN_SYSTEM_MD", "system.md")],
    sessions: Some(".qwen/projects"),
};

const COPILOT: Agent = Agent {
    name: "copilot",
    tool: "bash",
    beside: &[("description", "does it")],
    words: &["--yolo", "-p"],
    instructions: "AGENTS.md",
    variables: &[
        ("COPILOT_PROVIDER_TYPE", "openai"),
        ("COPILOT_MODEL", "gpt-5"),
        ("COPILOT_AUTO_UPDATE", "false"),
        ("COPILOT_OFFLINE", "true"),
    ],
    sessions: Some(".copilot/session-state"),
};

impl Agent {
    /// Waits until its session is on disk, a little later than its first tool begins. One that is killed before is begun
    /// anew.
    fn until_kept(&self, bed: &Bed) {
        let Some(below) = self.sessions else { return };
        until("its session is kept", || conversations(bed, below).pop().map(drop));
    }

    /// Lines for the fake provider: the model calls its tool once, and checks when it is told to.
    fn script(&self, command: &str) -> String {
        let call = |command: &str| {
            let mut args = json!({"command": command});
            for (name, value) in self.beside {
                args[*name] = (*value).into();
            }
            format!("tool {} {args}", self.tool)
        };
        let check = format!("mock: {}\n", call("[ -s effects ] || echo effect >> effects"));
        format!("mock: unless \"check before repeating\" {}\n{}", call(command), check.repeat(2))
    }

    fn starts(&self, bed: &Bed, command: &str, prepare: fn(&Bed, &mut Command)) -> Proc {
        self.starts_with(bed, &[], command, prepare)
    }

    fn starts_with(&self, bed: &Bed, flags: &[&str], command: &str, prepare: fn(&Bed, &mut Command)) -> Proc {
        let program = cli(self.name);
        fs::write(bed.path("work").join(self.instructions), self.script(command)).unwrap();
        let mut command = run(bed, flags);
        command.args(["--", text(&program)]).args(self.words).arg("do it once");
        command.envs(self.variables.iter().copied());
        // Their scripts want the Node.js that is installed beside them.
        command.env("PATH", path_of(&program));
        prepare(bed, &mut command);
        bed.start(command)
    }
}

fn path_of(program: &Path) -> String {
    format!("{}:/usr/local/bin:/usr/bin:/bin", text(program.parent().unwrap()))
}

/// Checks that the agent's model was told, in its own conversation, and that the effect is there once.
fn was_told(bed: &Bed, agent: &Agent) {
    assert_eq!(bed.text("work/effects"), "effect\n");
    assert_eq!(bed.spent("r", "calls"), bed.paid() as i64);
    let told = format!("Before the crash you had started: {} `", agent.tool);
    last_call_says(bed, &["do it once", &told, "outcome: ended by Outlast"]);
    assert_eq!(marked("OUTLAST_RUN_ID=r").iter().filter(|pid| in_bed(bed, **pid)).count(), 0);
    assert_eq!(bed.status("r"), "completed");
}

fn last_call_says(bed: &Bed, parts: &[&str]) {
    let calls: Vec<Value> = bed.journal("r").into_iter().filter(|e| e["kind"] == "call").collect();
    let last = calls.last().unwrap()["seq"].to_string();
    bed.does(&["journal", "r", &last]).code(0).tells(parts);
}

fn kills() -> usize {
    std::env::var("OUTLAST_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// Kills the agent while its tool waits before or behind its effect, once or as often as is asked for.
fn is_killed(agent: &Agent, prepare: fn(&Bed, &mut Command)) {
    let mut dice = Dice::new();
    for _ in 0..kills() {
        let when = if dice.below(2) == 0 { When::Before } else { When::After };
        let bed = bed();
        let run = agent.starts(&bed, when.command(), prepare);
        let pid = agent_of(&bed);
        agent.until_kept(&bed);
        assert!(kill(pid, 9));
        run.done().code(0).tells(&["goes on in its session", "told of 1 tool call that was in flight"]);
        was_told(&bed, agent);
    }
}

#[test]
fn opencode_that_is_killed_in_its_tool_goes_on_in_its_session_and_is_told() {
    is_killed(&OPENCODE, |_, _| ());
}

/// A person who has chosen how it authenticates: it refuses a base URL else.
fn with_key(bed: &Bed, command: &mut Command) {
    fs::create_dir(bed.path(".gemini")).unwrap();
    bed.write(".gemini/settings.json", r#"{"security": {"auth": {"selectedType": "gemini-api-key"}}}"#);
    command.env("GOOGLE_GEMINI_BASE_URL", bed.mock_url()).env("GEMINI_API_KEY", "AIza-crash");
}

#[test]
fn gemini_cli_that_is_killed_in_its_tool_goes_on_in_its_session_and_is_told() {
    is_killed(&GEMINI, with_key);
}

#[test]
fn qwen_code_that_is_killed_in_its_tool_goes_on_in_its_session_and_is_told() {
    is_killed(&QWEN, |_, _| ());
}

#[test]
fn copilot_cli_with_a_key_that_is_killed_in_its_tool_goes_on_in_its_session_and_is_told() {
    is_killed(&COPILOT, |_, _| ());
}

/// Waits until the file is copied as it is now: one line end more, and the copy that follows.
fn until_copied(bed: &Bed, file: &Path) {
    use std::io::Write as _;
    let newest = || {
        let entries = bed.journal("r").into_iter();
        let copies = entries.filter(|e| e["key"].as_str().is_some_and(|key| key.contains("transcript:")));
        copies.filter_map(|e| e["seq"].as_i64()).max()
    };
    let before = newest();
    fs::OpenOptions::new().append(true).open(file).unwrap().write_all(b"\n").unwrap();
    until("its session is copied", || (newest() > before).then_some(()));
}

/// The files of an agent's session are deleted while its tool runs, and then the agent is killed.
fn loses_its_files(agent: &Agent, prepare: fn(&Bed, &mut Command)) {
    let below = agent.sessions.unwrap();
    let bed = bed();
    let run = agent.starts(&bed, When::After.command(), prepare);
    let pid = agent_of(&bed);
    agent.until_kept(&bed);
    until_copied(&bed, &conversations(&bed, below).pop().unwrap());
    is_damaged(&bed, run, pid, below, Damage::Gone);
    was_told(&bed, agent);
}

/// Killed before its session was on disk. Without the requests no copy of it is kept either.
#[test]
fn copilot_cli_that_had_kept_no_session_is_told_in_a_new_one() {
    // Bug: of 20 killed, one ran its tool a second time. Consequence: its effect came twice. Cause: a session is on disk a
    // little later than its first tool begins, and one that is begun anew was told nothing.
    let bed = bed();
    let mut run = COPILOT.starts_with(&bed, &["--record", "answers"], When::After.command(), |_, _| ());
    agent_of(&bed);
    run.kill();
    let _ = fs::remove_dir_all(bed.path(".copilot/session-state"));
    let mut resume = bed.outlast(&["resume", "r"]);
    resume.envs(COPILOT.variables.iter().copied()).env("PATH", path_of(&cli(COPILOT.name)));
    bed.start(resume)
        .done()
        .code(0)
        .tells(&["had kept no session", "told of 1 tool call that was in flight"]);
    assert_eq!(bed.text("work/effects"), "effect\n");
    assert_eq!(bed.status("r"), "completed");
}

#[test]
fn gemini_cli_goes_on_although_its_sessions_are_gone() {
    loses_its_files(&GEMINI, with_key);
}

#[test]
fn qwen_code_goes_on_although_its_sessions_are_gone() {
    loses_its_files(&QWEN, |_, _| ());
}

#[test]
fn copilot_cli_goes_on_although_its_sessions_are_gone() {
    loses_its_files(&COPILOT, |_, _| ());
}

/// Aider gives its model no tools: it is killed in the tests that it runs behind an edit.
#[test]
fn aider_that_is_killed_behind_its_edit_goes_on_in_its_conversation() {
    let program = cli("aider");
    for _ in 0..kills() {
        let bed = bed();
        let git = Command::new("git").args(["init", "-q"]).current_dir(bed.path("work")).status().unwrap();
        assert!(git.success());
        let tests = bed.write("tests.sh", "[ -e ../cli ] || { echo $PPID > ../cli; cat ../gate; }\n");
        let prompt =
            ["do it once", "mock: reply effects", "mock: reply ```", "mock: reply effect", "mock: reply ```"];
        let mut command = run(&bed, &["--", text(&program), "--yes-always", "--model", "gpt-4o-mini"]);
        command.args(["--no-check-update", "--no-analytics", "--no-show-release-notes", "--no-fancy-input"]);
        command.args(["--auto-test", "--test-cmd", &format!("exec sh {}", text(&tests))]);
        command.args(["--message", &prompt.join("\n")]).env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
        let run = bed.start(command);
        assert!(kill(agent_of(&bed), 9));
        run.done().code(0).tells(&["goes on in its session"]);
        assert_eq!(bed.text("work/effects"), "effect\n");
        assert_eq!(bed.spent("r", "calls"), bed.paid() as i64);
        last_call_says(&bed, &["do it once", "[Outlast] Your program ended (killed by SIGKILL)"]);
        assert!(!bed.path("work/.aider.chat.history.md").exists(), "its session is kept with the run");
        assert_eq!(bed.status("r"), "completed");
    }
}

/// A model of aider's that answers everything with an edit, after a while: its lines are system text, which a resumed
/// conversation has too. (A prompt's own lines count only while it is the last.)
const EDITS: &str = "\
- name: gpt-4o-mini
  edit_format: whole
  system_prompt_prefix: |
    mock: latency 2s
    mock: reply effects
    mock: reply ```
    mock: reply effect
    mock: reply ```
";

#[test]
fn aider_that_is_killed_while_its_answer_is_under_way_has_its_edit_made_in_the_next_life() {
    let program = cli("aider");
    for _ in 0..kills() {
        let bed = bed();
        let git = Command::new("git").args(["init", "-q"]).current_dir(bed.path("work")).status().unwrap();
        assert!(git.success());
        let models = bed.write("models.yml", EDITS);
        let mut command = run(&bed, &["--", text(&program), "--yes-always", "--model", "gpt-4o-mini"]);
        command.args(["--no-check-update", "--no-analytics", "--no-show-release-notes", "--no-fancy-input"]);
        command.args(["--no-auto-commits", "--model-settings-file", text(&models)]);
        command.args(["--message", "do it once"]);
        command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
        let run = bed.start(command);
        until("it asks its model", || (bed.paid() > 0).then_some(()));
        let is_aider = |pid: &u32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            in_bed(&bed, *pid) && String::from_utf8_lossy(&words).contains("do it once")
        };
        let agents = || marked("OUTLAST_ATTEMPT=1").into_iter().filter(is_aider);
        assert!(kill(until("it runs", || agents().max()), 9));
        run.done().code(0).tells(&["goes on in its session"]);
        assert_eq!(bed.text("work/effects"), "effect\n");
        last_call_says(&bed, &["do it once", "[Outlast] Your program ended (killed by SIGKILL)"]);
        assert_eq!(bed.status("r"), "completed");
    }
}
