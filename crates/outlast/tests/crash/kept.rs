//! Stories of the facts that are kept with a run (its input, its directory, its variables), and of the run that a
//! command line means.

use crate::{
    agents::{Calls, Kill, UP_UNTIL_GO, script, shell},
    bed::{Bed, OPENAI_KEY, each, kill, runs, text, until},
    web::free_port,
};
use std::{fs, os::unix::fs::PermissionsExt, process::Stdio};

/// Kills itself, then its supervisor, and then finishes; before that it writes down what `OUT` says.
fn thrice(told: &str) -> String {
    format!(
        r#"
import os, signal, sys
with open("../lives", "a") as lives: lives.write("x\n")
life = open("../lives").read().count("\n")
{told}
if life == 1: os.kill(os.getpid(), signal.SIGKILL)
if life == 2:
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
"#
    )
}

#[test]
fn every_attempt_reads_standard_input_from_its_first_byte() {
    let bed = Bed::without_mock();
    let input: Vec<u8> = (0..300_000u32).flat_map(|i| i.to_le_bytes()).collect();
    fs::write(bed.path("input"), &input).unwrap();
    let reads = thrice("open(f'../read-{life}', 'wb').write(sys.stdin.buffer.read())");
    let mut run = script(&bed, &["--run", "r"], &reads, &[]);
    run.stdin(fs::File::open(bed.path("input")).unwrap());
    bed.run(run).code(137);
    bed.does(&["resume", "r"]).code(0);
    for life in 1..=3 {
        assert!(fs::read(bed.path(&format!("read-{life}"))).unwrap() == input, "life {life}");
    }
}

#[test]
fn resumption_from_elsewhere_has_the_place_and_variables_of_the_first_start() {
    let bed = Bed::without_mock();
    let tells = thrice(
        r#"
name = f"../told-{life}"
open(name, "w").write(repr([os.getcwd(), os.environ.get("KEPT"), os.environ.get("NOT_KEPT"),
    os.environ["PATH"], os.environ["OUTLAST_RUN_ID"], os.environ.get("OUTLAST_ATTEMPT"),
    os.environ.get("OUTLAST_RECOVERED"), oct(os.stat(os.open("../made-%d" % life, os.O_CREAT, 0o777)).st_mode)]))
"#,
    );
    let agent = bed.write("agent.py", &tells);
    let mut run = bed.outlast(&[]);
    run.env("KEPT", "as it was").env("NOT_KEPT", "then").env("PATH", "/usr/local/bin:/usr/bin:/bin:/then");
    let line = "umask 027; exec \"$0\" run --run r --env KEPT -- python3 -SE \"$1\"";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", line, crate::bed::OUTLAST, text(&agent)]).env_clear().stdin(Stdio::null());
    shell.envs(run.get_envs().filter_map(|(k, v)| Some((k, v?)))).current_dir(bed.path("work"));
    bed.run(shell).code(137);
    let mut resume = bed.outlast(&["resume", "r"]);
    resume.current_dir("/").env("KEPT", "otherwise").env("NOT_KEPT", "now").env("PATH", "/usr/bin:/bin");
    bed.run(resume).code(0);
    let work = fs::canonicalize(bed.path("work")).unwrap();
    for (life, other, recovered) in [(1, "then", "None"), (2, "then", "'1'"), (3, "now", "'1'")] {
        let wanted = format!(
            "['{}', 'as it was', '{other}', '/usr/local/bin:/usr/bin:/bin:/then', 'r', '{life}', {recovered}, '0o100750']",
            work.display()
        );
        assert_eq!(bed.text(&format!("told-{life}")), wanted, "life {life}");
    }
}

