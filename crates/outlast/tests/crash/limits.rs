//! Limits: a run that reached one stands still, says why, and goes on when it is given room.

use crate::{
    agents::{Calls, UP_UNTIL_GO, script, shell},
    bed::{Bed, each, until},
};

#[test]
fn halted_run_stays_halted_and_says_what_lets_it_go_on() {
    // Each: the limit, its code, and the room that is enough.
    let cases = vec![
        (["--calls", "2"], "call_budget_exceeded", ["--add-calls", "5"]),
        (["--usd", "0.00007"], "dollar_budget_exceeded", ["--add-usd", "1"]),
        (["--tokens", "230"], "token_budget_exceeded", ["--add-tokens", "100000"]),
        (["--loops", "2"], "loop_budget_exceeded", ["--add-loops", "5"]),
    ];
    each(cases, |(limit, code, room)| {
        let bed = Bed::new();
        let typed = || Calls::new(5).under(&bed, &[["--name", "n"], limit].concat());
        let run = bed.run(typed()).code(75);
        let id = bed.json(&["ls"])["runs"][0]["run"].as_str().unwrap().to_owned();
        let budget = format!("`outlast budget n {} ", room[0]);
        let way_on = [code, "would exceed the run's budget: needs", &budget, "`outlast resume n`"];
        let run = run.tells(&way_on).tells(&[&format!("halted ({code})")]);
        assert_eq!(run.text.matches(&format!("hint: raise it with {budget}")).count(), 1, "{}", run.text);
        let paid = bed.paid();
        assert!((1..5).contains(&paid), "{code}: {paid} paid");
        // Typed again, by name, by its id, and after a look: as before.
        bed.run(typed()).code(75).tells(&way_on);
        bed.does(&["resume", "n"]).code(75).tells(&way_on);
        bed.run(Calls::new(5).under(&bed, &["--run", &id])).code(75).tells(&way_on);
        bed.does(&["resume", "--all"]).code(0).tells(&["0 runs to resume"]);
        let way = format!("outlast resume n {}", room[0]);
        let shown = bed.does(&["show", &id, "-v"]).code(0).tells(&["halted", &way]);
        assert_eq!(shown.text.matches(&way).count(), 1, "once is enough: {}", shown.text);
        assert_eq!((bed.status(&id).as_str(), bed.paid()), ("halted", paid), "{code}");
        assert!(!bed.text("told").contains("finished"));

        bed.does(&["budget", &id, room[0], room[1]]).code(0).tells(&["interrupted"]);
        bed.does(&["resume", &id]).code(0);
        assert_eq!((bed.status(&id).as_str(), bed.paid()), ("completed", 5), "{code}");
        // A halt is no death.
        assert_eq!(bed.spent(&id, "restarts"), 0, "{code}");
        assert!(bed.text("told").trim_end().ends_with("finished"));
    });
}

