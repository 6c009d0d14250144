//! An agent's session file is copied into the store as it grows, and put back where it is damaged or gone.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use crate::bed::{Bed, each, kill, until};

/// A program that keeps its session as Claude Code does, and goes on with what its file holds.
const CLAUDE: &str = r#"#!/usr/bin/env python3
import http.client, json, os, sys, urllib.parse
begins = "--session-id" in sys.argv
session = sys.argv[sys.argv.index("--session-id" if begins else "--resume") + 1]
place = os.environ["HOME"] + "/.claude/projects/-work/"
path = place + session + ".jsonl"
os.makedirs(place + session + "/subagents", exist_ok=True)
def say(kind, text, at=path):
    with open(at, "a") as file:
        file.write(json.dumps({"type": kind, "text": text}) + "\n")
def ask(text):
    base = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    body = {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
    headers = {"anthropic-version": "2023-06-01", "Content-Type": "application/json"}
    headers["Authorization"] = "Bearer " + os.environ["ANTHROPIC_AUTH_TOKEN"]
    connection.request("POST", base.path + "/v1/messages", json.dumps(body), headers)
    assert connection.getresponse().read()
if begins:
    say("user", "do it")
    ask("do it")
    for n in range(20):
        say("assistant", "done %d" % n)
    say("assistant", "of a sub-agent", place + session + "/subagents/agent-a.jsonl")
    open("../pid", "w").write(str(os.getpid()))
    open("../gate").read()
lines = [json.loads(line) for line in open(path)]
assert [line["text"] for line in lines] == ["do it"] + ["done %d" % n for n in range(20)], lines
assert json.loads(open(place + session + "/subagents/agent-a.jsonl").read())["text"] == "of a sub-agent"
ask("go on")
"#;

#[derive(Clone, Copy, Debug)]
enum Damage {
    Gone,
    Cut(usize),
    /// A byte in the middle is another.
    Flipped,
    None,
}

fn session_file(bed: &Bed) -> PathBuf {
    let entries = fs::read_dir(bed.path(".claude/projects/-work")).unwrap().flatten();
    entries.map(|e| e.path()).find(|path| path.extension().is_some_and(|e| e == "jsonl")).unwrap()
}

/// Whether all that the agent has said so far is in the store, its sub-agent's file included.
fn is_copied(bed: &Bed) -> bool {
    let copied = |name: &str| {
        bed.journal("r")
            .iter()
            .any(|e| e["key"].as_str().is_some_and(|key| key.contains("transcript:") && key.ends_with(name)))
    };
    copied("agent-a.jsonl")
}

fn is_damaged(damage: Damage) {
    let bed = Bed::new();
    bed.gate("gate");
    let program = bed.write("claude", CLAUDE);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = bed.outlast(&["run", "--run", "r", "--"]);
    command.arg(&program).args(["-p", "do it"]);
    let run = bed.start(command);
    let pid: u32 = until("the agent waits", || bed.text("pid").parse().ok());
    until("its session is copied", || is_copied(&bed).then_some(()));
    let path = session_file(&bed);
    let whole = fs::read(&path).unwrap();
    match damage {
        Damage::Gone => fs::remove_dir_all(bed.path(".claude/projects")).unwrap(),
        Damage::Cut(at) => fs::write(&path, &whole[..at.min(whole.len() - 1)]).unwrap(),
        Damage::Flipped => {
            let mut bytes = whole.clone();
            bytes[whole.len() / 2] = b'\n';
            fs::write(&path, bytes).unwrap();
        }
        Damage::None => {}
    }
    assert!(kill(pid, 9));
    let done = run.done().code(0).tells(&["goes on in its session"]);
    assert_eq!(fs::read(&path).unwrap(), whole, "{damage:?}");
    let beside = fs::exists(format!("{}.damaged", path.display())).unwrap();
    match damage {
        Damage::None => assert!(!beside && !done.text.contains("put back"), "{}", done.text),
        Damage::Gone => drop(done.tells(&["was gone, and is put back"])),
        _ => {
            assert!(beside, "{damage:?}");
            done.tells(&["was damaged, and is put back"]);
        }
    }
    if !matches!(damage, Damage::None) {
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_session_whose_file_is_damaged_or_gone_is_gone_on_with() {
    let cuts = [0, 1, 17, 300, usize::MAX].map(Damage::Cut);
    each(cuts.into_iter().chain([Damage::Gone, Damage::Flipped, Damage::None]).collect(), is_damaged);
}

#[test]
fn a_run_that_keeps_no_prompts_keeps_no_session() {
    let bed = Bed::new();
    let program = bed.write("claude", &CLAUDE.replace("open(\"../gate\").read()", ""));
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    for (id, record, kept) in [("r", "answers", false), ("s", "all", true)] {
        let mut command = bed.outlast(&["run", "--run", id, "--record", record, "--"]);
        command.arg(&program).args(["-p", "do it"]);
        bed.run(command).code(0);
        let has =
            bed.journal(id).iter().any(|e| e["key"].as_str().is_some_and(|key| key.contains("transcript")));
        assert_eq!(has, kept, "{record}");
    }
}

#[test]
fn conversations_are_exported_for_people_and_for_programs() {
    let bed = Bed::new();
    let program = bed.write("claude", &CLAUDE.replace("open(\"../gate\").read()", ""));
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = bed.outlast(&["run", "--run", "r", "--"]);
    command.arg(&program).args(["-p", "do it"]);
    bed.run(command).code(0);
    let told = bed.does(&["export", "r", "--transcript"]).code(0);
    let told = told.tells(&["# r", "### user\n\ndo it\n", "### user\n\ngo on\n", "### assistant\n\nanswer "]);
    assert!(told.text.find("do it").unwrap() < told.text.find("go on").unwrap(), "{}", told.text);
    let object = bed.json(&["export", "r", "--transcript"]);
    assert_eq!(object["conversations"].as_array().unwrap().len(), 2, "{object}");
    assert_eq!(object["conversations"][1]["turns"][0]["parts"][0]["text"], "go on");
}