#[test]
fn resume_all_takes_up_what_died_and_leaves_what_a_person_stopped() {
    let bed = Bed::without_mock();
    let start = |run: &str| {
        let up = format!("echo $PPID > ../up-{run}; while [ ! -e ../go ]; do sleep 0.02; done");
        let started = bed.start(shell(&bed, &["--run", run], &up));
        bed.until_lines(&format!("up-{run}"), 1);
        started
    };
    let (mut killed, terminated, hung_up) = (start("killed"), start("terminated"), start("hung-up"));
    let (interrupted, stopped) = (start("ctrl-c"), start("stopped"));
    killed.kill();
    terminated.signal(15);
    hung_up.signal(1);
    interrupted.signal(2);
    bed.does(&["stop", "stopped"]).code(0).tells(&["interrupted", "outlast resume stopped"]);
    for one in [terminated, hung_up, interrupted, stopped] {
        one.done().code(130).tells(&["go on with `outlast resume "]);
    }
    bed.write("go", "");
    bed.does(&["resume", "--all"]).code(0).tells(&["3 runs to resume"]);
    for run in ["killed", "terminated", "hung-up"] {
        assert_eq!(bed.status(run), "completed", "{run}");
    }
    for run in ["ctrl-c", "stopped"] {
        assert_eq!(bed.status(run), "interrupted", "{run}");
        bed.does(&["resume", run]).code(0);
    }
    bed.does(&["resume", "--all"]).code(0).tells(&["0 runs to resume"]);
}

#[test]
fn resident_resumes_what_dies_later() {
    let bed = Bed::without_mock();
    bed.run(shell(&bed, &["--run", "first"], "true")).code(0);
    let resident = bed.start(bed.outlast(&["resume", "--all", "--stay"]));
    until("it stays", || resident.output().contains("staying").then_some(()));
    let up = "echo $OUTLAST_ATTEMPT >> ../lives; [ -e ../go ] || exec sleep 1000";
    let mut killed = bed.start(shell(&bed, &["--run", "r", "--name", "night"], up));
    bed.until_lines("lives", 1);
    bed.write("go", "");
    killed.kill();
    bed.until_status("r", "completed");
    assert_eq!(bed.text("lives"), "1\n2\n");
    until("it tells", || resident.output().contains("resuming night").then_some(()));
    assert!(runs(resident.pid()));
}

#[test]
fn resume_alone_takes_the_newest_run_that_can_go_on_and_no_failed_one() {
    let bed = Bed::without_mock();
    bed.run(shell(&bed, &["--run", "failed"], "exit 2"));
    bed.run(shell(&bed, &["--run", "done"], "exit 0")).code(0);
    let refused = bed.does(&["resume"]).code(1);
    refused.tells(&["can go on by itself: the newest, done, is completed"]);
    let once = "[ -e ../go ] || { kill -TERM $PPID; sleep 60; }";
    bed.run(shell(&bed, &["--run", "left"], once)).code(130);
    bed.write("go", "");
    bed.does(&["resume"])
        .code(0)
        .tells(&["left, interrupted, begun", "the newest run of this directory that can go on"]);
    assert_eq!((bed.status("left"), bed.status("failed")), ("completed".into(), "failed".into()));
}

#[test]
fn state_of_a_resumed_run_is_served_where_it_was_and_a_busy_place_is_said() {
    let bed = Bed::without_mock();
    let (mine, other) = (free_port().to_string(), free_port().to_string());
    let line = |run: &str| {
        format!("echo $OUTLAST_GRPC_URL >> ../told-{run}; [ -e ../go ] || {{ kill -TERM $PPID; sleep 60; }}")
    };
    for (run, address) in [("r", &mine), ("s", &other)] {
        let flags = ["--run", run, "--grpc", address, "--grpc-conflicts", "first_committer"];
        bed.run(shell(&bed, &flags, &line(run))).code(130);
    }
    let told = |run: &str| bed.text(&format!("told-{run}"));
    let busy = std::net::TcpListener::bind(&mine).unwrap();
    let refused = bed.does(&["resume", "r"]).code(69);
    refused.tells(&[&format!("cannot serve the state on {mine}"), "run r was not started", "--grpc ADDRESS"]);
    assert_eq!((bed.status("r").as_str(), told("r").lines().count()), ("interrupted", 1));
    bed.does(&["resume", "r", "--grpc", &free_port().to_string()]).code(130);
    assert_ne!(told("r").lines().nth(1), Some(mine.as_str()), "what is typed wins");
    bed.write("go", "");
    // One that cannot be served does not keep the others.
    bed.does(&["resume", "--all"]).code(69).tells(&["2 runs to resume", "run r was not started", "r: exit"]);
    assert_eq!((bed.status("r").as_str(), bed.status("s").as_str()), ("interrupted", "completed"));
    drop(busy);
    bed.does(&["resume", "--all"]).code(0).tells(&["1 run to resume"]);
    assert_eq!(told("r").lines().last(), Some(mine.as_str()));
    assert_eq!(told("s").lines().collect::<Vec<_>>(), [&other, &other]);
}