/// A model that no table knows.
const UNHEARD_OF: &str = r#"
import http.client, json, os, sys, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
body = {"model": "unheard-of", "max_tokens": 10, "messages": [{"role": "user", "content": "hello"}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
connection.request("POST", base.path + "/chat/completions", json.dumps(body), headers)
if connection.getresponse().status != 200: sys.exit(1)
"#;

#[test]
fn model_without_a_price_halts_the_run_until_its_price_is_given() {
    // Bug: an agent whose model had no price under a limit in usd was started again until it was a crash loop.
    // Consequence: the run failed, and no price could be given to it. Cause: the refusal halted nothing.
    let bed = Bed::new();
    let run = bed.run(script(&bed, &["--run", "r"], UNHEARD_OF, &[])).code(75);
    let way_on = "`outlast resume r --prices FILE`";
    let run = run.tells(&["halted (price_unknown)", way_on]);
    assert_eq!(run.text.matches(way_on).count(), 1, "{}", run.text);
    assert_eq!(bed.show("r")["attempts"].as_array().unwrap().len(), 1);
    bed.does(&["show", "r", "-v"]).tells(&["outlast resume r --prices FILE"]);
    bed.does(&["resume", "r"]).code(75).tells(&[way_on]);
    let prices = r#"{"unheard-of": {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}}"#;
    let file = bed.write("prices.json", prices);
    let other = bed.write("other.json", &prices.replace("unheard-of", "another"));
    bed.does(&["resume", "r", "--prices", crate::bed::text(&other)])
        .code(75)
        .tells(&["goes on at the prices of"]);
    let resumed = bed.does(&["resume", "r", "--prices", crate::bed::text(&file)]).code(0);
    resumed.tells(&["goes on at the prices of", "prices.json", "priced by those of"]);
    assert_eq!((bed.status("r").as_str(), bed.paid(), bed.spent("r", "restarts")), ("completed", 1, 0));
    assert!(bed.spent("r", "cost_nano_usd") > 0);
}

#[test]
fn an_agent_whose_model_has_no_price_is_not_started() {
    let bed = Bed::new();
    let line = ["run", "--", "codex", "exec", "--model", "gpt-99", "hello"];
    let hint = ["\"gpt-99\"", "outlast prices update FILE --accept", "--unpriced dearest"];
    let refused = bed.does(&line);
    assert_ne!(refused.code, 0);
    refused.tells(&hint);
    assert_eq!(bed.json(&["ls"])["runs"].as_array().map_or(0, Vec::len), 0, "no run was made");
}

#[test]
fn a_newer_model_is_charged_as_the_dearest_of_its_family_where_the_run_says_so() {
    let bed = Bed::new();
    let newer = UNHEARD_OF.replace("unheard-of", "gpt-99");
    let run = bed.run(script(&bed, &["--run", "r"], &newer, &[])).code(75);
    run.tells(&["halted (price_unknown)", "`outlast resume r --unpriced dearest`"]);
    let resumed = bed.does(&["resume", "r", "--unpriced", "dearest"]).code(0);
    resumed
        .tells(&["are charged at twice the dearest known of their family", "\"gpt-99\" has no known price"]);
    assert!(bed.spent("r", "cost_nano_usd") > 0);
    // Nothing is known of the other's family.
    bed.run(script(&bed, &["--run", "s", "--unpriced", "dearest"], UNHEARD_OF, &[])).code(75);
}

#[test]
fn newer_prices_are_shown_before_they_are_kept_and_let_a_halted_run_go_on() {
    let bed = Bed::new();
    bed.run(script(&bed, &["--run", "r"], UNHEARD_OF, &[])).code(75);
    let text = r#"{"unheard-of": {"mode": "chat", "input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6},
        "voice": {"mode": "audio_speech", "input_cost_per_character": 1e-6}}"#;
    let file = bed.write("newer.json", text);
    let file = crate::bed::text(&file);
    let shown = bed.does(&["prices", "update", file]).code(0);
    shown.tells(&["unheard-of", "- → 1", "1 entries without a price per token", "nothing is kept yet"]);
    bed.does(&["resume", "r"]).code(75);
    bed.does(&["prices", "update", file, "--accept"]).code(0).tells(&["kept in ", "prices.json"]);
    bed.does(&["prices", "unheard-of"]).code(0).tells(&["your price file"]);
    bed.does(&["resume", "r"]).code(0).tells(&["goes on at the prices of"]);
    bed.does(&["prices", "update", file]).code(0).tells(&["no price differs"]);
    bed.write("page.html", "<html>");
    assert_ne!(bed.does(&["prices", "update", "page.html"]).code, 0);
}

/// Two calls at once, of which the limit has room for one: the other waits.
const TWO_AT_ONCE: &str = r#"
import http.client, json, os, sys, threading, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
def ask(name, latency):
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    text = f"{name}\nmock: latency {latency}"
    body = {"model": "gpt-4o-mini", "max_tokens": 1000, "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    connection.request("POST", base.path + "/chat/completions", json.dumps(body), headers)
    open("../sent-" + name, "w").close()
    status = connection.getresponse().status
    with open("../told", "a") as told:
        told.write(f"{name} {status}\n")
slow = threading.Thread(target=ask, args=["slow", "8s"])
slow.start()
while not os.path.exists("../second"): pass
quick = threading.Thread(target=ask, args=["quick", "0s"])
quick.start()
slow.join(); quick.join()
"#;

#[test]
fn call_that_waits_for_room_goes_on_when_the_budget_is_raised() {
    let bed = Bed::new();
    // A reservation is about 0.00065 usd.
    let run = bed.start(script(&bed, &["--run", "r", "--usd", "0.001"], TWO_AT_ONCE, &[]));
    until("the first call is out", || (bed.paid() == 1).then_some(()));
    bed.write("second", "");
    bed.until_file("sent-quick");
    // The waiting call holds no reservation, and has no entry in the journal.
    assert_eq!((bed.paid(), bed.journal("r").len()), (1, 1));
    bed.does(&["budget", "r", "--add-usd", "1"]).code(0);
    let told = bed.until_lines("told", 1);
    assert_eq!(told, ["quick 200"], "the one that waited is answered while the other is in flight");
    run.done().code(0);
    assert_eq!(bed.until_lines("told", 2)[1], "slow 200");
}

/// Asks what its file says; dies once behind the third answer.
const ASKS_THE_PLAN: &str = r#"
import http.client, json, os, signal, sys, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
for i, text in enumerate(open("../plan").read().split()):
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    body = {"model": "gpt-4o-mini", "max_tokens": 10, "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    connection.request("POST", base.path + "/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200: sys.exit(1)
    if text == "dies":
        open("../plan", "w").write("a other c")
        os.kill(os.getpid(), signal.SIGKILL)
"#;

#[test]
fn divergence_that_halted_a_run_is_shown_and_accepted_by_resuming_it() {
    // Bug: a run that was halted by a divergence could only be left by adding no calls to its budget.
    // Consequence: nobody knew how to go on. Cause: only a raise lifts a halt, and the hint named none.
    let bed = Bed::new();
    bed.write("plan", "a b dies");
    let run = bed.run(script(&bed, &["--run", "r", "--on-divergence", "halt"], ASKS_THE_PLAN, &[])).code(75);
    let run = run.tells(&["halted (diverged)"]);
    assert_eq!(run.text.matches("`outlast resume r` accepts it").count(), 1, "{}", run.text);
    bed.does(&["resume", "--all"]).code(0).tells(&["0 runs to resume"]);
    let shown = bed.show("r");
    assert_eq!((&shown["status"], &shown["money"]["untaken_answers"]), (&"halted".into(), &2.into()));
    assert!(shown["money"]["untaken_nano_usd"].as_i64().unwrap() > 0, "{shown}");
    bed.does(&["show", "r", "-v"]).tells(&["unused    2 recorded answers that had cost", "outlast resume r"]);
    bed.does(&["resume", "r"]).code(0).tells(&["accepted: 2 recorded answers", "resuming r"]);
    assert_eq!((bed.status("r").as_str(), bed.paid()), ("completed", 5));
}

#[test]
fn wall_limit_counts_downtime_and_outlives_the_supervisor() {
    let bed = Bed::new();
    let run = shell(
        &bed,
        &["--run", "r", "--wall", "3s"],
        "[ -e ../once ] || { : > ../once; kill -9 $PPID; sleep 60; }",
    );
    bed.run(run).code(137);
    until("3 s have passed since it began", || (bed.spent("r", "wall_ms") >= 3000).then_some(()));
    let way_on = ["time_budget_exceeded", "`outlast budget r --add-wall ", "`outlast resume r`"];
    bed.does(&["resume", "r"]).code(75).tells(&way_on);
    bed.does(&["resume", "r"]).code(75).tells(&way_on);
    bed.does(&["budget", "r", "--add-wall", "1h"]).code(0);
    bed.does(&["resume", "r"]).code(0);
}

#[test]
fn agent_that_makes_no_calls_is_stopped_when_its_time_is_over() {
    let bed = Bed::new();
    let waits = shell(&bed, &["--run", "r", "--active", "1s"], UP_UNTIL_GO);
    bed.run(waits).code(75).tells(&["time_budget_exceeded", "`outlast budget r --add-active "]);
    assert_eq!(bed.show("r")["attempts"][0]["how"], "stopped (killed by SIGTERM)");
    bed.write("go", "");
    bed.does(&["budget", "r", "--add-active", "1h"]).code(0);
    bed.does(&["resume", "r"]).code(0);
    assert_eq!(bed.spent("r", "restarts"), 0);
}

#[test]
fn restarts_are_limited_and_a_person_can_allow_more() {
    let bed = Bed::new();
    let dies = "echo $OUTLAST_ATTEMPT >> ../lives; [ -e ../go ] || exit 3";
    let run = bed.run(shell(&bed, &["--run", "r", "--restarts", "1"], dies)).code(75);
    run.tells(&["restart_budget_exceeded", "`outlast budget r --add-restarts "]);
    assert_eq!(bed.until_lines("lives", 2), ["1", "2"]);
    bed.does(&["resume", "r"]).code(75);
    bed.write("go", "");
    bed.does(&["budget", "r", "--add-restarts", "1"]).code(0);
    bed.does(&["resume", "r"]).code(0);
    assert_eq!(bed.text("lives").lines().count(), 3);
}

#[test]
fn agent_that_dies_again_and_again_without_getting_on_is_given_up() {
    let bed = Bed::new();
    let done = bed.run(shell(&bed, &["--run", "r"], "echo x >> ../lives; exit 3")).code(78);
    done.tells(&["crash loop: 5 deaths in 10 minutes with nothing finished between, the last exited with 3"]);
    assert_eq!(bed.text("lives").lines().count(), 5);
    let shown = bed.show("r");
    assert_eq!(shown["status"], "failed");
    assert!(shown["error"].as_str().unwrap().contains("crash loop"), "{shown}");
    let ends: Vec<_> =
        shown["attempts"].as_array().unwrap().iter().map(|a| a["exit"]["code"].clone()).collect();
    assert_eq!(ends, [3, 3, 3, 3, 3]);
}

#[test]
fn exit_that_would_come_again_is_not_tried_again() {
    // The command, and what `outlast run` exits with.
    let cases: Vec<(&[&str], i32, &str)> = vec![
        (&["true"], 0, "completed"),
        (&["sh", "-c", "exit 2"], 76, "exited with 2: wrong usage or configuration"),
        (&["sh", "-c", "exit 64"], 76, "exited with 64"),
        (&["sh", "-c", "exit 78"], 76, "exited with 78"),
        (&["sh", "-c", "exit 126"], 126, "cannot be executed"),
        (&["sh", "-c", "no-such-command"], 127, "was not found"),
        (&["no-such-command"], 127, "command not found: no-such-command"),
        (&["/etc/passwd"], 126, "command is not executable: /etc/passwd"),
        (&["/etc"], 126, "it is a directory"),
    ];
    each(cases, |(command, code, told)| {
        let bed = Bed::without_mock();
        let mut run = bed.outlast(&["run", "--run", "r", "--"]);
        run.args(command);
        bed.run(run).code(code).tells(&[told]);
        let shown = bed.show("r");
        assert_eq!(shown["attempts"].as_array().unwrap().len(), 1, "{command:?}");
        assert_eq!(shown["status"], if code == 0 { "completed" } else { "failed" }, "{command:?}");
        // Bug: after a mere bad flag of its command, a run's next step was to resume it, which fails the same way.
        assert!(!shown["next"]["commands"].to_string().contains("resume"), "{command:?}: {shown}");
    });
}

#[test]
fn halt_that_is_lifted_in_time_ends_nobody() {
    // Bug: an agent that survived its refusal was stopped five seconds later although the limit had been raised.
    // Consequence: raising a budget in time still cost a restart, and Ctrl-C was deaf meanwhile.
    // Cause: the grace after a halt only waited for the agent's end, and did not look at the run again.
    let bed = Bed::new();
    let agent = r#"
import http.client, json, os, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
def ask(text):
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    body = {"model": "gpt-4o-mini", "max_tokens": 10, "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    connection.request("POST", base.path + "/chat/completions", json.dumps(body), headers)
    return connection.getresponse().status
assert ask("one") == 200
assert ask("two") == 402
open("../refused", "w").close()
open("../raised").read()
assert ask("two") == 200
open("../go").read()
"#;
    bed.gate("raised");
    bed.gate("go");
    let run = bed.start(script(&bed, &["--run", "r", "--calls", "1", "--grace", "2s"], agent, &[]));
    bed.until_file("refused");
    let halted_at = bed.spent("r", "active_ms");
    bed.does(&["budget", "r", "--add-calls", "1"]).code(0);
    bed.write("raised", "");
    until("the grace after a halt is over", || {
        (bed.spent("r", "active_ms") > halted_at + 3000).then_some(())
    });
    bed.write("go", "");
    run.done().code(0);
    assert_eq!(bed.show("r")["attempts"].as_array().unwrap().len(), 1);
}
