//! `outlast run --loop`: iterations, what ends them, and what a death of anybody leaves of them.

use std::process::Command;

use crate::{
    agents::{script, shell},
    bed::{Bed, each, text, until},
};

/// Asks what it reads, and says what it was given; dies where a file of its attempt's number tells it to.
const ASKS_ITS_INPUT: &str = r#"
import http.client, json, os, signal, sys, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
prompt = sys.stdin.read()
connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
body = {"model": "gpt-4o-mini", "max_tokens": 10, "messages": [{"role": "user", "content": prompt}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
connection.request("POST", base.path + "/chat/completions", json.dumps(body), headers)
answer = connection.getresponse()
answer.read()
if answer.status != 200: sys.exit(1)
iteration, attempt = os.environ["OUTLAST_ITERATION"], os.environ["OUTLAST_ATTEMPT"]
with open("../told", "a") as told:
    told.write(f"{iteration} @{attempt} {os.environ.get('OUTLAST_RECOVERED', '-')} {prompt.strip()}\n")
open("../PROMPT.md", "w").write(f"written by {attempt}\n")
dies = f"../dies-{attempt}"
if os.path.exists(dies): os.kill(os.getppid() if open(dies).read() else os.getpid(), signal.SIGKILL); signal.pause()
"#;

fn looping(bed: &Bed, flags: &[&str]) -> Command {
    let prompt = bed.path("PROMPT.md");
    let all = [&["--loop", "--stdin", text(&prompt)], flags].concat();
    script(bed, &all, ASKS_ITS_INPUT, &[])
}

#[test]
fn each_iteration_reads_its_file_anew_and_a_crash_reads_what_its_iteration_began_with() {
    let bed = Bed::new();
    bed.write("PROMPT.md", "first\n");
    bed.write("dies-2", "");
    let run = looping(&bed, &["--run", "r", "--max-iterations", "3"]);
    bed.run(run)
        .code(0)
        .tells(&["iteration 1 is over; starting iteration 2", "the loop is done: 3 iterations"]);
    let told = "1 @1 - first\n2 @2 - written by 1\n2 @3 1 written by 1\n3 @4 - written by 3\n";
    assert_eq!(bed.text("told"), told);
    // The restart of the second was answered from the journal.
    assert_eq!((bed.paid(), bed.show("r")["replayed"].as_i64()), (3, Some(1)));
    assert_eq!((bed.spent("r", "restarts"), bed.show("r")["loop"]["finished"].as_i64()), (1, Some(3)));
    bed.does(&["show", "r", "-v"]).tells(&["loop      3 iterations of at most 3 finished", "iteration"]);
}

#[test]
fn same_question_in_another_iteration_is_asked_anew() {
    let bed = Bed::new();
    let agent = ASKS_ITS_INPUT.replace("prompt = sys.stdin.read()", "prompt = 'always the same'");
    let flags = ["--run", "r", "--loop", "--max-iterations", "3"];
    bed.run(script(&bed, &flags, &agent, &[])).code(0);
    assert_eq!((bed.paid(), bed.show("r")["replayed"].as_i64()), (3, Some(0)));
}

#[test]
fn loop_goes_on_where_its_supervisor_was_killed() {
    each(vec!["typed again", "resumed", "resume --all"], |how| {
        let bed = Bed::new();
        bed.write("PROMPT.md", "first\n");
        bed.write("dies-2", "parent");
        let typed = || looping(&bed, &["--max-iterations", "3"]);
        bed.run(typed()).code(137);
        let id = bed.json(&["ls"])["runs"][0]["run"].as_str().unwrap().to_owned();
        // The text that the agent left in the file is the input of the iteration after this one.
        let again = match how {
            "typed again" => typed(),
            "resumed" => bed.outlast(&["resume", &id]),
            _ => bed.outlast(&["resume", "--all"]),
        };
        bed.run(again).code(0);
        let told = "1 @1 - first\n2 @2 - written by 1\n2 @3 1 written by 1\n3 @4 - written by 3\n";
        assert_eq!((bed.text("told").as_str(), bed.paid(), bed.status(&id).as_str()), (told, 3, "completed"));
    });
}

#[test]
fn loop_ends_when_its_command_succeeds_and_says_when_that_cannot_be_run() {
    let bed = Bed::without_mock();
    let agent = "echo $OUTLAST_ITERATION >> ../told; date +%N > changed";
    let until = "echo \"judged $OUTLAST_ITERATION in $PWD\" >> ../judged; test $OUTLAST_ITERATION = 2";
    bed.run(shell(&bed, &["--run", "r", "--loop", "--until", until], agent))
        .code(0)
        .tells(&["the loop is done", "succeeded after iteration 2"]);
    assert_eq!(bed.text("told"), "1\n2\n");
    let work = std::fs::canonicalize(bed.path("work")).unwrap();
    assert_eq!(bed.text("judged"), format!("judged 1 in {0}\njudged 2 in {0}\n", text(&work)));

    let missing = ["--run", "m", "--loop", "--until", "../is-done"];
    bed.run(shell(&bed, &missing, agent)).code(76).tells(&["--until", "exit 127", "outlast resume m"]);
    assert_eq!(bed.status("m"), "interrupted");
    // Put there, it judges the iteration that was finished: none is run again.
    let before = bed.text("told");
    std::os::unix::fs::symlink("/bin/true", bed.path("is-done")).unwrap();
    bed.does(&["resume", "m"]).code(0);
    assert_eq!((bed.text("told"), bed.status("m").as_str()), (before, "completed"));
}

#[test]
fn loop_that_changes_nothing_is_given_up_and_one_that_does_goes_on() {
    // The agent, whether the directory is a repository, and after how many of at most five iterations it ends.
    let cases = [
        ("true", true, 3),
        ("true", false, 5),
        ("echo $OUTLAST_ITERATION > new", true, 5),
        ("git commit -q --allow-empty -m $OUTLAST_ITERATION", true, 5),
        ("test $OUTLAST_ITERATION != 2 || echo > once", true, 5),
        ("test $OUTLAST_ITERATION != 1 || echo > once", true, 4),
    ];
    each(cases.to_vec(), |(agent, is_repository, iterations)| {
        let bed = Bed::without_mock();
        let git = |command: &mut Command| {
            for name in ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"] {
                command.env(name, "t@example.org");
            }
        };
        if is_repository {
            let init = Command::new("git").args(["init", "-q"]).current_dir(bed.path("work")).status();
            assert!(init.unwrap().success());
        }
        let mut run = shell(&bed, &["--run", "r", "--loop", "--max-iterations", "5"], agent);
        git(&mut run);
        let done = bed.run(run);
        let shown = bed.show("r");
        assert_eq!(shown["loop"]["finished"], iterations, "{agent}: {}", done.text);
        let stuck = iterations < 5;
        let (code, status) = if stuck { (76, "failed") } else { (0, "completed") };
        assert_eq!((done.code, shown["status"].as_str().unwrap()), (code, status), "{agent}: {}", done.text);
        assert_eq!(done.text.contains("no progress: three iterations"), stuck, "{agent}: {}", done.text);
        let said = done.text.matches("iterations that change nothing are not noticed").count();
        assert_eq!(said, usize::from(!is_repository), "{agent}: {}", done.text);
        if stuck {
            // By name it is taken up again, and may stand still for as long again.
            let mut again = bed.outlast(&["resume", "r"]);
            git(&mut again);
            bed.run(again);
            assert!(bed.show("r")["loop"]["finished"].as_i64().unwrap() > iterations, "{agent}");
        }
    });
}

#[test]
fn loop_ends_at_its_budget_and_at_a_persons_word() {
    let bed = Bed::new();
    bed.write("PROMPT.md", "first\n");
    bed.run(looping(&bed, &["--run", "r", "--calls", "2"])).code(75).tells(&["call_budget_exceeded"]);
    assert_eq!((bed.status("r").as_str(), bed.paid()), ("halted", 2));

    let waits = "echo x >> ../lives; while [ ! -e ../go ]; do sleep 0.02; done; echo $OUTLAST_ITERATION > n";
    let run = bed.start(shell(&bed, &["--run", "s", "--loop"], waits));
    bed.until_file("lives");
    bed.does(&["stop", "s"]).code(0);
    run.done().code(130);
    assert_eq!(bed.status("s"), "interrupted");
    bed.write("go", "");
    let again = bed.start(bed.outlast(&["resume", "s"]));
    until("it gets on", || (bed.text("lives").lines().count() > 3).then_some(()));
    bed.does(&["cancel", "s"]).code(0);
    again.done().code(76);
    assert_eq!(bed.status("s"), "cancelled");
}

#[test]
fn what_makes_no_loop_is_refused_and_begins_nothing() {
    let bed = Bed::without_mock();
    for (flags, told) in [
        (vec!["--max-iterations", "3"], "--loop"),
        (vec!["--until", "true"], "--loop"),
        (vec!["--loop", "--max-iterations", "0"], "0 is not in 1.."),
        (vec!["--loop", "--stdin", "missing.md"], "missing.md: No such file"),
        (vec!["--loop", "--stdin", "."], "it is no regular file"),
    ] {
        bed.run(shell(&bed, &flags, "touch ../ran")).code(2).tells(&[told]);
    }
    assert!(!bed.path("ran").exists());
    bed.run(shell(&bed, &["--run", "r"], "exit 3; : once")).code(78);
    bed.run(shell(&bed, &["--run", "r", "--loop"], "exit 3; : once"))
        .code(2)
        .tells(&["was begun as no loop"]);
}
