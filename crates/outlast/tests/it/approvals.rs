//! `outlast approvals` and `outlast approve`, on a story; and policies that are named.

use outlast_core::{
    engine::{
        approval::{Asker, RequestApproval},
        op::Actor,
    },
    journal::{
        approval::{Answer, ApprovalId},
        payload::Payload,
    },
    run::{
        Spec,
        rules::{Requirement, Rules},
        status::Status,
    },
    words::id::Slot,
};
use serde_json::json;

use crate::{
    commands::{json, refused, shown},
    line::outlast,
    story::Story,
};

fn asks(story: &Story, actor: Actor, tool: &str, arguments: &str) -> ApprovalId {
    let answer: Answer = story.ask(RequestApproval {
        asker: Asker::Attempt { actor, slot: Slot::DRIVER },
        key: None,
        tool: tool.into(),
        side_effect: Some("write".into()),
        arguments: Payload::encode(arguments.as_bytes()),
        expires_ms: 3_600_000,
    });
    answer.id.unwrap()
}

/// A run that has asked for two tools, a minute apart.
fn waiting() -> (Story, Actor, [String; 2]) {
    let story = Story::empty();
    let run = story.start("nightly", None, Spec::default());
    let actor = story.claim(run, story.register(7), false);
    let first = asks(&story, actor, "deploy", r#"{"to":"prod"}"#);
    story.clock.advance_ms(60_000);
    let second = asks(&story, actor, "drop", "\"\u{7f}\u{9b}2J all\"");
    story.clock.advance_ms(60_000);
    (story, actor, [first.to_string(), second.to_string()])
}

#[test]
fn what_waits_for_a_person_is_listed_and_decided_by_its_id() {
    let (story, actor, [first, second]) = waiting();
    let status = || story.store.run(actor.run).unwrap().unwrap().run.status;
    let listed = shown(&story, "outlast approvals");
    assert!(!listed.contains('\u{1b}'), "{listed:?}");
    insta::assert_snapshot!("approvals", listed);
    assert_eq!(shown(&story, "outlast approvals nightly"), listed);
    insta::assert_snapshot!("approvals_ls", shown(&story, "outlast ls"));
    insta::assert_snapshot!("approvals_show", shown(&story, "outlast show nightly"));
    assert_eq!(json(&story, "outlast show nightly --json")["approvals"][1]["id"], json!(first));
    let approved = shown(&story, &format!("outlast approve {first} --reason fine"));
    insta::assert_snapshot!("approve", approved);
    assert_eq!(status(), Status::Waiting);
    let denied = json(&story, &format!("outlast approve {second} --deny --by bob --json"));
    assert_eq!((&denied["status"], &denied["decided_by"]), (&json!("denied"), &json!("bob")));
    assert_eq!(status(), Status::Running);
    assert_eq!(shown(&story, "outlast approvals"), "nothing waits for a decision\n");
    insta::assert_snapshot!("approvals_all", shown(&story, "outlast approvals --all"));
    insta::assert_snapshot!("approvals_journal", shown(&story, "outlast journal nightly"));
    let all = json(&story, "outlast approvals --all --json");
    assert_eq!(all["approvals"][1]["arguments"], json!({"to": "prod"}));
    assert_eq!(all["approvals"][1]["reason"], json!("fine"));
}

#[test]
fn a_decision_that_does_not_fit_is_refused_by_name() {
    let (story, _, [first, _]) = waiting();
    let check = |line: &str, code: &str| assert_eq!(refused(&story, line).code(), code, "{line}");
    let other = "0".repeat(64);
    check(&format!("outlast approve {first} --digest {other}"), "other_arguments");
    let digest =
        json(&story, "outlast approvals --json")["approvals"][1]["digest"].as_str().unwrap().to_owned();
    shown(&story, &format!("outlast approve {first} --digest {digest}"));
    check(&format!("outlast approve {first} --deny"), "already_decided");
    check("outlast approve apr_9_9", "unknown_approval");
    check("outlast approve nightly", "usage");
    check("outlast approvals nobody", "unknown_run");
    story.clock.advance_ms(3_600_000);
    check(&format!("outlast approve {first} --deny"), "already_decided");
    let late =
        json(&story, "outlast approvals --all --json")["approvals"][0]["id"].as_str().unwrap().to_owned();
    check(&format!("outlast approve {late}"), "approval_expired");
}

#[test]
fn a_process_of_a_run_does_not_decide() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s.db");
    Story::in_file(&store).start("r", None, Spec::default());
    for name in ["OUTLAST_MARK", "OUTLAST_TOKEN"] {
        let mut line = outlast(dir.path());
        line.args(["--store", store.to_str().unwrap(), "--json", "approve", "apr_1_1"]).env(name, "x");
        let done = line.assert().failure();
        let text = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        assert!(text.contains("not_a_persons"), "{text}");
    }
}

#[test]
fn the_next_of_a_run_that_waits_for_a_person_is_to_decide() {
    let (story, ..) = waiting();
    let next = &json(&story, "outlast show nightly --json")["next"];
    assert_eq!(next["commands"], json!(["outlast approvals nightly"]));
}

#[test]
fn a_run_keeps_the_policy_it_was_begun_with() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s.db");
    let store = store.to_str().unwrap();
    let toml = "[policies.careful]\nusd = 2\nwall = \"1h\"\npause_wall = true\ntools = [\"search\"]\n\
                needs_approval = [{ tool = \"search\", side_effect = \"write\" }]\n";
    let settings = dir.path().join(".config/outlast");
    std::fs::create_dir_all(&settings).unwrap();
    std::fs::write(settings.join("outlast.toml"), toml).unwrap();
    let run = |more: &[&str]| {
        let mut line = outlast(dir.path());
        line.args(["--store", store, "run", "--run", "r"]).args(more).args(["--", "true"]);
        line.assert()
    };
    let refused = run(&["--policy", "other"]).failure();
    let text = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(text.contains("no policy \"other\"") && text.contains("there are: careful"), "{text}");
    run(&["--policy", "careful", "--usd", "3", "--wall", "30m"]).success();
    std::fs::write(settings.join("outlast.toml"), "[policies.careful]\nusd = 9\n").unwrap();
    let shown = outlast(dir.path()).args(["--store", store, "--json", "show", "r"]).assert().success();
    let shown: serde_json::Value = serde_json::from_slice(&shown.get_output().stdout).unwrap();
    let rules = Rules {
        policy: "careful".into(),
        tools: Some(vec!["search".into()]),
        require: vec![Requirement { tool: Some("search".into()), side_effect: Some("write".into()) }],
    };
    assert_eq!((&shown["rules"], &shown["policy"]["pause_wall"]), (&json!(rules), &json!(true)));
    let limit = |n: usize, key: &str| shown["budget"][n][key].clone();
    assert_eq!((limit(0, "limit"), limit(4, "limit")), (json!(2_000_000_000), json!(1_800_000)));
    let bad = "[policies.careful]\nneeds_approval = [{}]\n";
    std::fs::write(settings.join("outlast.toml"), bad).unwrap();
    let refused = outlast(dir.path()).args(["--store", store, "ls"]).assert().failure();
    let text = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(text.contains("policies.careful") && text.contains("entry 1"), "{text}");
}
