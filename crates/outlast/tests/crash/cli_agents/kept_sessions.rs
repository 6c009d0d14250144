//! The real programs go on with their conversation although their own files are gone or cut.

use std::{fs, path::PathBuf};

use super::{
    Path, When, agent_of, bed, claude, claude_of, cli, files_below, finished, kill, model, run, text,
};
use crate::bed::{Bed, Proc, until};

/// Waits until the session is in the store as its file has it now, damages the file, and kills the agent.
pub(super) fn is_damaged(bed: &Bed, run: Proc, pid: u32, below: &str, keep: Option<usize>) {
    let file = until("it keeps a session", || session(bed, below));
    let name = file.file_name().unwrap().to_str().unwrap().to_owned();
    until("its session is copied", || {
        let copied = |e: &serde_json::Value| e["key"].as_str().is_some_and(|key| key.ends_with(&name));
        bed.journal("r").iter().any(copied).then_some(())
    });
    match keep {
        Some(bytes) => fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(bytes as u64).unwrap(),
        None => fs::remove_dir_all(bed.path(below)).unwrap(),
    }
    assert!(kill(pid, 9));
    run.done().code(0).tells(&["is put back", "goes on in its session"]);
    assert_eq!(session(bed, below), Some(file));
}

fn session(bed: &Bed, below: &str) -> Option<PathBuf> {
    let mut found = Vec::new();
    files_below(&bed.path(below), &mut found);
    found.into_iter().find(|path| path.extension().is_some_and(|e| e == "jsonl"))
}

fn claude_is_damaged(keep: Option<usize>) {
    let (program, bed) = (cli("claude"), bed());
    let run = bed.start(claude(&bed, &program, &model("Bash", "command", When::After.command(), 1), &[]));
    let pid = claude_of(&bed);
    is_damaged(&bed, run, pid, ".claude/projects", keep);
    finished(&bed, 1, "ended by Outlast", ".claude/projects");
}

fn codex_is_damaged(keep: Option<usize>) {
    let (program, bed) = (cli("codex"), bed());
    let run = bed.start(codex(&bed, &program));
    let pid = agent_of(&bed);
    is_damaged(&bed, run, pid, ".codex/sessions", keep);
    finished(&bed, 1, "ended by Outlast", ".codex/sessions");
}

fn codex(bed: &Bed, program: &Path) -> std::process::Command {
    let script = model("exec_command", "cmd", When::After.command(), 2);
    let mut command = run(bed, &["--", text(program), "exec", "--skip-git-repo-check", "-m", "gpt-5"]);
    command.args(["-s", "danger-full-access", "-c"]);
    command.arg(format!("developer_instructions={}", serde_json::Value::from(script))).arg("do it once");
    command
}

#[test]
fn claude_code_goes_on_although_its_sessions_are_gone() {
    claude_is_damaged(None);
}

#[test]
fn claude_code_goes_on_although_its_session_is_cut() {
    claude_is_damaged(Some(777));
}

#[test]
fn codex_goes_on_although_its_sessions_are_gone() {
    codex_is_damaged(None);
}

#[test]
fn codex_goes_on_although_its_session_is_cut() {
    codex_is_damaged(Some(777));
}
