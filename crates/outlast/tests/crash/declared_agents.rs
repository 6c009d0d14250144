//! Agents that a person has declared: what is read off what they print, and what that is good for. On a terminal, too.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

use crate::bed::{Bed, Proc, text, until};

/// Never asks the proxy. Its first words tell how it ends: `dies` kills itself once it has said its session, `limit`
/// waits at a usage limit or leaves with 1, `again` is a session that it goes on with.
const KIMI: &str = r#"#!/bin/sh
echo "$*" >> ../words
[ -t 1 ] && echo tty >> ../terminals
case "$1" in
    --resume) printf 'welcome back\n'; exit 0 ;;
esac
printf '\033[2J\033[1;1H\033[1mSession:\033[0m k-%s\033[3;1H> ' "$$"
case "$1" in
    dies) kill -9 $$ ;;
    leaves) printf '\nlimit reached, resets in 5 h\n'; exit 1 ;;
    waits) printf '\033[5;1HLimit reached, resets in 5 h\033[7;1H'; : > ../waiting; exec sleep 100 ;;
esac
"#;

const DECLARED: &str = r#"[agents.kimi]
match = "kimi-cli"
resume_args = ["--resume", "{session}", "{note}"]
session_id_regex = 'Session: (\S+)'
limit_regex = '(?i)limit reached, resets in (?<hours>\d+) h'
"#;

/// A bed on which it is declared, and its program.
fn bed() -> (Bed, String) {
    let bed = Bed::without_mock();
    fs::create_dir_all(bed.path(".config/outlast")).unwrap();
    bed.write(".config/outlast/outlast.toml", DECLARED);
    let program = bed.write("kimi-cli", KIMI);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let program = text(&program).to_owned();
    (bed, program)
}

fn run(bed: &Bed, flags: &[&str], program: &str, how: &str) -> Command {
    let mut command = bed.outlast(&["run", "--run", "r"]);
    command.args(flags).args(["--", program, how]);
    command
}

/// The words of its lives, with the session's id as it was.
#[track_caller]
fn assert_resumed(bed: &Bed, how: &str, note: &str) {
    let words = bed.until_lines("words", 2);
    assert_eq!(words[0], how);
    assert!(words[1].starts_with("--resume k-") && words[1].contains(note), "{words:?}");
}

#[test]
fn declared_agent_that_prints_its_session_goes_on_in_it_wherever_its_calls_went() {
    crate::bed::each(vec!["never", "always"], |pty| {
        // Also where nothing of what it prints is kept, and though the id is its last word.
        for flags in [vec!["--pty", pty], vec!["--pty", pty, "--no-logs"]] {
            let (bed, program) = bed();
            let done = bed.run(run(&bed, &flags, &program, "dies")).code(0);
            done.tells(&["kimi goes on in its session k-", "welcome back"]);
            assert_resumed(&bed, "dies", "[Outlast] Your program ended (killed by SIGKILL)");
            assert_eq!(bed.text("terminals").lines().count(), if pty == "always" { 2 } else { 0 });
        }
    });
}

/// Asleep until its time, whatever it was that slept: woken it goes on in its session, and no restart was spent.
#[track_caller]
fn sleeps(bed: &Bed, run: Proc, how: &str) {
    bed.until_file("words");
    bed.until_status("r", "sleeping");
    let shown = bed.show("r");
    assert_eq!(shown["attempts"][0]["exit"]["at_limit"], true, "{shown}");
    until("it is said", || run.output().contains("usage limit: r sleeps until").then_some(()));
    let spans = ["(for 4 h 59 min", "(for 5 h"];
    assert!(spans.iter().any(|span| run.output().contains(span)), "{}", run.output());
    bed.does(&["wake", "r"]).code(0);
    run.done().code(0).tells(&["kimi goes on in its session k-"]);
    assert_resumed(bed, how, "");
    assert_eq!((bed.status("r").as_str(), bed.spent("r", "restarts")), ("completed", 0));
}

#[test]
fn usage_limit_that_only_the_screen_tells_is_a_sleep() {
    let (bed, program) = bed();
    let run = bed.start(run(&bed, &["--pty", "never"], &program, "leaves"));
    sleeps(&bed, run, "leaves");
}

#[test]
fn agent_that_waits_at_a_limit_on_a_terminal_is_stopped_and_goes_on_in_its_session_when_it_is_over() {
    let (bed, program) = bed();
    let run = bed.start(run(&bed, &["--pty", "always", "--grace", "200ms"], &program, "waits"));
    bed.until_file("waiting");
    sleeps(&bed, run, "waits");
    assert_eq!(bed.text("terminals").lines().count(), 2);
}
