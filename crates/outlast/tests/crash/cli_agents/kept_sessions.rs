//! The real programs go on with their conversation although their own files are gone or cut. `OUTLAST_TEST_CUTS` says how
//! often each is damaged, at random bytes; without it a few fixed ones are tried.

use std::{fs, path::PathBuf};

use super::{
    Path, When, agent_of, bed, claude, claude_of, cli, files_below, finished, kill, model, run, text,
};
use crate::bed::{Bed, Dice, Proc, each, until};

/// Damage to the files of an agent's sessions.
#[derive(Clone, Copy, Debug)]
pub(super) enum Damage {
    Gone,
    /// The session's file is cut behind this many millionths of its bytes.
    Cut(u64),
}

impl Damage {
    fn bytes(self, whole: u64) -> Option<u64> {
        match self {
            Damage::Gone => None,
            Damage::Cut(part) => Some((u128::from(whole) * u128::from(part) / 1_000_000) as u64),
        }
    }
}

/// Damages at random places, half of them the loss of all, two runs at a time.
fn each_damage(story: impl Fn(Damage) + Sync) {
    let count = std::env::var("OUTLAST_TEST_CUTS").ok().and_then(|n| n.parse().ok());
    let damages = match count {
        None => vec![Damage::Gone, Damage::Cut(0), Damage::Cut(40_000), Damage::Cut(999_000)],
        Some(count) => {
            let mut dice = Dice::new();
            let one = |n: usize| {
                if n.is_multiple_of(2) { Damage::Gone } else { Damage::Cut(dice.below(1_000_000)) }
            };
            (0..count).map(one).collect()
        }
    };
    for pair in damages.chunks(2) {
        each(pair.to_vec(), &story);
    }
}

/// Waits until the session is in the store as its file has it now, damages the file, and kills the agent.
pub(super) fn is_damaged(bed: &Bed, run: Proc, pid: u32, below: &str, damage: Damage) {
    let file = until("it keeps a session", || conversations(bed, below).pop());
    let name = file.file_name().unwrap().to_str().unwrap().to_owned();
    until("its session is copied", || {
        let copied = |e: &serde_json::Value| e["key"].as_str().is_some_and(|key| key.ends_with(&name));
        bed.journal("r").iter().any(copied).then_some(())
    });
    match damage.bytes(fs::metadata(&file).unwrap().len()) {
        Some(bytes) => fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(bytes).unwrap(),
        None => fs::remove_dir_all(bed.path(below)).unwrap(),
    }
    assert!(kill(pid, 9));
    run.done().code(0).tells(&["is put back", "goes on in its session"]);
    assert_eq!(conversations(bed, below), [file]);
}

/// Returns the session files that hold the conversation. Gemini CLI begins a file without one at each start, named by
/// the minute.
pub(super) fn conversations(bed: &Bed, below: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    files_below(&bed.path(below), &mut files);
    let holds = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains("do it once"));
    files.retain(|path| path.extension().is_some_and(|e| e == "jsonl") && holds(path));
    files
}

fn claude_is_damaged(damage: Damage) {
    let (program, bed) = (cli("claude"), bed());
    let run = bed.start(claude(&bed, &program, &model("Bash", "command", When::After.command(), 1), &[]));
    let pid = claude_of(&bed);
    is_damaged(&bed, run, pid, ".claude/projects", damage);
    finished(&bed, 1, "ended by Outlast", ".claude/projects");
}

fn codex_is_damaged(damage: Damage) {
    let (program, bed) = (cli("codex"), bed());
    let script = model("exec_command", "cmd", When::After.command(), 2);
    let run = bed.start(codex(&bed, &program, script));
    let pid = agent_of(&bed);
    is_damaged(&bed, run, pid, ".codex/sessions", damage);
    finished(&bed, 1, "ended by Outlast", ".codex/sessions");
}

fn codex(bed: &Bed, program: &Path, script: String) -> std::process::Command {
    let mut command = run(bed, &["--", text(program), "exec", "--skip-git-repo-check", "-m", "gpt-5"]);
    command.args(["-s", "danger-full-access", "-c"]);
    command.arg(format!("developer_instructions={}", serde_json::Value::from(script))).arg("do it once");
    command
}

#[test]
fn claude_code_goes_on_although_its_sessions_are_gone_or_cut() {
    each_damage(claude_is_damaged);
}

#[test]
fn codex_goes_on_although_its_sessions_are_gone_or_cut() {
    each_damage(codex_is_damaged);
}

/// Forks a run that is completed, and checks that the fork's model has the conversation, in a session of its own.
fn is_forked(bed: &Bed, run: std::process::Command, below: &str) {
    bed.run(run).code(0);
    let origin = conversations(bed, below).pop().unwrap();
    let whole = fs::read(&origin).unwrap();
    let is_call = |e: &&serde_json::Value| e["kind"] == "call" && e["state"] == "done";
    let last = bed.journal("r").iter().rfind(is_call).unwrap()["seq"].to_string();
    bed.does(&["fork", "r", "--at", &last, "--id", "f"]).code(0).tells(&["in a session of its own"]);
    let mut resume = bed.outlast(&["resume", "f"]);
    resume.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
    bed.run(resume).code(0).tells(&["has a session of its own", "goes on in its session"]);
    assert_eq!(fs::read(&origin).unwrap(), whole);
    let sessions = conversations(bed, below);
    assert_eq!(sessions.len(), 2, "{sessions:?}");
    assert!(super::last_asked(bed, bed.paid() - 1).contains("in a fork of the run r"));
    let own = sessions.into_iter().find(|path| *path != origin).unwrap();
    let own = fs::read_to_string(own).unwrap();
    assert!(own.contains("said once") && own.contains("in a fork of the run r"), "{own}");
}

#[test]
fn claude_codes_fork_goes_on_in_a_session_of_its_own() {
    let (program, bed) = (cli("claude"), bed());
    is_forked(&bed, claude(&bed, &program, "mock: reply said once", &[]), ".claude/projects");
}

#[test]
fn codexs_fork_goes_on_in_a_session_of_its_own() {
    let (program, bed) = (cli("codex"), bed());
    is_forked(&bed, codex(&bed, &program, "mock: reply said once".into()), ".codex/sessions");
}
