//! The command line from outside: what it refuses, and how it says so.

use std::path::Path;

use assert_cmd::Command;

use crate::{commands, story::Story};

/// The binary, in `dir` and with nothing else around it.
pub fn outlast(dir: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("outlast"));
    command.env_clear().env("HOME", dir).current_dir(dir);
    command
}

/// Runs `line` and gives back exit code and stderr.
pub fn fails(dir: &Path, line: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let done = outlast(dir).args(line).envs(variables.iter().copied()).assert();
    let output = done.get_output();
    (output.status.code().unwrap(), String::from_utf8(output.stderr.clone()).unwrap())
}

#[test]
fn a_line_that_asks_for_what_does_not_exist_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let check = |line: &[&str], wanted: &[&str]| {
        let (code, told) = fails(dir.path(), line, &[]);
        assert_eq!(code, 2, "{line:?}: {told}");
        for part in wanted {
            assert!(told.contains(part), "{line:?} should tell {part:?}: {told}");
        }
    };
    check(&["runn"], &["unrecognized subcommand 'runn'", "'run'"]);
    // Other programs' words: likeness of letters suggested `state`.
    check(&["start"], &["unrecognized subcommand 'start'", "'serve'"]);
    check(&["ps"], &["unrecognized subcommand 'ps'", "'ls'"]);
    check(&["run"], &["<CMD>"]);
    check(&["run", "--usd", "5 usd", "--", "a"], &["not an amount in usd: \"5 usd\"", "wanted for example"]);
    check(&["run", "--usd", "-1", "--", "a"], &["-1"]);
    check(&["run", "--wall", "90", "--", "a"], &["90 has no unit"]);
    check(&["run", "--calls", "many", "--", "a"], &["not a whole number: \"many\""]);
    check(&["run", "--run", "a b", "--", "a"], &["not a run id: \"a b\""]);
    check(&["run", "--run", "a", "--new", "--", "a"], &["cannot be used with"]);
    check(&["run", "--kill-at", "call:0", "--", "a"], &["wanted call:N or call:N:mid"]);
    check(&["run", "--in-doubt", "maybe", "--", "a"], &["as_retry, keep, refund"]);
    check(&["run", "--openai-base-url", "x.example", "--", "a"], &["not a base URL"]);
    check(&["run", "--usdd", "1", "--", "a"], &["'--usdd'", "'--usd'"]);
    // What was meant, and not what is spelt alike.
    check(&["run", "--budget", "5", "--", "a"], &["'--budget'", "'--usd'"]);
    check(&["budget", "r", "--usd", "1"], &["'--usd'", "'--add-usd'"]);
    check(&["budgets", "raise", "b", "--usd", "1"], &["'--usd'", "'--add-usd'"]);
    check(&["budgets", "set", "b", "--add-usd", "1"], &["'--add-usd'", "'--set-usd'"]);
    check(&["serve", "--max-body", "64M"], &["unknown unit \"M\""]);
    check(&["serve", "--listen", "here"], &["'here'", "--listen"]);
    check(&["mock", "--fail", "200:2"], &["STATUS:PROBABILITY"]);
    check(&["budget", "r", "--lift", "dollars"], &["usd"]);
    check(&["spend", "--by", "team"], &["tag.KEY"]);
    check(&["spend", "--since", "yesterday"], &["2026-11-20T08:00:00Z"]);
    check(&["ls", "--status", "dead"], &["interrupted", "halted"]);
    check(&["ls", "--store", "mysql://x"], &["error: not a store: mysql://", "hint: "]);
}

#[test]
fn errors_are_json_where_json_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let check = |line: &[&str], variables: &[(&str, &str)], exit: i64, code: &str, message: &str| {
        let (status, told) = fails(dir.path(), line, variables);
        let error = &serde_json::from_str::<serde_json::Value>(&told).unwrap()["error"];
        assert_eq!((status as i64, error["exit_code"].as_i64()), (exit, Some(exit)), "{told}");
        assert_eq!(error["code"], code);
        assert!(error["message"].as_str().unwrap().contains(message), "{told}");
    };
    check(&["run", "--json", "--usd", "x", "--", "a"], &[], 2, "usage", "not an amount in usd: \"x\"");
    check(&["runn"], &[("OUTLAST_JSON", "1")], 2, "usage", "unrecognized subcommand");
    check(&["resume", "--json"], &[], 69, "store_missing", "no store");
    check(&["ls", "--json", "--store", "mysql://x"], &[], 2, "bad_store_place", "mysql");
    check(
        &["ls", "--json"],
        &[("OUTLAST_USD", "x"), ("OUTLAST_LIMIT", "x")],
        2,
        "bad_setting",
        "OUTLAST_LIMIT",
    );
    // The agent's own `--json` is not ours.
    let (_, told) = fails(dir.path(), &["run", "--usd", "x", "--", "a", "--json"], &[]);
    assert!(told.starts_with("error: "), "{told}");
}

#[test]
fn a_store_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (code, told) = fails(dir.path(), &["ls"], &[]);
    assert_eq!(code, 69);
    let place = dir.path().join(".local/state/outlast/outlast.db");
    assert!(told.starts_with(&format!("error: there is no store at {} yet", place.display())), "{told}");
    assert!(!place.exists());
}

