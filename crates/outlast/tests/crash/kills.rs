//! The agent is killed, or everything is: the provider is asked as often as in a clean run.

use crate::{
    agents::{Calls, KINDS, Kill, Kind, UP_UNTIL_GO, shell},
    bed::{Bed, Proc, each, until},
};

const N: u32 = 5;

/// Every answer once in the last life's order, and a finish.
#[track_caller]
fn assert_finished(bed: &Bed, run: &str, context: &str) {
    let told = bed.text("told");
    let last = told.lines().last().unwrap_or_default().to_owned();
    assert!(last.ends_with("finished"), "{context}: {told}");
    let attempt = last.split(' ').next().unwrap();
    let lived: Vec<&str> = told.lines().filter(|l| l.starts_with(&format!("{attempt} "))).collect();
    let wanted: Vec<String> = (1..=N).map(|i| format!("{attempt} {i} answer {i} of five words")).collect();
    assert_eq!(lived[..lived.len() - 1], wanted, "{context}");
    assert_eq!(bed.status(run), "completed", "{context}");
}

#[test]
fn agent_killed_at_any_call_costs_what_a_clean_run_costs() {
    let mut cases: Vec<(Kind, String)> = Vec::new();
    for kind in KINDS {
        for at in 1..=N {
            cases.push((kind, format!("call:{at}")));
            if kind.stream {
                cases.push((kind, format!("call:{at}:mid")));
            }
        }
    }
    each(cases, |(kind, point)| {
        let context = format!("{kind:?} {point}");
        let bed = Bed::with_mock(&["--latency", "20ms"]);
        let agent = Calls { kind, ..Calls::new(N) };
        let run = agent.under(&bed, &["--run", "r", "--kill-at", &point]);
        bed.run(run).code(0).tells(&["killing the agent (--kill-at)", "attempt 1 died (killed by SIGKILL)"]);
        assert_finished(&bed, "r", &context);
        assert_eq!(bed.paid(), N as usize, "{context}");
        let shown = bed.show("r");
        assert_eq!(shown["calls_by_state"]["done"], N, "{context}");
        assert_eq!(shown["attempts"].as_array().unwrap().len(), 2, "{context}");
        assert_eq!(bed.spent("r", "calls"), i64::from(N), "{context}");
    });
}

#[test]
fn agent_that_dies_by_itself_before_or_during_a_call_costs_no_more_either() {
    let mut cases = Vec::new();
    for kind in KINDS {
        cases.extend(["before", "flight"].map(|when| (kind, when)));
    }
    each(cases, |(kind, when)| {
        let bed = Bed::new();
        let agent = Calls { kind, kill: Some(Kill { who: "self", at: 3, when }), ..Calls::new(N) };
        bed.run(agent.under(&bed, &["--run", "r"])).code(0);
        assert_finished(&bed, "r", when);
        assert_eq!(bed.paid(), N as usize, "{kind:?} {when}");
    });
}

#[test]
fn supervisor_and_proxy_killed_at_any_call_cost_at_most_the_call_in_flight() {
    let mut cases = Vec::new();
    for kind in KINDS {
        for at in 1..=N {
            cases.extend(["before", "flight"].map(|when| (kind, Kill { who: "parent", at, when })));
        }
    }
    each(cases, |(kind, kill)| {
        let context = format!("{kind:?} {kill:?}");
        let bed = Bed::new();
        let agent = Calls { kind, calls: N, kill: Some(kill) };
        bed.run(agent.under(&bed, &["--run", "r"])).code(137);
        bed.does(&["resume", "r"]).code(0).tells(&["resuming r"]);
        assert_finished(&bed, "r", &context);
        let lost = usize::from(kill.when == "flight");
        assert_eq!(bed.paid(), N as usize + lost, "{context}");
        // The lost try is charged as its retry.
        let journal = bed.journal("r");
        assert_eq!(journal.len(), N as usize + lost, "{context}");
        let retried: Vec<_> = journal.iter().filter(|e| !e["retried_by"].is_null()).collect();
        assert_eq!(retried.len(), lost, "{context}");
        for entry in retried {
            assert_eq!(entry["state"], "failed", "{context}: {entry}");
            assert_eq!(entry["seq"], kill.at, "{context}: {entry}");
        }
        let shown = bed.show("r");
        assert_eq!(shown["in_doubt_nano_usd"], 0, "{context}");
        assert_eq!(shown["attempts"][0]["exit"]["lost"], true, "{context}");
    });
}

