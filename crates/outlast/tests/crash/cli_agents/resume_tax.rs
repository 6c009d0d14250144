//! Tokens that a resumption of the real programs buys again, at a context of more than 100,000 tokens, by a provider that bills
//! its prompt cache as the real ones do. `OUTLAST_TEST_KILLS` says how often each is killed; the shares are printed.

use serde_json::{Value, json};

use super::{Command, Path, agent_of, bed, claude_of, cli, kill, run, text};
use crate::bed::{Bed, Proc};

/// Most of the context that may be bought again, in percent.
const MOST: i64 = 5;

/// A model that reads a file of 20 kB so many times, and then does what the agent is killed in.
fn model(tool: &str, key: &str, reads: usize) -> String {
    let call = |command: String| {
        let mut arguments = json!({key: command});
        // Codex shows its model less than a file of this length unless it is asked for.
        if tool == "exec_command" {
            arguments["max_output_tokens"] = 9000.into();
        }
        format!("tool {tool} {arguments}")
    };
    let read = |n| format!("mock: {}\n", call(format!("cat ../long; echo {n}")));
    let last = call("echo x >> new; (echo $PPID > ../cli; cat ../gate; true)".into());
    let check = format!("mock: {}\n", call("true".into()));
    let reads: String = (0..reads).map(read).collect();
    format!("{reads}mock: unless \"check before repeating\" {last}\n{check}{check}")
}

fn long_bed() -> Bed {
    let bed = bed();
    bed.write("long", &"a line of a long file that the agent has been told to read\n".repeat(330));
    for words in [
        &["init", "-q"][..],
        &["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "a"],
    ] {
        assert!(Command::new("git").args(words).current_dir(bed.path("work")).status().unwrap().success());
    }
    bed
}

fn claude(bed: &Bed, program: &Path, flags: &[&str]) -> Command {
    let mut command = run(bed, flags);
    command.args(["--", text(program), "-p", "--append-system-prompt", &model("Bash", "command", 22)]);
    command.args(["--allowedTools", "Bash", "--", "do it once"]);
    command
}

/// Ends the run, and returns what its one restart read and bought again.
fn resumed(bed: &Bed, run: Proc, pid: u32) -> Value {
    assert!(kill(pid, 9));
    run.done().code(0);
    let told = bed.json(&["journal", "r", "--cache"]);
    let one = told["resumptions"].as_array().unwrap().last().unwrap().clone();
    assert!(one["covered_tokens"].as_i64().unwrap() >= 100_000, "{one}");
    one
}

fn share(one: &Value) -> i64 {
    let share = 100 * one["rebought_tokens"].as_i64().unwrap() / one["covered_tokens"].as_i64().unwrap();
    println!("of {} tokens {} bought again: {share} %", one["covered_tokens"], one["rebought_tokens"]);
    share
}

/// Kills as often as is asked for, else once.
fn each_kill(story: impl Fn()) {
    let kills = std::env::var("OUTLAST_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    (0..kills).for_each(|_| story());
}

#[test]
fn claude_code_resumed_warm_buys_almost_nothing_again() {
    let program = cli("claude");
    each_kill(|| {
        let bed = long_bed();
        let run = bed.start(claude(&bed, &program, &["--warm-resume"]));
        let one = resumed(&bed, run, claude_of(&bed));
        assert!(share(&one) <= MOST, "{one}");
        assert_ne!(one["difference"]["part"], "tools", "{one}");
        assert_ne!(one["difference"]["part"], "system", "{one}");
    });
}

#[test]
fn claude_code_resumed_without_it_pays_for_gits_status_and_is_told_the_remedy() {
    let program = cli("claude");
    each_kill(|| {
        let bed = long_bed();
        let run = bed.start(claude(&bed, &program, &[]));
        let one = resumed(&bed, run, claude_of(&bed));
        assert!(share(&one) > 50, "{one}");
        assert_eq!(one["difference"]["part"], "system", "{one}");
        bed.does(&["show", "r"]).code(0).tells(&["re-bought"]);
        bed.does(&["show", "r", "-v"]).code(0).tells(&["--warm-resume keeps the prompt the same"]);
    });
}

#[test]
fn codex_resumed_buys_almost_nothing_again() {
    let program = cli("codex");
    each_kill(|| codex_is_killed(&program));
}

fn codex_is_killed(program: &Path) {
    let bed = long_bed();
    let mut command = run(&bed, &["--", text(program), "exec", "--skip-git-repo-check", "-m", "gpt-5"]);
    command.args(["-s", "danger-full-access", "-c"]);
    let script = Value::from(model("exec_command", "cmd", 45));
    command.arg(format!("developer_instructions={script}")).arg("do it once");
    let run = bed.start(command);
    let one = resumed(&bed, run, agent_of(&bed));
    assert!(share(&one) <= MOST, "{one}");
}
