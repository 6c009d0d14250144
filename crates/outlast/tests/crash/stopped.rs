//! A supervisor that is stopped for longer than its lease: seen by those who can see it, and by those who cannot.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    agents::{UP_UNTIL_GO, script, shell},
    bed::{Bed, Proc, is_root, kill, until},
    web::{free_port, serve, serve_by},
};

const STOP: i32 = 19;
const CONT: i32 = 18;
const LEASE: Duration = Duration::from_secs(5);

/// Three calls; before the second it waits until it may go on, and says so.
const THREE_CALLS: &str = r#"
import http.client, json, os, sys, time, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
open("../lives", "a").write("x\n")
for i in range(3):
    if i == 1:
        open("../up", "w").close()
        while not os.path.exists("../go"): time.sleep(0.01)
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    text = f"call {i}" + (sys.argv[1].replace("\\n", "\n") if i == 0 else "")
    body = {"model": "gpt-4o-mini", "max_tokens": 10, "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    connection.request("POST", base.path + "/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200: sys.exit(1)
"#;

/// `outlast` where this machine's other processes are not seen, as in another container: its own pid namespace.
pub fn unseen(command: &Command) -> Command {
    let mut inside = Command::new("unshare");
    if !is_root() {
        inside.args(["--user", "--map-root-user"]);
    }
    inside.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(command.get_program());
    inside.args(command.get_args()).env_clear().current_dir(command.get_current_dir().unwrap());
    inside.envs(command.get_envs().filter_map(|(k, v)| Some((k, v?)))).stdin(std::process::Stdio::null());
    inside
}

pub fn unseen_server(bed: &Bed) -> Proc {
    serve_by(bed, unseen(&bed.outlast(&["serve", "--listen", &free_port().to_string()])))
}

#[test]
fn stopped_supervisor_that_can_be_seen_is_never_taken_for_dead() {
    let bed = Bed::new();
    let run = bed.start(script(&bed, &["--run", "r"], THREE_CALLS, &[""]));
    bed.until_file("up");
    run.signal(STOP);
    let _server = serve(&bed, free_port(), &[]);
    bed.write("go", "");
    let since = Instant::now();
    until("a lease is over by any clock", || (since.elapsed() > LEASE + LEASE / 2).then_some(()));
    assert_eq!(bed.status("r"), "running");
    bed.does(&["resume", "r"]).code(77);
    run.signal(CONT);
    run.done().code(0);
    assert_eq!((bed.paid(), bed.text("lives").as_str()), (3, "x\n"));
}

#[test]
fn stopped_supervisor_that_was_declared_dead_claims_its_run_again_and_pays_nothing_twice() {
    let bed = Bed::new();
    let run = bed.start(script(&bed, &["--run", "r"], THREE_CALLS, &[""]));
    bed.until_file("up");
    run.signal(STOP);
    let _server = unseen_server(&bed);
    bed.until_status("r", "interrupted");
    bed.write("go", "");
    run.signal(CONT);
    run.done().code(0).tells(&["taken for dead", "claiming the run again"]);
    assert_eq!(
        (bed.paid(), bed.text("lives").as_str(), bed.status("r").as_str()),
        (3, "x\nx\n", "completed")
    );
}

/// Holds the store's lock until it is killed: meanwhile nobody is in the middle of a commit.
fn lock(bed: &Bed) -> Child {
    let program = "import sqlite3, sys\n\
                   store = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)\n\
                   store.execute('BEGIN IMMEDIATE')\n\
                   print('locked', flush=True)\n\
                   sys.stdin.read()";
    let mut lock = Command::new("python3");
    lock.args(["-c", program]).arg(bed.store()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut lock = lock.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(lock.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "locked\n");
    lock
}

/// Bug: a run that was cancelled while its guardian and its supervisor stood still was told to have gone on.
/// Consequence: who suspends a machine, or stops a job, and thinks better of it, could pay for calls of a cancelled run.
/// Cause: a process that was stopped in the middle of a commit holds the store's lock, so that the cancel was not written;
/// it says so, and ends with an error.
#[test]
fn run_that_is_cancelled_while_its_guardian_and_its_supervisor_stand_still_pays_for_nothing_more() {
    crate::bed::each(vec!["guardian first", "supervisor first"], |order| {
        let bed = Bed::new();
        let run = bed.start(script(&bed, &["--run", "r"], THREE_CALLS, &[""]));
        bed.until_file("up");
        let mut both = [run.pid(), run.supervisor()];
        assert_ne!(both[0], both[1]);
        let mut lock = lock(&bed);
        assert!(both.iter().all(|pid| kill(*pid, STOP)));
        lock.kill().unwrap();
        lock.wait().unwrap();
        bed.does(&["cancel", "r"]).code(0).tells(&["cancelled"]);
        bed.write("go", "");
        if order == "supervisor first" {
            both.reverse();
        }
        assert!(both.iter().all(|pid| kill(*pid, CONT)));
        run.done();
        assert_eq!((bed.paid(), bed.status("r").as_str()), (1, "cancelled"), "{order}");
        assert_eq!(bed.text("lives"), "x\n", "{order}");
    });
}

#[test]
fn answer_that_came_while_its_supervisor_was_taken_for_dead_is_recorded_and_not_bought_again() {
    let bed = Bed::new();
    let run = bed.start(script(&bed, &["--run", "r"], THREE_CALLS, &["\\nmock: latency 1s"]));
    until("the first call is out", || (bed.paid() == 1).then_some(()));
    run.signal(STOP);
    let _server = unseen_server(&bed);
    bed.until_status("r", "interrupted");
    assert_eq!(bed.journal("r")[0]["state"], "unknown");
    bed.write("go", "");
    run.signal(CONT);
    run.done().code(0);
    assert_eq!(bed.paid(), 3);
    let journal = bed.journal("r");
    assert_eq!(journal[0]["state"], "done");
    assert!(!journal[0]["call"]["corrected_at"].is_null(), "{}", journal[0]);
    assert_eq!(bed.show("r")["in_doubt_nano_usd"], 0);
}

#[test]
fn agent_that_finished_while_its_supervisor_was_taken_for_dead_is_not_started_again() {
    // Bug: a lease lost to a suspend ended the supervisor with "lease lost", or started a finished agent once more.
    // Consequence: work was done twice, or a run stood still. Cause: the end of an attempt that was not ours any more
    // was told to the store all the same, and only one of three ways to learn of the verdict was seen.
    let bed = Bed::without_mock();
    let run = bed.start(shell(&bed, &["--run", "r"], UP_UNTIL_GO));
    bed.until_file("up");
    run.signal(STOP);
    let _server = unseen_server(&bed);
    bed.until_status("r", "interrupted");
    bed.write("go", "");
    let agent = bed.until_lines("up", 1)[0].parse().unwrap();
    until("the agent has finished", || (!crate::bed::runs(agent)).then_some(()));
    run.signal(CONT);
    run.done().code(0);
    assert_eq!((bed.text("up").lines().count(), bed.status("r").as_str()), (1, "completed"));
}

#[test]
fn run_of_a_container_that_was_killed_is_taken_up_when_its_lease_is_over() {
    // Bug: after a container was killed, `outlast resume` was refused for five seconds ("held by"), and the same
    // command typed again was a new run. Consequence: restarting a container began its work, and its budget, afresh.
    // Cause: only the first look at the store judged who is dead, and who cannot be seen is judged by silence alone.
    crate::bed::each(vec!["resumed", "typed again"], |how| {
        let bed = Bed::without_mock();
        let typed = || shell(&bed, &[], UP_UNTIL_GO);
        let mut run = bed.start(unseen(&typed()));
        bed.until_file("up");
        run.kill();
        bed.write("go", "");
        let id = bed.json(&["ls"])["runs"][0]["run"].as_str().unwrap().to_owned();
        let again = if how == "resumed" { bed.outlast(&["resume", &id]) } else { typed() };
        bed.run(again).code(0).tells(&["resuming", &id["run_".len()..][..18]]);
        assert_eq!(bed.json(&["ls"])["runs"].as_array().unwrap().len(), 1);
    });
}

// Bug: a fork of a command's run was gone on with by no command. Consequence: `outlast resume FORK` and `outlast run --run
// FORK -- CMD` told of a run without a command. Cause: the fork's spec left its origin's command out.
#[test]
fn a_fork_goes_on_with_its_origins_command_once_a_person_resumes_it() {
    let bed = Bed::new();
    bed.write("go", "");
    let done = bed.run(script(&bed, &["--run", "r"], THREE_CALLS, &[""]));
    done.code(0);
    bed.does(&["snapshot", "r", "s"]).code(0);
    bed.does(&["fork", "r", "--from-snapshot", "s", "--id", "f"]).code(0).tells(&["outlast resume f"]);
    bed.does(&["resume", "--all"]).code(0);
    assert_eq!((bed.status("f").as_str(), bed.text("lives").as_str()), ("interrupted", "x\n"));
    bed.does(&["resume", "f"]).code(0);
    assert_eq!(
        (bed.status("f").as_str(), bed.text("lives").as_str(), bed.paid()),
        ("completed", "x\nx\n", 3)
    );
}
