//! `outlast crashtest`: it finds planted faults by name, and none in a sound agent.

use serde_json::Value;

use crate::bed::{Bed, Done, LONGEST, each, runs, text, until};

/// Three questions with what an agent does between them: `work(n, said)`.
const AGENT: &str = r#"
import http.client, json, os, random, sys, time, urllib.parse

base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])

def ask(question, stream=False):
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    body = {"model": "gpt-4o-mini", "max_tokens": 50, "stream": stream,
            "messages": [{"role": "user", "content": question}]}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    connection.request("POST", base.path + "/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    said = answer.read()
    assert answer.status == 200, said
    return said.decode() if stream else json.loads(said)["choices"][0]["message"]["content"]

def write(name, text):
    with open(name + ".part", "w") as part:
        part.write(text)
    os.replace(name + ".part", name)

def done():
    return int(open("cursor").read()) if os.path.exists("cursor") else 0
"#;

/// Keeps what it does in files of its own, written whole.
const SOUND: &str = r#"
for n in (1, 2, 3):
    write(f"answer-{n}", ask(f"question {n}", stream=n == 2))
    print(n, flush=True)
"#;

/// Appends a line for each answer: its next life appends the same again.
const APPENDS: &str = r#"
for n in (1, 2):
    ask(f"question {n}")
    with open("invoices", "a") as invoices:
        invoices.write(f"invoice {n}\n")
"#;

/// Tells the model what time it is.
const TELLS_THE_TIME: &str = r#"
ask(f"it is {time.time_ns()}: what now?")
"#;

/// Moves its cursor before the work, which a death then leaves undone.
const LOSES_ITS_PLACE: &str = r#"
for n in range(done() + 1, 4):
    write("cursor", str(n))
    write(f"answer-{n}", ask(f"question {n}"))
"#;

/// Faults of agents besides the three above: a name, the agent, a death that brings it to light, and the words of the finding.
const PLANTED: [(&str, &str, &str, &str); 10] = [
    (
        "a tool without a key",
        r#"
for n in (1, 2):
    os.system(f"echo charge {n} >> charges")
    ask(f"question {n}")
"#,
        "call-left.2:agent",
        "charges has 2 lines more",
    ),
    (
        "an attempt's number in the prompt",
        r#"
for n in (1, 2):
    ask(f"question {n} of attempt {os.environ['OUTLAST_ATTEMPT']}")
"#,
        "call-stored.1:machine",
        "diverged: request 2 is not in the recording",
    ),
    (
        "a half-written file that is taken for a whole one",
        r#"
if not os.path.exists("report"):
    with open("report", "w", buffering=1) as report:
        for n in (1, 2):
            report.write(ask(f"question {n}") + "\n")
"#,
        "call-left.2:tree",
        "report has 1 line fewer",
    ),
    (
        "a lock that the dead hold",
        r#"
os.close(os.open("lock", os.O_CREAT | os.O_EXCL))
ask("question 1")
os.remove("lock")
"#,
        "call-reserved.1:agent",
        "the next life failed: FileExistsError: [Errno 17] File exists: 'lock' (exit code 75)",
    ),
    (
        "a count of starts",
        r#"
write("starts", str(int(open("starts").read()) + 1 if os.path.exists("starts") else 1))
ask("question 1")
"#,
        "call-stored.1:machine",
        "starts has \"2\" where the clean run left \"1\"",
    ),
    (
        "a directory's listing in the prompt",
        r#"
ask(f"question 1: {sorted(os.listdir())}")
write("draft", "")
ask("question 2")
"#,
        "call-left.2:agent",
        "diverged: request 3 is not in the recording",
    ),
    (
        "a file for a while that stays",
        r#"
name = f"draft-{os.getpid()}"
write(name, "")
write("answer", ask("question 1"))
os.remove(name)
"#,
        "call-half.1:agent",
        "is there, and not after the clean run\n  why: after a death in the middle of the answer to call 1 nobody took it away",
    ),
    (
        "a mode that is set too late",
        r#"
if not os.path.exists("key"):
    write("key", "secret")
    ask("question 1")
    os.chmod("key", 0o400)
"#,
        "call-stored.1:agent",
        ", and 400 after the clean run",
    ),
    (
        "a mark of the start that is taken for the end",
        r#"
if not os.path.exists("started"):
    write("started", "")
    write("answer", ask("question 1"))
"#,
        "call-left.1:machine",
        "answer is missing",
    ),
    (
        "a sum of what the last life has done",
        r#"
asked = [n for n in (1, 2) if not os.path.exists(f"answer-{n}")]
for n in asked:
    write(f"answer-{n}", ask(f"question {n}"))
print(len(asked), "answers")
"#,
        "call-left.2:agent",
        "standard output of the last life is not the clean run's",
    ),
];

/// Sound agents besides the one above: one that moves its cursor behind its work, and one that looks before it appends.
const SOUND_TOO: [&str; 2] = [
    r#"
for n in range(done() + 1, 3):
    write(f"answer-{n}", ask(f"question {n}"))
    write("cursor", str(n))
"#,
    r#"
for n in (1, 2):
    ask(f"question {n}")
    with open("ledger", "a+") as ledger:
        ledger.seek(0)
        if f"invoice {n}" not in ledger.read().splitlines():
            ledger.write(f"invoice {n}\n")
"#,
];

/// `outlast crashtest FLAGS -- python3 agent.py` against a fake provider of its own.
fn crashtest(bed: &Bed, agent: &str, flags: &[&str]) -> Done {
    bed.write("work/agent.py", &format!("{AGENT}{agent}"));
    let mut command = bed.outlast(&["crashtest"]);
    command.env("TMPDIR", text(&bed.path("tmp"))).args(flags).args(["--", "python3", "-SE", "agent.py"]);
    // Each death is a run of its own, and its resumption.
    bed.start(command).done_within(20 * LONGEST)
}

fn bed() -> Bed {
    let bed = Bed::without_mock();
    std::fs::create_dir(bed.path("tmp")).unwrap();
    bed
}

// Bug: Ctrl-C ended the test alone. Consequence: the last life waited on for its provider, and the directory with the
// recording stayed. Cause: lives have process groups of their own, and nobody ended them.
#[test]
fn a_signal_ends_the_test_with_its_lives_and_its_directory() {
    let bed = bed();
    let out = bed.path("out");
    // The second life is one of `outlast resume`.
    let waits = format!(
        "ask('now what?')\nif os.environ['OUTLAST_ATTEMPT'] != '1':\n    write({:?}, f'{{os.getpid()}} {{os.getppid()}}')\n    time.sleep(300)\n",
        text(&out)
    );
    bed.write("work/agent.py", &format!("{AGENT}{waits}"));
    for signal in [2, 15] {
        let mut command = bed.outlast(&["crashtest", "--mock", "--only", "call-stored.1:machine"]);
        command.env("TMPDIR", text(&bed.path("tmp"))).args(["--", "python3", "-SE", "agent.py"]);
        let test = bed.start(command);
        bed.until_file("out");
        let lives: Vec<u32> = bed.text("out").split(' ').map(|pid| pid.parse().unwrap()).collect();
        test.signal(signal);
        test.done().code(128 + signal);
        // Whoever was killed is reaped by another process.
        until("nobody is left", || lives.iter().all(|pid| !runs(*pid)).then_some(()));
        assert_left_alone(&bed);
        std::fs::remove_file(&out).unwrap();
    }
}

/// Nothing of the test is left in the temporary directory, nor in the one that was tested.
#[track_caller]
fn assert_left_alone(bed: &Bed) {
    assert_eq!(std::fs::read_dir(bed.path("tmp")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(bed.path("work")).unwrap().count(), 1);
}

#[test]
fn a_sound_agent_that_dies_has_no_findings_at_any_boundary() {
    has_no_findings(["agent", "tree"]);
}

#[test]
fn a_sound_agent_whose_supervisor_dies_has_no_findings_at_any_boundary() {
    has_no_findings(["supervisor", "machine"]);
}

fn has_no_findings(kinds: [&str; 2]) {
    let bed = bed();
    let kinds = kinds.map(|kind| ["--kind", kind]);
    let done = crashtest(&bed, SOUND, &[&["--mock", "--stdout"], kinds.as_flattened()].concat()).code(0);
    let done = done.tells(&["24 deaths at 12 boundaries of 3 calls: no findings", "call-stored.3"]);
    assert!(!done.text.contains("wrong"), "{}", done.text);
    assert!(!done.text.contains(" - "), "a boundary was not reached: {}", done.text);
    assert_left_alone(&bed);
}

#[test]
fn a_file_that_is_appended_to_twice_is_found_and_one_command_repeats_it() {
    let bed = bed();
    let flags = ["--mock", "--kind", "agent", "--kind", "machine", "--bare"];
    let done = crashtest(&bed, APPENDS, &flags).code(1);
    done.tells(&[
        "16 deaths at 8 boundaries of 2 calls: 1 finding",
        "call-reserved.2:agent and 7 more deaths: invoices has 1 line more than after the clean run: \"invoice 1\"",
        "make it an outlast.tool",
        "again: outlast crashtest --only call-reserved.2:agent --mock",
        "without Outlast: 4 deaths, 4 wrong, 6 calls bought again",
    ]);
    let effects =
        ["--mock", "--only", "call-stored.2:supervisor", "--effects", "invoices", "--ignore", "invoices"];
    crashtest(&bed, APPENDS, &effects).code(1).tells(&["1 death at", "invoices has 1 line more"]);
    assert_left_alone(&bed);
}

#[test]
fn each_planted_fault_of_an_agent_is_found_by_name_and_by_the_command_that_repeats_it() {
    each(PLANTED.to_vec(), |(name, agent, death, found)| {
        let done = crashtest(&bed(), agent, &["--mock", "--stdout", "--only", death]);
        let again = format!("again: outlast crashtest --only {death} --mock");
        assert!(done.text.contains(found) && done.text.contains(&again), "{name}: {}", done.text);
        done.code(1).tells(&["1 death at"]);
    });
}

#[test]
fn agents_that_are_sound_in_other_ways_have_no_findings() {
    each(SOUND_TOO.to_vec(), |agent| {
        let flags = ["--mock", "--kind", "agent", "--kind", "machine"];
        crashtest(&bed(), agent, &flags)
            .code(0)
            .tells(&["16 deaths at 8 boundaries of 2 calls: no findings"]);
    });
}

#[test]
fn a_prompt_with_the_time_in_it_is_found_before_anything_is_killed() {
    let bed = bed();
    crashtest(&bed, TELLS_THE_TIME, &["--mock"]).code(1).tells(&[
        "without a death: diverged: request 1 is not in the recording: it has …",
        "it is ",
        "a time, a random number or an id stands in the prompt",
    ]);
}

#[test]
fn what_differs_from_the_recording_is_answered_live_only_within_its_dollars() {
    let (bed, mock) = (bed(), Bed::new());
    bed.write("work/agent.py", &format!("{AGENT}{TELLS_THE_TIME}"));
    let kept = bed.path("agent.rec");
    let test = |live: &[&str]| {
        let mut command =
            bed.outlast(&["crashtest", "--recording", text(&kept), "--max=2", "--kind=machine"]);
        command
            .env("OPENAI_BASE_URL", format!("{}/v1", mock.mock_url()))
            .env("TMPDIR", text(&bed.path("tmp")));
        command.args(live).args(["--", "python3", "-SE", "agent.py"]);
        bed.start(command).done_within(20 * LONGEST)
    };
    test(&[]).code(1).tells(&["this run is paid for", "diverged: request 1 is not in the recording"]);
    assert_eq!(mock.paid(), 1);
    test(&["--live", "0.00001"]).code(1).tells(&["diverged: request 1", "; live: 402"]);
    assert_eq!(mock.paid(), 1);
    test(&["--live", "1"]).code(0).tells(&["not in the recording, answered live (--live)", "no findings"]);
    assert!(mock.paid() >= 5, "{}", mock.paid());
}

#[test]
fn a_cursor_that_is_moved_too_early_is_found_as_work_that_is_missing() {
    let bed = bed();
    let only =
        ["call-left.2:agent", "call-left.2:tree", "call-left.2:machine"].map(|death| ["--only", death]);
    let flags: Vec<&str> = ["--mock", "--json"].into_iter().chain(only.into_iter().flatten()).collect();
    let done = crashtest(&bed, LOSES_ITS_PLACE, &flags).code(1);
    let json = done.text.lines().skip_while(|line| *line != "{").collect::<Vec<_>>().join("\n");
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["sound"], false);
    for death in report["deaths"].as_array().unwrap() {
        assert_eq!(death["reached"], true, "{death}");
        assert_eq!(death["findings"][0]["what"], "answer-2 is missing", "{death}");
        assert!(death["findings"][0]["why"].as_str().unwrap().contains("took it for done"), "{death}");
    }
}

#[test]
fn a_recording_that_is_kept_needs_no_provider_and_its_report_is_written_for_others() {
    let bed = bed();
    let kept = bed.path("agent.rec");
    let recording = ["--recording", text(&kept), "--kind", "tree"];
    let mock = Bed::new();
    bed.write("work/agent.py", &format!("{AGENT}{SOUND}"));
    let mut command = bed.outlast(&["crashtest"]);
    command.env("OPENAI_BASE_URL", format!("{}/v1", mock.mock_url())).env("TMPDIR", text(&bed.path("tmp")));
    command.args(recording).args(["--max", "3", "--", "python3", "-SE", "agent.py"]);
    bed.run(command).code(0).tells(&["this run is paid for", "3 of 12 deaths, spread evenly (--max)"]);
    assert_eq!(mock.paid(), 3);
    drop(mock);
    let [junit, markdown, badge] = ["report.xml", "report.md", "badge.svg"].map(|name| bed.path(name));
    let reports =
        ["--junit", text(&junit), "--markdown", text(&markdown), "--badge", text(&badge), "--max", "2"];
    crashtest(&bed, SOUND, &[recording.as_slice(), &reports].concat()).code(0);
    assert!(
        bed.text("report.xml").contains(r#"tests="3" failures="0" skipped="0""#),
        "{}",
        bed.text("report.xml")
    );
    assert!(bed.text("report.md").contains("2 deaths at 12 boundaries of 3 calls: no findings"));
    assert!(bed.text("badge.svg").contains(">2 deaths, no findings</text>"), "{}", bed.text("badge.svg"));
    crashtest(&bed, APPENDS, &recording).code(1).tells(&["diverged: request 2 is not in the recording"]);
}

#[test]
fn what_cannot_be_tested_is_said_with_its_own_exit_code() {
    let bed = bed();
    crashtest(&bed, "sys.exit(3)", &["--mock"]).code(2).tells(&[" when it was recorded", "hint: "]);
    let mut command = bed.outlast(&["crashtest", "--mock", "--", "true"]);
    command.env("TMPDIR", text(&bed.path("work")));
    bed.run(command).code(2).tells(&["too much to be copied", "set TMPDIR elsewhere"]);
    crashtest(&bed, SOUND, &["--mock", "--effects", "/tmp/x"]).code(2).tells(&["outside of this directory"]);
    crashtest(&bed, SOUND, &["--mock", "--only", "call-stored:agent"]).code(2).tells(&["not a death"]);
    assert_left_alone(&bed);
}