#[test]
fn typing_the_same_command_again_resumes_what_a_death_interrupted() {
    let bed = Bed::new();
    let agent = Calls { kill: Some(Kill { who: "parent", at: 3, when: "before" }), ..Calls::new(N) };
    bed.run(agent.under(&bed, &[])).code(137);
    bed.run(agent.under(&bed, &[]))
        .code(0)
        .tells(&["the interrupted run of this command (--new starts afresh)"]);
    assert_eq!(bed.paid(), N as usize);
    assert_eq!(bed.json(&["ls"])["runs"].as_array().unwrap().len(), 1);
    // The run is completed: the same command typed once more begins another run.
    bed.run(agent.under(&bed, &[])).code(0);
    assert_eq!(bed.paid(), 2 * N as usize);
}

#[test]
fn same_line_is_refused_while_its_run_goes_on() {
    // Bug: `outlast run --name twin -- CMD`, typed again while its run went on, began a second run.
    // Consequence: two agents did one work, each with a whole budget. Cause: only runs that nobody drove were looked for.
    let bed = Bed::without_mock();
    let first = bed.start(shell(&bed, &["--name", "twin"], UP_UNTIL_GO));
    bed.until_file("up");
    let holder = format!("run twin is held by outlast run (pid {} on", first.supervisor());
    let refused = bed.run(shell(&bed, &["--name", "twin"], UP_UNTIL_GO)).code(77);
    refused.tells(&[
        &holder,
        "outlast logs twin",
        "outlast attach twin",
        "outlast run --new --name OTHER -- CMD",
    ]);
    // A line without a name means every run of its command.
    bed.run(shell(&bed, &[], UP_UNTIL_GO)).code(77).tells(&[&holder]);
    let second = ["--name", "other"];
    let others = [&second[..], &["--new"]].map(|flags| bed.start(shell(&bed, flags, UP_UNTIL_GO)));
    bed.until_lines("up", 3);
    bed.write("go", "");
    for run in others.into_iter().chain([first]) {
        run.done().code(0);
    }
    bed.run(shell(&bed, &["--name", "twin"], UP_UNTIL_GO)).code(0);
    assert_eq!(bed.json(&["ls"])["runs"].as_array().unwrap().len(), 4);
}

#[test]
fn of_lines_that_are_typed_at_once_one_begins_a_run() {
    let bed = Bed::without_mock();
    let mut typed: Vec<Proc> = (0..4).map(|_| bed.start(shell(&bed, &[], UP_UNTIL_GO))).collect();
    let codes = until("the others are refused", || {
        let ended = typed.iter_mut().filter_map(|one| one.child.try_wait().unwrap());
        let codes: Vec<i32> = ended.filter_map(|status| status.code()).collect();
        (codes.len() == 3).then_some(codes)
    });
    assert_eq!(codes, [77; 3]);
    bed.until_lines("up", 1);
    bed.write("go", "");
    for mut one in typed {
        let code = one.child.wait().unwrap().code().unwrap();
        assert!([0, 77].contains(&code), "{}", one.output());
    }
    assert_eq!(bed.text("up").lines().count(), 1);
    assert_eq!(bed.json(&["ls"])["runs"].as_array().unwrap().len(), 1);
}

#[test]
fn second_supervisor_is_refused_and_told_who_drives_and_the_agent_goes_on() {
    // Bug: a second `outlast resume` or `run --run` ended the live agent, and was only then refused.
    // Consequence: looking after a run from another terminal killed it.
    // Cause: what an earlier attempt left was ended before the run was claimed.
    let bed = Bed::new();
    let first = bed.start(shell(&bed, &["--run", "r"], UP_UNTIL_GO));
    bed.until_file("up");
    let holder = format!("run r is held by outlast run (pid {} on", first.supervisor());
    bed.does(&["resume", "r"]).code(77).tells(&[&holder, "hint: "]);
    bed.run(shell(&bed, &["--run", "r"], UP_UNTIL_GO)).code(77).tells(&[&holder]);
    bed.write("go", "");
    let done = first.done().code(0);
    assert!(!done.text.contains("died"), "{}", done.text);
    assert_eq!(bed.show("r")["attempts"].as_array().unwrap().len(), 1);
}
