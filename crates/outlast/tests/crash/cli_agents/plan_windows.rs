//! Eight Claude Codes on one plan, which another device uses too: none takes its window past the ceiling, and all finish
//! when it has turned.

use std::collections::BTreeMap;

use super::*;

/// Share of the window that the runs may use it to, in percent.
const CEILING: f64 = 10.0;
/// Share that each call takes, and with it another device, in percent.
const CALL: f64 = 0.5;
const OTHERS: f64 = 0.2;
const RUNS: usize = 8;
const CALLS: usize = 3;

/// Logs a person in with a subscription on this machine, whose runs are then all of one account.
pub(super) fn log_in(home: &Path) {
    let account =
        json!({"accountUuid": "5b1c7d0e-0000-4000-8000-000000000001", "emailAddress": "ann@example.com"});
    fs::create_dir_all(home.join(".claude")).unwrap();
    let settings = json!({"hasCompletedOnboarding": true, "oauthAccount": account});
    fs::write(home.join(".claude.json"), settings.to_string()).unwrap();
    let tokens = json!({
        "accessToken": "sk-ant-oat01-crash", "refreshToken": "sk-ant-ort01-crash",
        "expiresAt": 4_102_444_800_000_u64, "scopes": ["user:inference", "user:profile"],
        "subscriptionType": "max",
    });
    fs::write(home.join(".claude/.credentials.json"), json!({"claudeAiOauth": tokens}).to_string()).unwrap();
}

fn starts(bed: &Bed, name: &str) -> Proc {
    let program = cli("claude");
    let each = format!("mock: tool Bash {}\n", json!({"command": format!("echo x >> ../effects-{name}")}));
    let mut command =
        bed.outlast(&["run", "--run", name, "--plan", "5h=10%,week=50%", "--", text(&program), "-p"]);
    command.args(["--model", "claude-sonnet-4-5", "--append-system-prompt", &each.repeat(CALLS - 1)]);
    command.args(["--allowedTools", "Bash", "--", "do it"]);
    command.env_remove("OPENAI_API_KEY").env_remove("ANTHROPIC_API_KEY");
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1").env("DISABLE_AUTOUPDATER", "1");
    bed.start(command)
}

/// Use of the window in each of its turns, after its last call: all of it, and the other device's part, in percent.
fn used(bed: &Bed) -> BTreeMap<u64, (f64, f64)> {
    let mut used = BTreeMap::new();
    for line in bed.text("paid.log").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let window = &line["plan"][0];
        let percent = |name: &str| window[name].as_f64().unwrap();
        let most: &mut (f64, f64) = used.entry(window["turn"].as_u64().unwrap()).or_default();
        *most = (most.0.max(percent("used_percent")), most.1.max(percent("others_percent")));
    }
    used
}

/// Waits until all have ended: as long as they do something, since eight of them are slow where little of a machine is
/// theirs.
fn until_done(bed: &Bed, runs: &[Proc]) {
    let done = || bed.paid() + runs.iter().filter(|run| !crate::bed::runs(run.pid())).count();
    while runs.iter().any(|run| crate::bed::runs(run.pid())) {
        let before = done();
        until("a call is made, or a run ends", || (done() > before).then_some(()));
    }
}

#[test]
fn eight_claude_codes_and_another_device_pass_no_window_and_finish_when_it_turns() {
    // A call of 500 tokens is half a percent of the window.
    let tokens = 500.0 * 100.0 / CALL;
    let window = format!("5h:{tokens},others={OTHERS}%,turns=12s");
    let bed =
        Bed::with_mock(&["--usage", "400,100", "--plan-window", &window, "--plan-window", "week:100000000"]);
    log_in(&bed.path(""));
    let names: Vec<String> = (0..RUNS).map(|n| format!("r{n}")).collect();
    let runs: Vec<Proc> = names.iter().map(|name| starts(&bed, name)).collect();
    until_done(&bed, &runs);
    let told: Vec<String> = runs.into_iter().map(|run| run.done().code(0).text).collect();
    let rested = told.iter().filter(|text| text.contains("sleeps until"));
    println!("{} of {RUNS} runs rested; {:?}", rested.clone().count(), used(&bed));
    rested.for_each(|text| assert!(text.contains("the plan's window (5h) is used to"), "{text}"));
    for (turn, (used, others)) in used(&bed) {
        // One point for calls under way: the other device's part is told to the runs, and counts.
        assert!(used <= CEILING + 1.0, "turn {turn}: {used} %, {others} % by the other device");
    }
    for name in &names {
        assert_eq!(bed.text(&format!("effects-{name}")), "x\n".repeat(CALLS - 1), "each tool ran once");
        assert_eq!(bed.status(name), "completed");
    }
    assert_eq!(bed.paid(), RUNS * CALLS, "each call is paid once");
}
