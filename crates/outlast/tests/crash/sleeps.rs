//! Usage limits: the run sleeps until its provider's limit is over, through whatever happens meanwhile.

use std::process::Command;

use crate::{
    agents::script,
    bed::{Bed, each, runs, until},
};

const INT: i32 = 2;
const STOP: i32 = 19;
const TERM: i32 = 15;
const CONT: i32 = 18;

/// One call; what its provider is to say is the first argument, its dialect the second. With a third it waits
/// for its provider by itself, as an interactive agent does.
const ONE_CALL: &str = r#"
import http.client, json, os, signal, sys, urllib.parse
openai = sys.argv[2] == "openai"
open("../lives", "a").write("x\n")
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL" if openai else "ANTHROPIC_BASE_URL"])
connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
text = "one\nmock: " + sys.argv[1]
body = {"model": "gpt-4o-mini" if openai else "claude-haiku-4-5", "max_tokens": 10,
        "messages": [{"role": "user", "content": text}]}
headers = {"Content-Type": "application/json"}
if openai:
    headers["Authorization"] = "Bearer " + os.environ["OPENAI_API_KEY"]
else:
    headers |= {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01"}
connection.request("POST", base.path + ("/chat/completions" if openai else "/v1/messages"), json.dumps(body), headers)
answer = connection.getresponse()
open("../told", "a").write(f"{answer.status} {answer.getheader('retry-after')}\n")
if answer.status == 429 and len(sys.argv) > 3: signal.pause()
if answer.status != 200: sys.exit(1)
"#;

fn one_call(bed: &Bed, says: &str) -> Command {
    script(bed, &["--run", "r"], ONE_CALL, &[says, "openai"])
}

/// A run that sleeps for hours, under its supervisor.
fn asleep(bed: &Bed) -> crate::bed::Proc {
    let run = bed.start(one_call(bed, "limit 5h 1"));
    bed.until_file("lives");
    bed.until_status("r", "sleeping");
    run
}

/// Checks that the run went on once and paid for one call, and that the limit did not count as a death.
#[track_caller]
fn assert_went_on_once(bed: &Bed) {
    assert_eq!(
        (bed.status("r").as_str(), bed.paid(), bed.text("lives").as_str()),
        ("completed", 1, "x\nx\n")
    );
    let shown = bed.show("r");
    let attempts = shown["attempts"].as_array().unwrap();
    let ends: Vec<_> =
        attempts.iter().map(|a| (a["exit"]["at_limit"].as_bool(), a["died"].as_bool())).collect();
    assert_eq!(ends, [(Some(true), Some(false)), (Some(false), Some(false))], "{shown}");
    assert_eq!((bed.spent("r", "restarts"), &shown["wake_at"]), (0, &serde_json::Value::Null));
}

#[test]
fn usage_limit_is_a_sleep_and_no_death() {
    each(vec!["openai", "anthropic"], |dialect| {
        let bed = Bed::new();
        let run = script(&bed, &["--run", "r", "--restarts", "0"], ONE_CALL, &["limit 2s 1", dialect]);
        bed.run(run).code(0).tells(&["usage limit: r sleeps until", "`outlast wake r` starts it now"]);
        assert_went_on_once(&bed);
        assert!(bed.text("told").starts_with("429 2\n"), "it passes unchanged: {}", bed.text("told"));
        bed.does(&["show", "r", "-v"]).tells(&["at a usage limit (exited with 1)"]);
    });
}

// Bug: an agent that told its person of the limit and exited with 0 was completed. Consequence: its task was lost. Cause:
// its exit code was judged, and not the limit that stood.
#[test]
fn agent_that_exits_with_0_at_a_limit_has_not_completed() {
    let bed = Bed::new();
    let program = ONE_CALL.replace("sys.exit(1)", "sys.exit(0)");
    bed.run(script(&bed, &["--run", "r"], &program, &["limit 1s 1", "openai"]))
        .code(0)
        .tells(&["usage limit: r sleeps until"]);
    assert_eq!((bed.status("r").as_str(), bed.text("lives").as_str()), ("completed", "x\nx\n"));
    assert_eq!(bed.text("told"), "429 1\n200 None\n");
}

#[test]
fn run_whose_supervisor_is_killed_while_it_sleeps_is_interrupted_and_goes_on_at_its_time_once() {
    let bed = Bed::new();
    let mut run = bed.start(one_call(&bed, "limit 4s 1"));
    bed.until_file("lives");
    bed.until_status("r", "sleeping");
    run.kill();
    let at = bed.show("r")["wake_at"].as_str().unwrap().to_owned();
    let until = at.replace('T', " ").split('.').next().unwrap().to_owned();
    bed.does(&["show", "r"]).code(0).tells(&["interrupted", "nobody drives it", &until, "outlast resume r"]);
    let resumers =
        [bed.start(bed.outlast(&["resume", "--all"])), bed.start(bed.outlast(&["resume", "--all"]))];
    for resumer in resumers {
        // The slower of the two may find it held, asleep or awake.
        let done = resumer.done();
        assert!([0, 77].contains(&done.code), "{}", done.text);
    }
    assert_went_on_once(&bed);
}

#[test]
fn person_wakes_a_run_that_sleeps_and_a_second_supervisor_is_refused() {
    let bed = Bed::new();
    let run = asleep(&bed);
    bed.does(&["resume", "r"]).code(77);
    bed.does(&["show", "r", "-v"]).tells(&["sleeps    until", "outlast wake r"]);
    assert_eq!(bed.text("lives"), "x\n");
    bed.does(&["wake", "r"]).code(0).tells(&["its supervisor starts it now"]);
    run.done().code(0).tells(&["woken"]);
    assert_went_on_once(&bed);
    bed.does(&["wake", "r"]).code(1).tells(&["it does not sleep"]);
}

#[test]
fn stopped_by_a_person_it_begins_when_it_is_resumed_and_by_the_machine_it_sleeps_on() {
    each(vec!["stop", "ctrl-c", "term"], |by| {
        let bed = Bed::new();
        let run = asleep(&bed);
        match by {
            "stop" => drop(bed.does(&["stop", "r"]).code(0)),
            "ctrl-c" => run.signal(INT),
            _ => run.signal(TERM),
        }
        run.done().code(130).tells(&["go on with `outlast resume r`"]);
        assert_eq!(bed.status("r"), "interrupted", "{by}");
        if by == "term" {
            let again = bed.start(bed.outlast(&["resume", "--all"]));
            until("it is waited for again", || again.output().contains("sleeps until").then_some(()));
            bed.does(&["wake", "r"]).code(0).tells(&["its supervisor starts it now"]);
            again.done().code(0);
        } else {
            bed.does(&["resume", "--all"]).code(0).tells(&["0 runs to resume"]);
            bed.does(&["resume", "r"]).code(0);
        }
        assert_went_on_once(&bed);
    });
}

#[test]
fn agent_that_waits_at_a_limit_is_stopped_there_only_if_asked() {
    let bed = Bed::new();
    let flags = ["--run", "r", "--stop-at-limit", "--grace", "200ms"];
    let run = bed.start(script(&bed, &flags, ONE_CALL, &["limit 5h 1", "openai", "waits"]));
    bed.until_file("lives");
    bed.until_status("r", "sleeping");
    bed.does(&["wake", "r"]).code(0);
    run.done().code(0);
    assert_went_on_once(&bed);
}

#[test]
fn sleeper_that_was_taken_for_dead_leaves_its_run_to_who_took_it_up() {
    let bed = Bed::new();
    let run = asleep(&bed);
    run.signal(STOP);
    let _server = crate::stopped::unseen_server(&bed);
    let second = until("another waits for it", || {
        let resumed = bed.start(bed.outlast(&["resume", "r"]));
        let waits = until("it is refused, or waits", || {
            let waits = resumed.output().contains("sleeps until");
            (waits || !runs(resumed.pid())).then_some(waits)
        });
        waits.then_some(resumed)
    });
    run.signal(CONT);
    run.done().code(77).tells(&["is held by"]);
    bed.does(&["wake", "r"]).code(0).tells(&["its supervisor starts it now"]);
    second.done().code(0);
    assert_went_on_once(&bed);
}
