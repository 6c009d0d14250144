//! Ceilings on the plan of a login: no run passes one, and all go on when its window turns.

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;

use crate::{agents::script, bed::Bed};

/// Makes as many calls as its second argument says under a login of its own, and remembers those that were answered. Ends
/// with 1 at a limit, as a CLI agent does. The third argument is what it says beside.
const CALLS: &str = r#"
import http.client, json, os, sys, urllib.parse
base = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
name, calls = sys.argv[1], int(sys.argv[2])
done = f"../done-{name}"
n = len(open(done).readlines()) if os.path.exists(done) else 0
while n < calls:
    user = json.dumps({"device_id": name, "account_uuid": "account-1", "session_id": name})
    body = {"model": "claude-haiku-4-5", "max_tokens": 100, "metadata": {"user_id": user},
            "messages": [{"role": "user", "content": f"{name} {n}"}]}
    headers = {"Authorization": f"Bearer token-of-{name}", "anthropic-version": "2023-06-01",
               "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    connection.request("POST", base.path + "/v1/messages", json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    limit = answer.getheader("anthropic-ratelimit-unified-status")
    if answer.status == 429 and limit == "rejected":
        open("../refused", "a").write(text + "\n")
        sys.exit(1)
    if answer.status != 200: sys.exit(f"{answer.status} {text}")
    n += 1
    open(done, "a").write("x\n")
"#;

/// A run under a login of its own: no provider's key is here.
fn run(bed: &Bed, name: &str, flags: &[&str], calls: &str) -> Command {
    let flags = [&["--run", name], flags].concat();
    let mut command = script(bed, &flags, CALLS, &[name, calls]);
    command.env_remove("OPENAI_API_KEY").env_remove("ANTHROPIC_API_KEY");
    command
}

/// Largest use of each turn of the first window, in percent, as the provider counted it.
fn used(bed: &Bed) -> BTreeMap<u64, f64> {
    let mut most = BTreeMap::new();
    for line in bed.text("paid.log").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let window = &line["plan"][0];
        let used = most.entry(window["turn"].as_u64().unwrap()).or_insert(0.0);
        *used = window["used_percent"].as_f64().unwrap().max(*used);
    }
    most
}

#[test]
fn eight_runs_and_another_device_pass_no_window_and_finish_when_it_turns() {
    let plan = "5h:100000,others=0.1%,turns=4s";
    let bed =
        Bed::with_mock(&["--usage", "400,100", "--plan-window", plan, "--plan-window", "week:100000000"]);
    let names: Vec<String> = (0..8).map(|n| format!("r{n}")).collect();
    let start = |name: &String| bed.start(run(&bed, name, &["--plan", "5h=3%,week=50%"], "2"));
    let runs: Vec<_> = names.iter().map(start).collect();
    let told: Vec<String> = runs.into_iter().map(|run| run.done().code(0).text).collect();
    // Each call takes half a point, and another device a tenth with it.
    for (turn, used) in used(&bed) {
        assert!(used <= 4.0, "turn {turn}: {used} %");
    }
    assert_eq!(bed.paid(), 16, "each call is paid once");
    // The number of runs that rest depends on their speed; the messages about a rest do not.
    let rested = told.iter().filter(|text| text.contains("sleeps until"));
    rested.for_each(|text| assert!(text.contains("the plan's window (5h) is used to"), "{text}"));
}

