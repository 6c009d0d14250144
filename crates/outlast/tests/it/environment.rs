//! Login and variables of a run, as they were when it began.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use assert_cmd::Command;

use crate::line;

const PATHS: &str = "/usr/local/bin:/usr/bin:/bin";

fn outlast(dir: &Path) -> Command {
    let mut command = line::outlast(dir);
    command.env("PATH", format!("{}:{PATHS}", dir.join("bin").display()));
    command
}

fn program(dir: &Path, name: &str, text: &str) {
    let path = dir.join("bin").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Exit code and standard error.
fn done(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_subscriptions_login_has_no_limit_in_usd_and_says_so_first() {
    let dir = tempfile::tempdir().unwrap();
    program(dir.path(), "claude", "exit 130");
    let credentials = dir.path().join(".claude/.credentials.json");
    fs::create_dir_all(credentials.parent().unwrap()).unwrap();
    fs::write(&credentials, r#"{"claudeAiOauth": {"accessToken": "s3cret"}}"#).unwrap();
    let limit = |run: &str| {
        let told = outlast(dir.path()).args(["budget", run, "--json"]).output().unwrap().stdout;
        serde_json::from_slice::<serde_json::Value>(&told).unwrap()["budget"][0]["limit_usd"].clone()
    };
    let (_, told) = done(outlast(dir.path()).args([
        "run",
        "--run",
        "a",
        "--calls",
        "9",
        "--restarts",
        "0",
        "--",
        "claude",
        "-p",
        "x",
    ]));
    assert!(
        told.starts_with("outlast: a · under a login of claude.ai: budget 9 calls, 0 restarts; "),
        "{told}"
    );
    assert!(told.contains("calls have a list price, and are not billed"), "{told}");
    assert_eq!(limit("a"), serde_json::Value::Null);
    outlast(dir.path()).args(["budget", "a", "--lift", "restarts"]).assert().success();
    // With a key, calls are billed: the run does not go on unlimited.
    let mut resume = outlast(dir.path());
    let (code, told) = done(resume.args(["resume", "a"]).env("ANTHROPIC_API_KEY", "sk"));
    assert_eq!(code, 1, "{told}");
    assert!(told.contains("hint: give it one with `outlast budget a --set-usd 5`"), "{told}");
    // So is a run that is begun with one, and a run of another program.
    let mut run = outlast(dir.path());
    done(
        run.args(["run", "--run", "b", "--restarts", "0", "--", "claude", "-p", "x"])
            .env("ANTHROPIC_API_KEY", "sk"),
    );
    done(outlast(dir.path()).args(["run", "--run", "c", "--restarts", "0", "--", "sh", "-c", "exit 0"]));
    assert_eq!((limit("b"), limit("c")), ("5.00".into(), "5.00".into()));
}

#[test]
fn a_resumption_names_the_variables_that_it_lacks_before_it_starts_anything() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("vars"), "FROM_FILE='one two'\n").unwrap();
    program(dir.path(), "agent", "echo \"$FROM_FILE/$DB_URL/$KEPT\" >> seen; test -n \"$GO\"");
    let run = ["run", "--run", "a", "--restarts", "0", "--env", "KEPT", "--env-file", "vars", "--", "agent"];
    let mut first = outlast(dir.path());
    let (code, told) = done(first.args(run).env("DB_URL", "s3cret-url").env("KEPT", "k").env("SSH_TTY", "t"));
    assert_eq!(code, 75, "{told}");
    let mut budget = outlast(dir.path());
    budget.args(["budget", "a", "--lift", "restarts"]).assert().success();
    fs::write(dir.path().join("vars"), "FROM_FILE=three\n").unwrap();
    let (code, told) = done(outlast(dir.path()).args(["resume", "a"]).env("GO", "1"));
    assert_eq!(code, 0, "{told}");
    let lacks = told.find("1 variable that the run began with is missing here: DB_URL ").expect(&told);
    assert!(lacks < told.find("resuming a").unwrap(), "{told}");
    assert_eq!(fs::read_to_string(dir.path().join("seen")).unwrap(), "one two/s3cret-url/k\nthree//k\n");
    // The file's text and the variables' values are nowhere in the store.
    for entry in fs::read_dir(dir.path().join(".local/state/outlast")).unwrap().flatten() {
        let bytes = fs::read(entry.path()).unwrap_or_default();
        for secret in ["s3cret-url", "one two"] {
            assert!(!bytes.windows(secret.len()).any(|w| w == secret.as_bytes()), "{:?}", entry.path());
        }
    }
}

#[test]
fn a_run_whose_file_of_variables_is_gone_is_not_started() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("vars");
    fs::write(&file, "A=1\n").unwrap();
    let run = [
        "run",
        "--run",
        "a",
        "--restarts",
        "0",
        "--env-file",
        "vars",
        "--",
        "sh",
        "-c",
        "echo x >> seen; exit 1",
    ];
    done(outlast(dir.path()).args(run));
    fs::remove_file(&file).unwrap();
    let (code, told) = done(outlast(dir.path()).args(["resume", "a"]));
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("vars: No such file") && told.contains("nothing was started"), "{told}");
    assert_eq!(fs::read_to_string(dir.path().join("seen")).unwrap(), "x\n");
}

#[test]
fn the_unit_names_the_variables_that_unfinished_runs_want() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = outlast(dir.path());
    done(run.args(["run", "--restarts", "0", "--", "sh", "-c", "kill -9 $$"]).env("DB_URL", "s3cret"));
    let output = outlast(dir.path()).args(["service", "install", "--print"]).output().unwrap();
    let (unit, told) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(
        unit.contains("\n# Unfinished runs were begun with: DB_URL\n") && !unit.contains("s3cret"),
        "{unit}"
    );
    assert!(told.contains("begun with variables that the unit lacks: DB_URL ("), "{told}");
}

#[test]
fn a_run_with_json_ends_with_a_line_of_json() {
    let dir = tempfile::tempdir().unwrap();
    let output =
        outlast(dir.path()).args(["run", "--json", "--run", "a", "--", "echo", "hello"]).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = told.lines().collect();
    let end: serde_json::Value = serde_json::from_str(lines[1]).unwrap();
    assert_eq!((lines[0], lines.len()), ("hello", 2));
    assert_eq!(
        (&end["run"], &end["status"], &end["exit_code"]),
        (&"a".into(), &"completed".into(), &0.into())
    );
    // A run that did not end well says so in the same way.
    let mut run = outlast(dir.path());
    let output = run.args(["run", "--json", "--restarts", "0", "--", "false"]).output().unwrap();
    let end: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&end["halt_code"], &end["exit_code"]), (&"restart_budget_exceeded".into(), &75.into()));
}

#[test]
fn runs_that_are_resumed_together_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let script = "test -e go || { kill -9 $$; }; echo out; echo err >&2";
    for name in ["one", "two"] {
        let run = ["run", "--new", "--name", name, "--restarts", "0", "--", "sh", "-c", script];
        done(outlast(dir.path()).args(run));
        outlast(dir.path()).args(["budget", name, "--lift", "restarts"]).assert().success();
    }
    fs::write(dir.path().join("go"), "").unwrap();
    let output = outlast(dir.path()).args(["resume", "--all"]).output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    for name in ["one", "two"] {
        assert!(out.contains(&format!("{name} | out\n")), "{out}");
        assert!(err.contains(&format!("{name} | err\n")), "{err}");
        assert!(err.contains(&format!("{name} | outlast: resuming {name}")), "{err}");
    }
}