#[test]
fn several_interrupted_runs_of_one_command_are_listed_and_none_is_guessed() {
    let bed = Bed::new();
    let agent = |at| Calls { kill: Some(Kill { who: "parent", at, when: "before" }), ..Calls::new(1) };
    let again = agent(1).under(&bed, &["--new"]);
    bed.run(agent(1).under(&bed, &[])).code(137);
    fs::remove_file(bed.path("told.killed")).unwrap();
    bed.run(again).code(137);
    let runs = bed.json(&["ls"])["runs"].clone();
    // A run without a name is called by the first part of its id.
    let ids = [0, 1].map(|i| runs[i]["run"].as_str().unwrap()["run_".len()..][..18].to_owned());
    let refused = bed.run(agent(1).under(&bed, &[])).code(1);
    refused.tells(&[
        "2 unfinished runs here",
        &ids[0],
        &ids[1],
        "(interrupted)",
        "`outlast resume ",
        "--new",
    ]);
    bed.does(&["resume", &ids[0]]).code(0);
    bed.run(agent(1).under(&bed, &[])).code(0).tells(&[&format!("resuming {}", ids[1])]);
    // In another directory it is another command.
    fs::create_dir(bed.path("elsewhere")).unwrap();
    let mut elsewhere = agent(1).under(&bed, &[]);
    elsewhere.current_dir(bed.path("elsewhere"));
    bed.run(elsewhere).code(0);
    assert_eq!(bed.json(&["ls"])["runs"].as_array().unwrap().len(), 3);
}

#[test]
fn named_run_goes_on_with_its_own_command_only() {
    // Bug: `outlast run --run ID -- OTHER` on an interrupted run ran the run's first command.
    // Consequence: what was typed was silently not run.
    // Cause: the command line was not compared with the run's.
    let bed = Bed::without_mock();
    let line = "[ -e ../go ] || { kill -TERM $PPID; sleep 60; }";
    bed.run(shell(&bed, &["--run", "r"], line)).code(130);
    bed.write("go", "");
    let refused = bed.run(shell(&bed, &["--run", "r"], "touch ../other")).code(2);
    refused.tells(&["run r was begun with another command: sh -c [ -e ../go ]", "`outlast resume r`"]);
    assert!(!bed.path("other").exists());
    assert_eq!(bed.status("r"), "interrupted");
    bed.run(shell(&bed, &["--run", "r", "--usd", "7"], line)).code(0).tells(&["its limits stay as they are"]);
    bed.run(shell(&bed, &["--run", "r"], line)).code(1).tells(&["run r is completed"]);
    bed.does(&["resume", "r"]).code(1).tells(&["run r is completed: there is nothing to resume"]);
}

#[test]
fn key_that_a_run_was_begun_with_is_named_when_it_is_missing() {
    // Bug: after a reboot without the key, a run was resumed all the same, and its agent died until it was given up.
    // Consequence: a run that only lacked its key was failed as a crash loop.
    // Cause: which keys it had was not kept (their names; never their values).
    let bed = Bed::new();
    let agent = Calls { kill: Some(Kill { who: "parent", at: 2, when: "before" }), ..Calls::new(3) };
    bed.run(agent.under(&bed, &["--run", "r"])).code(137);
    let mut resume = bed.outlast(&["resume", "r"]);
    resume.env_remove("OPENAI_API_KEY");
    bed.run(resume).code(69).tells(&[
        "run r was begun with OPENAI_API_KEY",
        "nothing was started",
        "outlast/env",
    ]);
    let mut all = bed.outlast(&["resume", "--all"]);
    all.env_remove("OPENAI_API_KEY");
    bed.run(all).code(69).tells(&["begun with OPENAI_API_KEY"]);
    assert_eq!((bed.status("r").as_str(), bed.paid()), ("interrupted", 1));

    fs::create_dir_all(bed.path(".config/outlast")).unwrap();
    let kept = bed.write(".config/outlast/env", &format!("OPENAI_API_KEY={OPENAI_KEY}\n"));
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o600)).unwrap();
    let mut resume = bed.outlast(&["resume", "--all"]);
    resume.env_remove("OPENAI_API_KEY");
    bed.run(resume).code(0);
    assert_eq!((bed.status("r").as_str(), bed.paid()), ("completed", 3));
}