#[test]
fn doctor_names_keys_and_never_shows_them() {
    let dir = tempfile::tempdir().unwrap();
    let done = outlast(dir.path()).arg("doctor").env("OPENAI_API_KEY", "sk-s3cret").assert().success();
    let told = String::from_utf8(done.get_output().stdout.clone()).unwrap();
    assert!(told.contains("OPENAI_API_KEY from the environment, no ANTHROPIC_API_KEY"), "{told}");
    assert!(told.contains("none yet at") && !told.contains("s3cret"), "{told}");
}

#[test]
fn doctor_names_another_outlast_of_another_build() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let told = |version: &str| {
        let other = dir.path().join("venv/bin/outlast");
        std::fs::create_dir_all(other.parent().unwrap()).unwrap();
        std::fs::write(&other, format!("#!/bin/sh\necho outlast '{version}'\n")).unwrap();
        std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
        let environment = dir.path().join("venv");
        let done =
            outlast(dir.path()).args(["doctor", "--json"]).env("VIRTUAL_ENV", environment).assert().success();
        let told: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        told["findings"].as_array().unwrap().iter().find(|f| f["what"] == "installed").unwrap().clone()
    };
    let unlike = told("0.0.1 (3f2a9c1d04 2026-11-20)");
    assert!(
        unlike["told"].as_str().unwrap().ends_with("/venv/bin/outlast is 0.0.1 (3f2a9c1d04 2026-11-20)"),
        "{unlike}"
    );
    assert_eq!(told(outlast_server::version::line())["verdict"], "well");
}

#[test]
fn doctor_refuses_a_file_of_keys_that_others_can_read() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(".config/outlast/env");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "OPENAI_API_KEY=sk-s3cret\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let done = outlast(dir.path()).args(["doctor", "--json"]).assert().code(69);
    let told: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!(told["well"], false);
    let keys = told["findings"].as_array().unwrap().iter().find(|f| f["what"] == "keys").unwrap();
    assert!(keys["told"].as_str().unwrap().contains("0644, wanted 0600"), "{keys}");
    assert_eq!(keys["hint"], format!("chmod 600 {}", path.display()));
}

#[test]
fn a_store_that_is_none_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("runs.db");
    std::fs::write(&place, "not a database, and longer than its header would be".repeat(20)).unwrap();
    let before = std::fs::read(&place).unwrap();
    let (code, told) = fails(dir.path(), &["ls", "--store", "runs.db"], &[]);
    assert_eq!(code, 69, "{told}");
    assert!(told.contains("hint: "), "{told}");
    assert_eq!(std::fs::read(&place).unwrap(), before);
}

#[test]
fn what_a_file_keeps_is_what_the_commands_tell() {
    let dir = tempfile::tempdir().unwrap();
    drop(Story::in_file(&dir.path().join("runs.db")).told());
    let memory = Story::whole();
    for line in [
        "outlast journal research-42 --json",
        "outlast journal research-42",
        "outlast spend --by day,model --until 2026-11-22",
    ] {
        let words = line.split(' ').skip(1).chain(["--store", "runs.db"]);
        let done = outlast(dir.path()).args(words).assert().success();
        let told = String::from_utf8(done.get_output().stdout.clone()).unwrap();
        assert_eq!(told, commands::shown(&memory, line), "{line}");
    }
    let budget = ["budget", "research-42", "--add-usd", "1", "--store", "runs.db"];
    outlast(dir.path()).args(budget).assert().success();
    let done = outlast(dir.path()).args(["show", "nightly", "--store", "runs.db"]).assert().success();
    let told = String::from_utf8(done.get_output().stderr.clone()).unwrap();
    let said = "\"nightly\" is research-42, interrupted, begun ";
    assert!(told.contains(said) && told.ends_with(" ago: one of 2 runs that it may mean\n"), "{told}");
    let (code, told) = fails(dir.path(), &["show", "res", "--store", "runs.db"], &[]);
    assert_eq!(code, 0, "of the runs that it may begin, one has not ended: {told}");
    let done = outlast(dir.path()).args(["doctor", "--store", "runs.db"]).assert().success();
    let told = String::from_utf8(done.get_output().stdout.clone()).unwrap();
    assert!(told.contains("SQLite 3.") && told.contains("1 run interrupted: research-42"), "{told}");
}

#[test]
fn what_is_no_number_is_refused_with_what_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    for (line, wanted) in [
        ("budget r --add-usd -1", "not an amount"),
        ("run --usd -1 -- true", "not an amount"),
        ("logs r --lines x", "not a whole number: \"x\" (wanted for example 20)"),
        ("journal r abc", "not a whole number: \"abc\" (wanted for example 20)"),
        ("fork r --at x", "not a whole number: \"x\""),
        ("show r --tail", "unexpected argument '--tail'"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let (code, told) = fails(dir.path(), &words, &[]);
        assert_eq!(code, 2, "{line}: {told}");
        assert!(told.contains(wanted) && !told.contains("'-- "), "{line}: {told}");
    }
}
