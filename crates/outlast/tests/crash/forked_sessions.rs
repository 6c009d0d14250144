//! A fork of an agent's run has a session of its own, as of its point; its origin's is left alone.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::Value;

use crate::bed::{Bed, text, until};

/// Takes three turns, waits before the last, and dies; and once more after a turn in each fork.
const TURNS: &str = r#"
def turn(text):
    say("user", text)
    ask(text)
    say("assistant", "answer to " + text)
run = os.environ["OUTLAST_RUN_ID"]
if begins:
    turn("one")
    say("assistant", "of a sub-agent", below)
    turn("two")
    open("../up", "w").close()
    open("../gate").read()
    turn("three")
    os.kill(os.getpid(), 9)
with open("../lives", "a") as lives:
    life = {"run": run, "session": session, "said": said(), "below": said(below), "told": sys.argv[-1]}
    lives.write(json.dumps(life) + "\n")
turn("on " + run)
if run != "r" and not os.path.exists("../died-" + run):
    open("../died-" + run, "w").close()
    os.kill(os.getpid(), 9)
"#;

/// The entry of a run's call, counted from 1.
fn call(bed: &Bed, run: &str, no: usize) -> String {
    let journal = bed.journal(run);
    let mut calls = journal.iter().filter(|e| e["kind"] == "call" && e["state"] == "done");
    calls.nth(no - 1).unwrap()["seq"].to_string()
}

fn said(life: &Value) -> Vec<&str> {
    life["said"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

/// Forked before and after its origin went on, and killed while its session is made.
#[test]
fn fork_and_origin_go_on_side_by_side_each_in_its_own_session() {
    let bed = Bed::new();
    bed.gate("gate");
    let program = bed.claude(TURNS);
    let mut command = bed.outlast(&["run", "--run", "r", "--restarts", "0", "--"]);
    command.arg(&program).args(["-p", "do it"]);
    let run = bed.start(command);
    bed.until_file("up");
    let point = call(&bed, "r", 2);
    let fork = |id: &str| {
        let done = bed.does(&["fork", "r", "--at", &point, "--id", id, "--name", id]).code(0);
        done.tells(&["claude goes on in a session of its own, as of there", &format!("outlast resume {id}")]);
    };
    fork("before");
    bed.write("gate", "go");
    run.done().code(75);
    fork("after");
    let origin = bed.sessions().pop().unwrap();
    let whole = fs::read_to_string(&origin).unwrap();
    let mut killed = bed.start(bed.outlast(&["resume", "after"]));
    until("its session is made", || killed.output().contains("a session of its own").then_some(()));
    killed.kill();
    for fork in ["before", "after"] {
        bed.does(&["resume", fork]).code(0).tells(&["goes on in its session"]);
    }
    assert_eq!(fs::read_to_string(&origin).unwrap(), whole, "nothing of a fork's is in it");
    bed.does(&["resume", "r", "--add-restarts", "1"]).code(0);

    let lives: Vec<Value> =
        bed.text("lives").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let shared = ["one", "answer to one", "two", "answer to two"];
    for run in ["before", "after", "r"] {
        let lives: Vec<&Value> = lives.iter().filter(|life| life["run"] == run).collect();
        let (on, answer) = (format!("on {run}"), format!("answer to on {run}"));
        match run {
            "r" => assert_eq!(said(lives[0]), [&shared[..], &["three", "answer to three"]].concat()),
            _ => {
                let (first, last) = (lives.first().unwrap(), lives.last().unwrap());
                assert_eq!(said(first), shared, "{run}");
                assert_eq!(said(last), [&shared[..], &[&on, &answer]].concat(), "{run}");
                assert_eq!(first["session"], last["session"], "{run}");
                let told = first["told"].as_str().unwrap();
                assert!(told.contains(&format!("in a fork of the run r, as of its entry {point}")), "{told}");
            }
        }
        assert!(lives.iter().all(|life| life["below"][0] == "of a sub-agent"), "{run}");
    }
    assert_eq!(bed.sessions().len(), 3);
    let mut sessions: Vec<&str> = lives.iter().map(|life| life["session"].as_str().unwrap()).collect();
    sessions.sort_unstable();
    sessions.dedup();
    assert_eq!(sessions.len(), 3, "{sessions:?}");
    bed.does(&["verify"]).code(0);
}

/// The origin keeps no prompts, and so no copy of its session.
#[test]
fn a_fork_whose_origins_session_is_not_kept_begins_anew_and_leaves_it_alone() {
    let bed = Bed::new();
    let program = bed.claude("say('user', sys.argv[-1])\nask('one')\nassert begins");
    for named in [&[][..], &["--session-id", "11111111-1111-4111-8111-111111111111"]] {
        let run = format!("r{}", named.len());
        let mut command = bed.outlast(&["run", "--run", &run, "--record", "answers", "--"]);
        command.arg(&program).arg("-p").args(named).arg("do it");
        bed.run(command).code(0);
        let before = bed.sessions();
        let kept: Vec<String> = before.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        let name = format!("f{run}");
        let fork = bed.does(&["fork", &run, "--at", &call(&bed, &run, 1), "--name", &name]).code(0);
        let without = "claude begins a new session, without the conversation up to";
        fork.tells(&[without]);
        bed.does(&["resume", &name]).code(0).tells(&[without]);
        assert_eq!(bed.sessions().len(), before.len() + 1, "{named:?}");
        let now: Vec<String> = before.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        assert_eq!(now, kept, "{named:?}");
    }
}

/// Keeps its sessions where nobody finds them, and names them in its requests.
const OPENCODE: &str = r#"#!/usr/bin/env python3
import json, os, sys, urllib.request
with open("../words", "a") as words: words.write(json.dumps(sys.argv[1:]) + "\n")
body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": " ".join(sys.argv[2:])}]}
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
headers["X-Session-Affinity"] = "ses_%d" % os.getpid()
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
"#;

#[test]
fn a_fork_of_an_agent_without_session_files_is_told_the_conversation_in_a_new_session() {
    let bed = Bed::new();
    let program = bed.write("opencode", OPENCODE);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let run = ["run", "--run", "r", "--", text(&program), "run", "-s", "ses_1", "paint it blue"];
    bed.does(&run).code(0);
    let last = bed.journal("r").last().unwrap()["seq"].to_string();
    let told = "opencode begins a new session, and is told the conversation up to";
    bed.does(&["fork", "r", "--at", &last, "--id", "f"]).code(0).tells(&[told]);
    bed.does(&["resume", "f"]).code(0).tells(&[told]);
    let words: Vec<String> = serde_json::from_str(&bed.until_lines("words", 2)[1]).unwrap();
    assert_eq!(words[..3], ["run", "paint it blue", "--"].map(str::to_owned), "it is not its origin's");
    let note = &words[3];
    assert!(note.starts_with("[Outlast] You are a fork of the run r, as of its entry"), "{note}");
    assert!(note.contains("paint it blue") && note.contains("assistant"), "{note}");
}