#[test]
fn every_missing_key_is_named() {
    let bed = Bed::new();
    let agent = Calls { kill: Some(Kill { who: "parent", at: 1, when: "before" }), ..Calls::new(1) };
    let typed = || agent.under(&bed, &["--name", "n"]);
    bed.run(typed()).code(137);
    let without = |mut command: std::process::Command| {
        command.env_remove("OPENAI_API_KEY").env_remove("ANTHROPIC_API_KEY");
        bed.run(command)
            .code(69)
            .tells(&["was begun with OPENAI_API_KEY and ANTHROPIC_API_KEY, and they are not there"])
    };
    without(bed.outlast(&["resume", "n"]));
    without(typed());
    assert_eq!((bed.status("n").as_str(), bed.paid()), ("interrupted", 0));
}

#[test]
fn run_without_any_key_says_so_once_and_runs() {
    let bed = Bed::without_mock();
    let check = |variables: &[(&str, &str)], told: bool| {
        let mut run = shell(&bed, &["--new"], "true");
        run.env_remove("OPENAI_API_KEY").env_remove("ANTHROPIC_API_KEY").envs(variables.iter().copied());
        let done = bed.run(run).code(0);
        assert_eq!(
            done.text.matches("no provider's key is here").count(),
            usize::from(told),
            "{}",
            done.text
        );
    };
    check(&[], true);
    check(&[("OPENAI_API_KEY", OPENAI_KEY)], false);
    check(&[("ANTHROPIC_API_KEY", OPENAI_KEY)], false);
    // A provider of one's own may want none.
    check(&[("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")], false);
}

#[test]
fn name_tells_two_runs_of_one_command_apart() {
    // Bug: `outlast run --name two -- CMD` took up the interrupted run `one` of the same command.
    // Consequence: the work that was asked for under a name of its own was not begun.
    // Cause: only command and directory were compared.
    let bed = Bed::without_mock();
    let line = "[ -e ../go ] || { kill -TERM $PPID; sleep 60; }";
    for name in ["one", "two"] {
        bed.run(shell(&bed, &["--name", name], line)).code(130);
    }
    let ids: Vec<String> =
        ["one", "two"].iter().map(|n| bed.show(n)["run"].as_str().unwrap().to_owned()).collect();
    assert_ne!(ids[0], ids[1]);
    bed.write("go", "");
    bed.run(shell(&bed, &[], line)).code(1).tells(&["2 unfinished runs here"]);
    bed.run(shell(&bed, &["--name", "two"], line)).code(0).tells(&["resuming two"]);
    assert_eq!((bed.status("one").as_str(), bed.status("two").as_str()), ("interrupted", "completed"));
    // A command line without a name means the run that is left.
    bed.run(shell(&bed, &[], line)).code(0).tells(&["resuming one"]);
}

