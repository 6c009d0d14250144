//! An agent that asks for the same thing again and again is told, held or halted; one that works is not.

use serde_json::Value;

use crate::{
    agents::script,
    bed::{Bed, kill, until},
};

/// Calls a tool so many times, each time with the results so far. What the tool says is an expression of Python's.
const LOOPS: &str = r#"
import http.client, json, os, sys, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
messages = [{"role": "user", "content": "wait for it"}]
name, arguments = (sys.argv[3:] + ["status", "{}"])[:2]
for n in range(int(sys.argv[1])):
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    body = {"model": "gpt-4o-mini", "max_tokens": 10, "messages": messages}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    connection.request("POST", base.path + "/chat/completions", json.dumps(body, separators=(",", ":")), headers)
    answer = connection.getresponse()
    assert answer.read()
    if answer.status == 402: sys.exit(1)
    call = {"id": "call_%d" % n, "type": "function", "function": {"name": name, "arguments": arguments}}
    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    messages.append({"role": "tool", "tool_call_id": call["id"], "content": eval(sys.argv[2])})
"#;

/// Begins a process in a group of its own, and asks its model in turn until that has ended. A later life begins none, and
/// asks once more than the first.
const WAITS: &str = r#"
import http.client, json, os, subprocess, sys, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
first = not os.path.exists("../lived")
open("../lived", "w").close()
build = subprocess.Popen(["cat", "../gate"], start_new_session=True) if first else None
open("../pid", "w").write(str(os.getpid()))
messages = [{"role": "user", "content": "build it"}]
n, said = 0, ""
while True:
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    body = {"model": "gpt-4o-mini", "max_tokens": 10, "messages": messages}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    connection.request("POST", base.path + "/chat/completions", json.dumps(body, separators=(",", ":")), headers)
    answer = connection.getresponse()
    assert answer.read() and answer.status == 200, answer.status
    if said: break
    if build is None:
        said = "done" if n == 8 else ""
    elif build.poll() is not None:
        said = "done"
    call = {"id": "call_%d" % n, "type": "function", "function": {"name": "wait", "arguments": "{\"job\":1}"}}
    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
    n += 1
"#;

struct Told {
    calls: i64,
    shown: String,
    said: String,
}

fn looped(flags: &[&str], arguments: &[&str]) -> (Bed, Told) {
    let bed = Bed::new();
    let flags = [&["--run", "r"], flags].concat();
    let said = bed.run(script(&bed, &flags, LOOPS, arguments)).text;
    let calls = bed.show("r")["money"]["busy_waiting_calls"].as_i64().unwrap();
    let shown = bed.does(&["show", "r"]).code(0).text;
    (bed, Told { calls, shown, said })
}

#[test]
fn a_poll_that_is_told_nothing_new_is_told() {
    let (bed, told) = looped(&[], &["30", "'in progress, %d s' % n"]);
    // The first request has no result yet, and those after it nothing to repeat.
    assert_eq!(told.calls, 27);
    assert!(told.shown.contains("27 calls that brought nothing new, 27 in a row"), "{}", told.shown);
    assert_eq!(told.said.matches("the agent waits busily: 5 calls in a row").count(), 1, "{}", told.said);
    assert_eq!(bed.journal("r").last().unwrap()["call"]["waits"], 27);
    assert!(!told.said.contains("is held"), "{}", told.said);
}

#[test]
fn an_agent_that_works_is_neither_told_nor_held() {
    let shell = |command: &str| serde_json::json!({"command": command}).to_string();
    for (says, name, arguments) in [
        ("'file ' + chr(97 + n % 26) * (1 + n // 26)", "status", "{}".to_owned()),
        ("'%d %%' % n", "status", "{}".to_owned()),
        ("'test result: FAILED. 3 passed; 1 failed'", "Bash", shell("cargo test")),
        ("'503'", "Bash", shell("sleep 1; curl -X POST http://127.0.0.1/deploy")),
    ] {
        let (_bed, told) = looped(&["--no-progress", "hold"], &["30", says, name, &arguments]);
        assert_eq!(told.calls, 0, "{says}");
        assert!(!told.said.contains("waits busily") && !told.said.contains("is held"), "{}", told.said);
        assert!(!told.shown.contains("nothing new"), "{}", told.shown);
    }
}

/// Runs an agent that waits for a process of its own, until its next call is held.
fn held(bed: &Bed) -> crate::bed::Proc {
    bed.gate("gate");
    let run = bed.start(script(bed, &["--run", "r", "--no-progress", "hold"], WAITS, &[]));
    until("its call is held", || run.output().contains("the agent's next call is held").then_some(()));
    run
}

#[test]
fn a_held_call_goes_on_when_the_process_that_it_waits_for_has_ended() {
    let bed = Bed::new();
    let run = held(&bed);
    // Two requests before anything can repeat, one that is told first, four that repeat it: the next one is held.
    assert_eq!(bed.paid(), 7);
    std::fs::write(bed.path("gate"), "done").unwrap();
    let done = run.done().code(0);
    assert_eq!(bed.paid(), 9, "{}", done.text);
    assert_eq!(done.text.matches("is held").count(), 1, "{}", done.text);
}

#[test]
fn a_held_agent_that_is_killed_is_answered_from_the_journal_and_not_held_for_that() {
    let bed = Bed::new();
    let run = held(&bed);
    assert!(kill(bed.text("pid").parse().unwrap(), 9));
    let done = run.done().code(0);
    assert_eq!(bed.paid(), 10, "{}", done.text);
    assert_eq!(done.text.matches("is held").count(), 1, "{}", done.text);
}

#[test]
fn a_run_that_asks_for_it_is_halted_with_its_evidence() {
    let (bed, told) = looped(&["--no-progress", "halt"], &["300", "'queued'"]);
    assert!(
        told.said.contains("200 calls in a row since entry 4 brought nothing new: status"),
        "{}",
        told.said
    );
    let shown = bed.show("r");
    assert_eq!((&shown["status"], &shown["halt"]["code"]), (&"halted".into(), &"no_progress".into()));
    let waited = &shown["halt"]["waited"];
    assert_eq!((&waited["calls"], &waited["first"]), (&200.into(), &4.into()), "{shown}");
    assert_eq!(bed.paid(), 202);
    bed.does(&["show", "r"]).code(0).tells(&[
        "brought nothing new",
        "look at what it waits for",
        "outlast resume r",
    ]);
    // The calls before the halt are recorded, and the rest of the script is too short for another halt.
    bed.does(&["resume", "r"]).code(0);
    assert_eq!(bed.paid(), 300);
}

#[test]
fn a_directory_may_not_say_what_becomes_of_an_agent_that_waits() {
    let bed = Bed::new();
    bed.write("work/outlast.toml", "no_progress = \"warn\"\n");
    bed.does(&["run", "--", "true"]).code(2).tells(&["outlast.toml", "no_progress"]);
    bed.write("work/outlast.toml", "");
    bed.does(&["run", "--no-progress", "stop", "--", "true"]).code(2).tells(&["warn", "hold", "halt"]);
    std::fs::create_dir_all(bed.path(".config/outlast")).unwrap();
    bed.write(".config/outlast/outlast.toml", "no_progress = \"hold\"\n");
    bed.does(&["run", "--run", "r", "--", "true"]).code(0);
    let policy: Value = bed.show("r")["policy"].clone();
    assert_eq!(policy["no_progress"], "hold", "{policy}");
}
