//! Signals to the supervisor, on a terminal and without one.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use crate::{
    agents::{UP_UNTIL_GO, script, shell},
    bed::{Bed, OUTLAST, Proc, each, marked, runs, state, until},
};

const INT: i32 = 2;
const TERM: i32 = 15;

#[test]
fn signals_interrupt_a_run_and_leave_nobody_behind() {
    // Signal, what the agent does about its own, and whether it was a person.
    let kind = "(setsid sleep 60 &) ; sleep 60 &";
    let stubborn = "trap 'exit 0' TERM INT; sleep 60 & ";
    let cases = vec![
        (INT, kind, true),
        (3, kind, true),
        (TERM, kind, false),
        (1, kind, false),
        // An exit after our own signal is an interruption, also with 0.
        (TERM, stubborn, false),
        (INT, stubborn, true),
    ];
    each(cases, |(signal, agent, person)| {
        let bed = Bed::without_mock();
        let run = bed.start(shell(&bed, &["--run", "r"], &format!("{agent}\n{UP_UNTIL_GO}")));
        bed.until_lines("up", 1);
        let environ = std::fs::read(format!("/proc/{}/environ", bed.text("up").trim())).unwrap();
        let environ = String::from_utf8(environ).unwrap();
        let mark = environ.split('\0').find(|e| e.starts_with("OUTLAST_MARK=")).unwrap().to_owned();
        assert!(marked(&mark).len() >= 2);
        run.signal(signal);
        run.done().code(130).tells(&["r · interrupted", "`outlast resume r`"]);
        let shown = bed.show("r");
        assert_eq!((&shown["status"], &shown["stop_requested"]), (&"interrupted".into(), &person.into()));
        assert_eq!(marked(&mark), Vec::<u32>::new(), "signal {signal}");
    });
}

#[test]
fn second_ctrl_c_forces() {
    let bed = Bed::without_mock();
    let agent = format!("trap 'echo asked >> ../asked' INT TERM\n{UP_UNTIL_GO}");
    let run = bed.start(shell(&bed, &["--run", "r"], &agent));
    bed.until_lines("up", 1);
    run.signal(INT);
    bed.until_lines("asked", 1);
    assert!(runs(run.pid()));
    run.signal(INT);
    run.done().code(130);
    assert_eq!(bed.show("r")["attempts"][0]["how"], "stopped (killed by SIGKILL)");
}