#[test]
fn resumed_run_is_priced_as_it_began() {
    // Bug: a run begun with --prices was resumed at the built-in prices. Consequence: its budget counted other dollars
    // than before, or refused its model. Cause: the file was not kept.
    let bed = Bed::new();
    let prices = |usd: &str| {
        format!(r#"{{"gpt-4o-mini": {{"input_cost_per_token": 0, "output_cost_per_token": {usd}}}}}"#)
    };
    let file = bed.write("prices.json", &prices("1e-5"));
    let agent = Calls { kill: Some(Kill { who: "parent", at: 2, when: "before" }), ..Calls::new(2) };
    bed.run(agent.under(&bed, &["--run", "r", "--prices", text(&file)])).code(137);
    bed.write("prices.json", &prices("9e-5"));
    bed.does(&["resume", "r"]).code(0).tells(&["prices.json is not what r began with"]);
    let journal = bed.journal("r");
    let costs: Vec<i64> = journal.iter().map(|e| e["spent_nano_usd"].as_i64().unwrap()).collect();
    assert!(costs.len() == 2 && costs[0] > 0 && costs[0] == costs[1], "{costs:?}");
}

#[test]
fn resume_all_hands_its_own_flags_on() {
    // Bug: `outlast resume --all --openai-base-url URL` resumed every run with the address it had begun with.
    // Consequence: what was typed had no effect. Cause: the runs' own processes were given the store only.
    let bed = Bed::new();
    let agent = Calls { kill: Some(Kill { who: "parent", at: 1, when: "before" }), ..Calls::new(1) };
    let mut run = agent.under(&bed, &["--run", "r"]);
    // The port that nothing listens on.
    run.env("OPENAI_BASE_URL", "http://127.0.0.1:9/v1");
    bed.run(run).code(137);
    let url = format!("{}/v1", bed.mock_url());
    bed.does(&["resume", "--all", "--openai-base-url", &url]).code(0);
    assert_eq!(bed.paid(), 1);
}

#[test]
fn stop_reaches_a_supervisor_that_waits_to_start_again() {
    // Bug: between two attempts `outlast stop` was heard only when the wait was over, up to five minutes later.
    // Consequence: `stop` gave up, and the agent was started once more. Cause: only heartbeats of an attempt carried it.
    each(vec!["stop", "cancel"], |verb| {
        let bed = Bed::without_mock();
        let agent = format!("echo x >> ../lives; [ $OUTLAST_ATTEMPT -lt 4 ] || {{ {UP_UNTIL_GO}; }}; exit 3");
        let run = bed.start(shell(&bed, &["--run", "r"], &agent));
        until("it waits to start attempt 4", || run.output().contains("starting attempt 4").then_some(()));
        bed.does(&[verb, "r"]).code(0);
        let done = run.done().code(if verb == "stop" { 130 } else { 76 });
        assert!(!done.text.contains("starting attempt 5"), "{}", done.text);
        assert_eq!(bed.status("r"), if verb == "stop" { "interrupted" } else { "cancelled" });
    });
}

#[test]
fn what_a_person_stops_is_no_death() {
    // Bug: an attempt that Ctrl-C ended counted as a death. Consequence: resumed, the run had used up a restart, and
    // five Ctrl-C in ten minutes were a crash loop. Cause: an attempt's end did not say that it was asked for.
    let bed = Bed::without_mock();
    for life in 1..=6 {
        let typed = shell(&bed, &["--restarts", "0", "--run", "r"], UP_UNTIL_GO);
        let run = bed.start(typed);
        bed.until_lines("up", life);
        run.signal(2);
        run.done().code(130);
    }
    bed.write("go", "");
    bed.does(&["resume", "r"]).code(0);
    let shown = bed.show("r");
    assert_eq!(bed.spent("r", "restarts"), 0);
    assert!(shown["attempts"].as_array().unwrap().iter().all(|a| a["died"] == false), "{shown}");
    // Nobody is left who would be asked to stop.
    assert!(bed.text("up").lines().all(|pid| !kill(pid.parse().unwrap(), 1)));
}

/// Bug: `show` said of a run whose supervisor had been killed that it runs and nothing is to be done.
/// Consequence: a person waited for what nobody drove. Cause: only what opens a run gave the verdict.
#[test]
fn a_person_who_looks_after_a_kill_is_told_that_nobody_drives_the_run() {
    let bed = Bed::without_mock();
    let dies = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nsignal.pause()\n";
    bed.run(script(&bed, &["--run", "r"], dies, &[])).code(137);
    let text = bed.does(&["show", "r", "-v"]).text;
    assert!(text.contains("interrupted") && text.contains("outlast resume r"), "{text}");
}
