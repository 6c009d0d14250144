//! Killed while the answer still streams that names its tool: both begin a tool before that answer has ended.
//! `OUTLAST_TEST_KILLS` says how often each is killed.

use super::*;

/// State of the tool when its agent is killed.
#[derive(Clone, Copy, Debug)]
enum Tool {
    Waits,
    HasItsEffect,
    HasEnded,
}

impl Tool {
    fn command(self) -> &'static str {
        match self {
            Tool::Waits => When::Before.command(),
            Tool::HasItsEffect => When::After.command(),
            Tool::HasEnded => "echo effect >> effects; echo $PPID > ../cli",
        }
    }
}

/// Kills at every stage of the tool in turn, two runs at a time.
fn each_kill(story: impl Fn(Tool) + Sync) {
    let kills = std::env::var("OUTLAST_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let tools = [Tool::Waits, Tool::HasItsEffect, Tool::HasEnded];
    for pair in tools.into_iter().cycle().take(kills).collect::<Vec<_>>().chunks(2) {
        crate::bed::each(pair.to_vec(), &story);
    }
}

/// The answer that names the tool does not end before the kill; those behind it end at once.
fn streaming(script: &str) -> String {
    format!("{script}mock: unless \"check before repeating\" linger 20s\n")
}

/// Checks that the agent's model was told, and that the effect is there once.
fn is_told(bed: &Bed, run: Proc, tool: Tool) {
    run.done().code(0).tells(&["told of 1 tool call that was in flight"]);
    let asked: Vec<String> = (0..bed.paid()).map(|at| last_asked(bed, at)).collect();
    let told = asked.iter().any(|asked| asked.contains("Before the crash you had started: "));
    assert!(told, "{tool:?}: {asked:?}");
    assert_eq!(bed.text("work/effects"), "effect\n", "{tool:?}");
    let open = bed.journal("r").into_iter().filter(|e| e["kind"] == "tool" && e["state"] == "open").count();
    assert_eq!(open, 0, "{tool:?}: the outcome is recorded");
}

#[test]
fn claude_code_killed_while_its_answer_streams_is_told_every_time() {
    // Bug: the note said "No tool call was in flight" while one was. Consequence: the model did the effect again.
    // Cause: only answers that had ended were read, and neither the hook's own entry nor the one under way.
    let program = cli("claude");
    each_kill(|tool| {
        let bed = bed();
        let script = streaming(&model("Bash", "command", tool.command(), 1));
        let run = bed.start(claude(&bed, &program, &script, &[]));
        assert!(kill(agent_of(&bed), 9));
        is_told(&bed, run, tool);
    });
}

#[test]
fn codex_killed_while_its_answer_streams_is_told_every_time() {
    // Bug, consequence and cause: as above. Codex has no hooks: its answer so far and its tool's process tell.
    let program = cli("codex");
    each_kill(|tool| {
        let bed = bed();
        // Told and not: what its history has of the cut-off call may be one turn of the script.
        let script = streaming(&model("exec_command", "cmd", tool.command(), 2));
        let mut command = run(&bed, &["--", text(&program), "exec", "--skip-git-repo-check", "-m", "gpt-5"]);
        command.args(["-s", "danger-full-access", "-c"]);
        command.arg(format!("developer_instructions={}", Value::from(script))).arg("do it once");
        let run = bed.start(command);
        assert!(kill(agent_of(&bed), 9));
        is_told(&bed, run, tool);
    });
}