#[test]
fn ctrl_c_while_the_rest_of_a_dead_agent_is_ended_is_not_lost() {
    // Bug: Ctrl-C between an agent's death and the end of its last child only hurried that end.
    // Consequence: the agent was started again. Cause: signals were then read for "now" and nothing else.
    let bed = Bed::without_mock();
    let agent = "echo x >> ../lives
        python3 -SE -c 'import signal; signal.signal(15, lambda *_: open(\"../asked\", \"w\").close())
open(\"../up\", \"w\").close()
while True: signal.pause()' &
        while [ ! -e ../up ]; do sleep 0.02; done; exit 1";
    let run = bed.start(shell(&bed, &["--run", "r"], agent));
    bed.until_file("asked");
    run.signal(INT);
    run.done().code(130);
    assert_eq!(bed.text("lives"), "x\n");
    assert_eq!(bed.show("r")["stop_requested"], true);
}

/// Asks for an answer that never ends.
const HANGS: &str = r#"
import http.client, json, os, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
body = {"model": "gpt-4o-mini", "max_tokens": 10, "messages": [{"role": "user", "content": "x\nmock: hang"}]}
headers = {"Content-Type": "application/json", "X-Outlast-Run": "r"}
if "OUTLAST_RUN_ID" in os.environ:
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
connection.request("POST", base.path + "/chat/completions", json.dumps(body), headers)
connection.getresponse().read()
"#;

#[test]
fn answer_that_never_comes_is_waited_for_until_ctrl_c_leaves_it_in_doubt() {
    // Bug: after a stop, an upstream that hung held `outlast run` for two minutes, deaf to Ctrl-C and without a word.
    // Consequence: people killed it. Cause: nobody read signals while calls in flight were waited for.
    let bed = Bed::new();
    let run = bed.start(script(&bed, &["--run", "r"], HANGS, &[]));
    until("the call is out", || (bed.paid() == 1).then_some(()));
    run.signal(INT);
    until("it says what it waits for", || {
        run.output().contains("waiting for answers in flight").then_some(())
    });
    run.signal(INT);
    run.done().code(130);
    assert_eq!(bed.journal("r")[0]["state"], "unknown");
}

#[test]
fn second_signal_ends_a_server_that_waits_for_an_answer() {
    // Bug: a server that was stopped waited up to 15 minutes for a hanging upstream, deaf to a second Ctrl-C.
    // Consequence: it had to be killed. Cause: only the first signal was read.
    let bed = Bed::new();
    let server = bed.start(bed.outlast(&["serve", "--listen", "127.0.0.1:0"]));
    let url = until("it serves", || {
        let output = server.output();
        Some(output.split_once("serving on ")?.1.split_once(',')?.0.to_owned())
    });
    let mut agent = Command::new("python3");
    agent.args(["-SE", "-c", HANGS]).env("OPENAI_BASE_URL", format!("{url}/v1")).env_remove("OUTLAST_RUN_ID");
    let _agent = bed.start(agent);
    until("the call is out", || (bed.paid() == 1).then_some(()));
    server.signal(TERM);
    until("it says what it waits for", || {
        server.output().contains("waiting for calls in flight").then_some(())
    });
    server.signal(TERM);
    server.done().code(0);
    assert_eq!(bed.journal("r")[0]["state"], "unknown");
}

#[test]
fn suspended_supervisor_suspends_its_agent_and_both_go_on() {
    let bed = Bed::without_mock();
    let run = bed.start(shell(&bed, &["--run", "r"], UP_UNTIL_GO));
    let agent = bed.until_lines("up", 1)[0].parse().unwrap();
    run.signal(20);
    until("both are stopped", || (state(run.pid()) == Some('T') && state(agent) == Some('T')).then_some(()));
    run.signal(18);
    until("the agent goes on", || (state(agent) != Some('T')).then_some(()));
    bed.write("go", "");
    run.done().code(0);
    assert_eq!(bed.show("r")["attempts"].as_array().unwrap().len(), 1);
}

#[test]
fn orphans_that_end_are_no_zombies() {
    let bed = Bed::without_mock();
    let orphans = "for i in 1 2 3 4 5; do (sh -c 'exit 3' & (setsid sh -c 'exit 4' &) ); done\n";
    let run = bed.start(shell(&bed, &["--run", "r"], &format!("{orphans}{UP_UNTIL_GO}")));
    bed.until_lines("up", 1);
    until("all are reaped", || {
        let supervisor = run.supervisor().to_string();
        let output = Command::new("ps").args(["-o", "stat=,pid=", "--ppid", &supervisor]).output();
        let children = String::from_utf8(output.unwrap().stdout).unwrap();
        (children.lines().count() == 1 && !children.contains('Z')).then_some(())
    });
    bed.write("go", "");
    run.done().code(0);
}

/// `outlast run --pty never` on a terminal of its own, made by script(1): the agent reads that terminal.
struct Tty {
    proc: Proc,
}

impl Tty {
    fn run(bed: &Bed, agent: &str) -> Tty {
        bed.write("agent.sh", agent);
        let line =
            format!("exec {OUTLAST} run --pty never --run r -- sh {}/agent.sh", bed.path("").display());
        let mut command = Command::new("script");
        let around = bed.outlast(&[]);
        command.args(["-qefc", &line, "/dev/null"]).env_clear().current_dir(bed.path("work"));
        command.envs(around.get_envs().filter_map(|(k, v)| Some((k, v?)))).env("TERM", "dumb");
        Tty {
            proc: bed.start({
                command.stdin(Stdio::piped());
                command
            }),
        }
    }

    fn types(&mut self, text: &str) {
        self.proc.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }
}

#[test]
fn ctrl_c_on_a_terminal_interrupts_and_starts_nobody_again() {
    // Bug: on a terminal Ctrl-C ends the agent before the supervisor has looked; it could take that for a death.
    // Consequence: now and then Ctrl-C restarted the agent. Cause: the end was judged without a look at the signals.
    each((0..8).collect(), |_| {
        let bed = Bed::without_mock();
        let mut tty = Tty::run(&bed, UP_UNTIL_GO);
        bed.until_lines("up", 1);
        tty.types("\x03");
        tty.proc.done().code(130).tells(&["r · interrupted"]);
        assert_eq!(bed.text("up").lines().count(), 1);
        assert_eq!(bed.show("r")["stop_requested"], true);
    });
}

#[test]
fn second_ctrl_c_on_a_terminal_forces() {
    let bed = Bed::without_mock();
    let mut tty = Tty::run(&bed, &format!("trap 'echo asked >> ../asked' INT TERM\n{UP_UNTIL_GO}"));
    bed.until_lines("up", 1);
    tty.types("\x03");
    bed.until_lines("asked", 1);
    tty.types("\x03");
    tty.proc.done().code(130);
    assert_eq!(bed.text("up").lines().count(), 1);
}

#[test]
fn agent_reads_its_terminal_as_it_was_after_one_that_died_with_it() {
    // Bug: an agent that was killed in raw mode, or with the terminal given to a group of its own, left it so.
    // Consequence: the next attempt (and the person's shell) had no echo, or was stopped when it read.
    // Cause: nobody put the terminal back.
    let bed = Bed::without_mock();
    let agent = r#"
        stty -a > ../modes-$OUTLAST_ATTEMPT
        if [ $OUTLAST_ATTEMPT = 1 ]; then
            stty raw -echo
            exec python3 -SE -c 'import os, signal
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
os.setpgid(0, 0)
os.tcsetpgrp(0, os.getpid())
os.kill(os.getpid(), 9)'
        fi
        echo up >> ../up
        read line
        echo "$line" > ../read"#;
    let mut tty = Tty::run(&bed, agent);
    bed.until_lines("up", 1);
    tty.types("hello\n");
    tty.proc.done().code(0);
    assert_eq!(bed.text("read"), "hello\n");
    assert_eq!(bed.text("modes-2"), bed.text("modes-1"));
}
