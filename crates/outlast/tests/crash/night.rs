//! A night: providers that answer no call for a while, and runs that wait instead of dying.

use std::process::Command;

use serde_json::Value;

use crate::{
    agents::{Calls, script},
    bed::{Bed, Done, each, until},
};

/// Flags that compress a night: what takes minutes takes a fraction of a second.
const QUICK: [&str; 5] = ["--run", "r", "--outage-pause=100ms", "--admit-wait=300ms", "--restarts=0"];

fn resume(bed: &Bed, flags: &[&str]) -> Command {
    let mut command = bed.outlast(&["resume", "r", "--outage-pause=100ms", "--admit-wait=300ms"]);
    command.args(flags);
    command
}

/// The reason for which the run waits: its code.
fn waits_for(bed: &Bed) -> Option<String> {
    let out = bed.outlast(&["show", "r", "--json"]).output().unwrap();
    // There may be no store and no run yet.
    let shown: Value = serde_json::from_slice(&out.stdout).ok()?;
    (shown["status"] == "waiting").then(|| shown["halt"]["code"].as_str().unwrap_or("").to_owned())
}

#[track_caller]
fn until_waits_for(bed: &Bed, code: &str) {
    until(&format!("the run waits: {code}"), || (waits_for(bed)? == code).then_some(()));
}

/// Checks that the run is completed, that each call was paid once and no end of an attempt cost a restart, and that those
/// alone were deaths that came with the supervisor's.
#[track_caller]
fn assert_paid_once(bed: &Bed, calls: usize) {
    let shown = bed.show("r");
    assert_eq!((shown["status"].as_str(), bed.paid()), (Some("completed"), calls), "{shown}");
    let is_told = |a: &Value| a["died"] == a["exit"]["lost"];
    assert!(shown["attempts"].as_array().unwrap().iter().all(is_told), "{shown}");
    assert_eq!(bed.spent("r", "restarts"), 0, "{shown}");
    let doubt: i64 = bed.journal("r").iter().filter(|e| e["state"] == "unknown").count() as i64;
    assert_eq!(doubt, 0);
}

/// Bug: 25 s of refused connections or 5xx ended an overnight run as a crash loop, `failed`, and `resume --all` skipped
/// it. Consequence: each morning after an outage somebody started the work by hand. Cause: every end of the agent was a
/// death, whatever the proxy knew of its provider.
#[test]
fn outage_of_any_kind_is_waited_for_and_costs_no_restart() {
    let outages = ["refused 2s", "529 8 calls", "500 8 calls", "key 8 calls", "quota 8 calls"];
    each(outages.to_vec(), |outage| {
        let bed = Bed::with_mock(&["--outage", &format!("ok 2 calls, {outage}")]);
        let run = bed.run(Calls::new(4).under(&bed, &QUICK));
        run.code(0).tells(&["waiting: openai ", "openai answers again"]);
        assert_paid_once(&bed, 4);
        bed.does(&["show", "r", "-v"]).tells(&["; exited with 1"]);
        let told = bed.text("told");
        assert!(told.contains("refused 503") && told.contains("provider_outage"), "{told}");
    });
}

#[test]
fn client_that_waits_long_enough_never_hears_of_an_outage() {
    let patient = r#"
import http.client, json, os, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
for i in range(4):
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": f"call {i}"}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json",
               "x-stainless-read-timeout": "120"}
    connection.request("POST", base.path + "/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status
"#;
    each(vec!["refused 1s", "529 9 calls", "quota 9 calls"], |outage| {
        let bed = Bed::with_mock(&["--outage", &format!("ok 1 call, {outage}")]);
        let flags = ["--run", "r", "--outage-pause=100ms"];
        bed.run(script(&bed, &flags, patient, &[])).code(0).tells(&["openai answers again"]);
        assert_paid_once(&bed, 4);
        assert_eq!(bed.show("r")["attempts"].as_array().unwrap().len(), 1);
    });
}

#[test]
fn outage_that_lasts_too_long_gives_the_run_up_with_the_reason() {
    let bed = Bed::with_mock(&["--outage", "503 1h"]);
    let done = bed.run(Calls::new(1).under(&bed, &[&QUICK[..], &["--outage-wait=2s"]].concat()));
    done.code(76).tells(&["openai fails with 503 since", "given up after", "outlast resume r"]);
    assert_eq!(bed.status("r"), "failed");
}

#[test]
fn supervisor_killed_in_an_outage_leaves_an_interrupted_run_that_waits_on_when_it_is_resumed() {
    let bed = Bed::with_mock(&["--outage", "ok 1 call, key 1h"]);
    let mut run = bed.start(Calls::new(2).under(&bed, &QUICK));
    until_waits_for(&bed, "key_refused");
    let since = bed.show("r")["halt"]["at"].clone();
    run.kill();
    bed.does(&["ls"]).tells(&["interrupted", "resume"]);
    let told = ["interrupted", "openai refuses the key (401) since", "nobody drives it", "outlast resume r"];
    bed.does(&["show", "r"]).tells(&told);
    // Somebody resumes it, and somebody else with a key that is taken: nobody has to stop the one that waits.
    let first = bed.start(bed.outlast(&["resume", "--all", "--outage-pause=100ms", "--admit-wait=300ms"]));
    until("it is taken up", || (bed.show("r")["attempts"].as_array().unwrap().len() > 1).then_some(()));
    until_waits_for(&bed, "key_refused");
    assert_eq!(bed.show("r")["halt"]["at"], since, "it waits since the first refusal");
    let well = Bed::new();
    let other = format!("--openai-base-url={}/v1", well.mock_url());
    bed.run(resume(&bed, &[&other])).code(0).tells(&["its supervisor waits for this, and ends"]);
    first.done();
    assert_eq!((bed.status("r").as_str(), bed.paid(), well.paid()), ("completed", 1, 1));
}

/// Kills the run's supervisor when it has said what the run waits for.
fn kill_when_it_says(bed: &Bed, command: Command, what: &str) {
    let mut supervisor = bed.start(command);
    until(what, || supervisor.output().contains(what).then_some(()));
    supervisor.kill();
}

#[test]
fn night_of_outages_with_kills_ends_with_a_run_that_is_done_and_paid_once() {
    let bed = Bed::with_mock(&[
        "--outage",
        "ok 2 calls, refused 1s, ok 1 call, 529 9 calls, ok 1 call, key 9 calls, ok 1 call, quota 9 calls, ok 1 call, refused 1s",
    ]);
    kill_when_it_says(&bed, Calls::new(8).under(&bed, &QUICK), "waiting: openai cannot be reached since");
    // The name of the provider is not found: nobody has the top-level domain `invalid` (RFC 6761).
    let nowhere = resume(&bed, &["--openai-base-url=http://provider.invalid:80/v1"]);
    kill_when_it_says(&bed, nowhere, "waiting: openai cannot be reached: its name is not found (DNS)");
    // The server at this address does not speak TLS.
    let plain = format!("--openai-base-url={}/v1", bed.mock_url().replacen("http://", "https://", 1));
    kill_when_it_says(
        &bed,
        resume(&bed, &[&plain]),
        "waiting: openai cannot be reached: the TLS handshake fails",
    );
    let Done { code, text, .. } = bed.run(resume(&bed, &[]));
    assert_eq!(code, 0, "{text}");
    for part in ["fails with 529", "refuses the key (401)", "the quota has ended", "openai answers again"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_paid_once(&bed, 8);
    let story = bed.does(&["show", "r"]).text;
    println!("{story}");
    assert!(story.lines().count() <= 24, "one screen: {story}");
}