#[test]
fn a_run_at_a_ceiling_sleeps_with_its_reason_and_others_of_the_login_know_it() {
    let bed = Bed::with_mock(&["--plan-window", "5h:1000000,used=90%"]);
    let first = bed.start(run(&bed, "first", &["--plan", "5h=40%"], "2"));
    bed.until_lines("refused", 1);
    bed.until_status("first", "sleeping");
    assert_eq!(bed.paid(), 1, "the first call asks");
    let shown = bed.show("first");
    assert_eq!(shown["halt"]["code"], "plan_ceiling", "{shown}");
    assert_eq!(shown["plan"], "5h=40%");
    let window = &shown["plans"][0]["windows"][0];
    assert_eq!(
        (&window["used_percent"], &window["ceiling_percent"]),
        (&90.0.into(), &40.0.into()),
        "{shown}"
    );
    assert_eq!(shown["plans"][0]["login"], "anthropic:account-1");
    assert_eq!(shown["wake_at"], window["resets_at"]);
    assert_eq!(bed.spent("first", "restarts"), 0, "no death");
    let says =
        ["the plan's window (5h) is used to 90 %, its ceiling here is 40 %", "90 % used of 40 %, turns "];
    bed.does(&["show", "first"]).code(0).tells(&says);
    bed.does(&["spend"]).code(0).tells(&[
        "plan of anthropic account-",
        "plan      5h: 90 % used",
        "not billed",
    ]);
    // Another process, with another token of the same account, asks nothing at all.
    let second = bed.start(run(&bed, "second", &["--plan", "5h=40%"], "1"));
    bed.until_lines("refused", 2);
    bed.until_status("second", "sleeping");
    assert_eq!(bed.paid(), 1);
    // A run without a ceiling goes on, and a woken run rests again.
    bed.run(run(&bed, "free", &[], "1")).code(0);
    bed.does(&["wake", "second"]).code(0);
    bed.until_lines("refused", 3);
    bed.until_status("second", "sleeping");
    assert_eq!(bed.paid(), 2);
    assert!(bed.text("refused").contains("plan_ceiling"), "{}", bed.text("refused"));
    drop((first, second));
}

#[test]
fn the_next_life_of_a_killed_supervisor_knows_what_was_told() {
    let bed = Bed::with_mock(&["--plan-window", "5h:1000000,used=90%"]);
    let mut first = bed.start(run(&bed, "r", &["--plan", "5h=40%"], "2"));
    bed.until_lines("refused", 1);
    bed.until_status("r", "sleeping");
    first.kill();
    let mut resume = bed.outlast(&["resume", "r"]);
    resume.env_remove("OPENAI_API_KEY").env_remove("ANTHROPIC_API_KEY");
    let resumed = bed.start(resume);
    crate::bed::until("it is waited for again", || resumed.output().contains("sleeps until").then_some(()));
    bed.does(&["wake", "r"]).code(0);
    bed.until_lines("refused", 2);
    bed.until_status("r", "sleeping");
    assert_eq!(bed.paid(), 1);
}

#[test]
fn a_login_whose_provider_tells_no_plan_is_halted_and_not_let_pass() {
    let bed = Bed::new();
    let done = bed.run(run(&bed, "r", &["--plan", "5h=40%"], "2")).code(75);
    done.tells(&["tells no use of a plan", "without --plan"]);
    assert_eq!((bed.paid(), bed.show("r")["halt"]["code"].as_str()), (1, Some("plan_untold")));
    // A key of ours is on no plan: its calls are billed, and the ceiling is not theirs.
    let keyed = script(&bed, &["--run", "k", "--plan", "5h=40%"], "print()", &[]);
    bed.run(keyed).code(0);
}

#[test]
fn ceilings_are_the_persons_own_setting_and_no_directorys() {
    let bed = Bed::with_mock(&["--plan-window", "5h:1000000,used=50%"]);
    std::fs::create_dir_all(bed.path(".config/outlast")).unwrap();
    bed.write(".config/outlast/outlast.toml", "[budgets]\nplan = \"5h=40%\"\n");
    let _sleeps = bed.start(run(&bed, "r", &["--plan", "5h=90%,week=10%"], "2"));
    bed.until_lines("refused", 1);
    bed.until_status("r", "sleeping");
    assert_eq!(bed.show("r")["plan"], "5h=40%,week=10%", "of two the lower one counts");
    bed.write(".config/outlast/outlast.toml", "[budgets]\nplan = \"40%\"\n");
    bed.run(run(&bed, "bad", &[], "1")).code(2).tells(&["budgets.plan", "wanted for example 5h=40%"]);
    bed.write(".config/outlast/outlast.toml", "");
    bed.write("work/outlast.toml", "plan = \"5h=100%\"\n");
    bed.run(run(&bed, "door", &[], "1")).code(2).tells(&["outlast.toml", "plan"]);
}
