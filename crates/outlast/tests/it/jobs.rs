//! The commands for batch jobs, on a job that was killed, failed and went on; and those for the store.

use std::fs;

use outlast::program::find::{self, Verb};
use outlast_core::{
    engine::{
        call::settle::{Bill, Close},
        item::{ClaimItem, ItemEnd, RecordItem},
        op::Actor,
        run::{
            end_attempt::{EndAttempt, Then},
            process::DeclareDead,
            start::Start,
        },
    },
    journal::{
        Opening,
        job::{ItemClaim, OnChange, Standing},
        payload::Payload,
    },
    run::Spec,
    store::Sought,
    words::id::{InstanceNo, RunId, RunNo, Seq, Slot},
};

use crate::{
    commands::{act, json, refused, shown},
    line::outlast,
    story::{Story, printed},
};

impl Story {
    fn item(&self, actor: Actor, index: i64) -> Seq {
        let claim = ClaimItem {
            actor,
            slot: Slot::DRIVER,
            key: format!("doc-{index}"),
            index,
            content: None,
            version: None,
            on_change: OnChange::Rerun,
            on_version: OnChange::Rerun,
            alone: false,
        };
        match self.ask(claim) {
            ItemClaim::Run(run) => run.opening.seq,
            other => panic!("{other:?}"),
        }
    }

    fn end_item(&self, actor: Actor, seq: Seq, end: ItemEnd) {
        self.clock.advance_ms(1000);
        let entry = self.store.entry(actor.run, seq).unwrap().unwrap();
        let record = RecordItem { opening: Opening::of(&entry).unwrap(), end, changes: Vec::new() };
        self.ask(record);
    }

    fn dies(&self, instance: InstanceNo) {
        self.ask(DeclareDead { instance, heartbeat_seen: 0, left: false, heir: None });
    }

    /// Ten documents: an attempt is killed in the fifth, another leaves out the seventh and fails in the ninth.
    fn of_a_job() -> (Story, RunNo) {
        let story = Story::empty();
        let spec = Spec { job: Some("enrich-docs".into()), ..Spec::default() };
        let run = story.start("enrich-docs:2", Some(2_000_000_000), spec);
        let first = story.register(7);
        let actor = story.claim(run, first, false);
        for i in 0..4 {
            let seq = story.item(actor, i);
            story.end_item(actor, seq, ItemEnd::Done(Payload::encode(format!("{{\"of\":{i}}}").as_bytes())));
        }
        story.item(actor, 4);
        story.clock.advance_ms(60_000);
        story.dies(first);
        let actor = story.claim(run, story.register(8), true);
        for i in [4, 5, 7] {
            let seq = story.item(actor, i);
            story.end_item(actor, seq, ItemEnd::Done(Payload::encode(b"null")));
        }
        let seq = story.item(actor, 8);
        let told =
            br#"{"error":{"type":"builtins.ValueError","message":"no text\nat all","traceback":"..."}}"#;
        story.end_item(actor, seq, ItemEnd::Failed(Payload::encode(told)));
        let seq = story.item(actor, 9);
        story.end_item(actor, seq, ItemEnd::Skipped { reason: "empty".into() });
        story.ask(EndAttempt {
            run,
            attempt: actor.attempt,
            instance: actor.instance,
            exit: Default::default(),
            active_ms: 5000,
            then: Then::Interrupt { by_person: false },
        });
        (story, run)
    }
}

#[test]
fn a_job_is_shown_as_it_is() {
    let (story, _) = Story::of_a_job();
    for (name, line) in [
        ("jobs", "outlast jobs"),
        ("jobs_json", "outlast jobs --json"),
        ("inspect", "outlast inspect enrich-docs"),
        ("inspect_attempts", "outlast inspect enrich-docs --gaps --attempts"),
        ("inspect_json", "outlast inspect enrich-docs --attempts --json"),
        ("export", "outlast export enrich-docs"),
    ] {
        insta::assert_snapshot!(name, shown(&story, line), line);
    }
    assert_eq!(shown(&Story::empty(), "outlast jobs"), "no jobs in memory\n");
}

#[test]
fn show_and_inspect_tell_the_same_next_step() {
    let (story, _) = Story::of_a_job();
    for line in ["outlast show enrich-docs:2", "outlast inspect enrich-docs"] {
        let told = shown(&story, line);
        let is_told =
            |step: &str| assert!(told.lines().any(|told| told.trim().ends_with(step)), "{line}: {told}");
        assert!(
            !told.contains("outlast retry"),
            "none is dead, and what failed runs again by itself: {told}"
        );
        is_told("start its script again: it goes on with it");
    }
}

#[test]
fn a_job_is_found_by_its_name_or_its_run() {
    let (story, _) = Story::of_a_job();
    let other = Spec { job: Some("enrich-docs".into()), ..Spec::default() };
    story.start("enrich-docs:3", None, other);
    story.start("plain", None, Spec::default());
    let check = |asked: &str, wanted: Result<&str, &str>| {
        let found = find::job(&*story.store, asked, Verb::Look).map(|v| v.run.id.to_string());
        assert_eq!(found.map_err(|e| e.code()), wanted.map(str::to_owned), "{asked}");
    };
    check("enrich-docs", Ok("enrich-docs:3"));
    check("enrich-docs:2", Ok("enrich-docs:2"));
    check("enrich", Err("ambiguous_run"));
    check("plain", Err("not_a_job"));
    check("none", Err("unknown_run"));
    let error = find::job(&*story.store, "enrich-docs", Verb::Branch).unwrap_err();
    assert_eq!(error.code(), "ambiguous_run", "what changes something takes none of several");
}

fn standing(story: &Story, run: RunNo, index: i64) -> Standing {
    story.store.newest(run, &Sought::item(&format!("doc-{index}"))).unwrap().unwrap().item.unwrap().standing
}

#[test]
fn failed_items_are_made_pending_and_the_script_is_to_be_started() {
    let (story, run) = Story::of_a_job();
    let told = shown(&story, "outlast retry enrich-docs --failed");
    assert_eq!(told, "enrich-docs  1 item will run again\n  → start its script again\n");
    assert_eq!(standing(&story, run, 8), Standing::Open);
    assert_eq!(standing(&story, run, 9), Standing::Skipped);
    assert_eq!(shown(&story, "outlast retry enrich-docs --failed"), "enrich-docs  nothing of it failed\n");
}

#[test]
fn an_item_that_is_done_is_made_pending_by_its_key() {
    let (story, run) = Story::of_a_job();
    let line = "outlast retry enrich-docs --key doc-2 --key doc-9 --key doc-2 --reuse-answers --json";
    let told = json(&story, line);
    assert_eq!(told["reset"], serde_json::json!(["doc-2", "doc-9"]));
    assert_eq!([2, 9].map(|i| standing(&story, run, i)), [Standing::Open; 2]);
    assert_eq!(refused(&story, "outlast retry enrich-docs").code(), "usage");
    assert_eq!(refused(&story, "outlast retry enrich-docs --key none").code(), "unknown_item");
}

#[test]
fn what_ended_long_ago_is_forgotten_but_what_can_go_on_is_not() {
    let story = Story::whole();
    let ids = |line: &str| json(&story, line)["forgotten"].clone();
    story.start("newest", None, Spec::default());
    assert_eq!(ids("outlast gc --older-than 30d --json"), serde_json::json!([]));
    story.clock.advance_ms(31 * 86_400_000);
    assert_eq!(ids("outlast gc --older-than 30d --dry-run --json"), serde_json::json!(["research-43"]));
    let told = shown(&story, "outlast gc --older-than 30d");
    assert!(
        told.starts_with("research-43  completed  2026-11-21") && told.ends_with("1 run deleted\n"),
        "{told}"
    );
    assert_eq!(refused(&story, "outlast show research-43").code(), "unknown_run");
    assert!(shown(&story, "outlast show research-42").contains("halted"));
    assert_eq!(ids("outlast gc --older-than 0s --json"), serde_json::json!([]));
}

impl Story {
    fn start_under(&self, id: &str, parent: RunNo) -> RunNo {
        self.ask(Start { parent: Some(parent), ..Start::new(RunId::new(id).unwrap()) }).run
    }
}

#[test]
fn a_family_is_forgotten_together() {
    let story = Story::empty();
    let parent = story.start("parent", None, Spec::default());
    let done = story.start_under("done", parent);
    story.start_under("child", parent);
    story.start("newest", None, Spec::default());
    let cancel = |id: &str| {
        shown(&story, &format!("outlast cancel {id}"));
        story.clock.advance_ms(1000);
    };
    let gc = || json(&story, "outlast gc --older-than 0s --json")["forgotten"].clone();
    let whole = |runs: &str| {
        assert_eq!(shown(&story, "outlast verify"), format!("memory: {runs}, no damage\n"));
    };
    // One answer that was paid, and one that nobody knows of.
    let (first, second) = (story.register(7), story.register(8));
    let actor = story.claim(done, first, false);
    let paid = story.go(actor, "one");
    story.answer(actor, paid);
    story.go(actor, "two");
    story.dies(first);
    let actor = story.claim(done, second, false);
    story.end(actor, Default::default(), Then::Complete);
    story.clock.advance_ms(1000);

    assert_eq!(gc(), serde_json::json!([]), "what it did is not to be done again by its parent");
    cancel("parent");
    assert_eq!(gc(), serde_json::json!(["done"]));
    whole("3 runs");
    assert!(
        shown(&story, "outlast show parent").contains("0.003 with children"),
        "what it spent stays charged"
    );
    cancel("child");
    assert_eq!(gc(), serde_json::json!(["child", "parent"]));
    whole("1 run");
}

#[test]
fn a_whole_store_has_no_damage() {
    let (story, _) = Story::of_a_job();
    assert_eq!(shown(&story, "outlast verify"), "memory: 1 run, no damage\n");
    assert_eq!(shown(&Story::whole(), "outlast verify"), "memory: 3 runs, no damage\n");
}

#[test]
fn damage_in_a_file_is_told_and_what_can_be_told_from_the_rest_is_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs.db");
    drop(Story::in_file(&path).told());
    let change = |sql: &str| rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let told = |line: &str, code: i32| {
        let mut command = outlast(dir.path());
        let done = command.args(line.split(' ')).arg("--store").arg(&path).assert().code(code);
        String::from_utf8(done.get_output().stdout.clone()).unwrap()
    };
    assert!(told("verify", 0).ends_with("3 runs, no damage\n"));
    change("UPDATE envelopes SET spent_cost = spent_cost + 1 WHERE no = 1");
    assert!(told("verify", 1).contains("damaged: run research-42: spent "));
    change("UPDATE envelopes SET spent_cost = spent_cost - 1 WHERE no = 1");
    change(
        "UPDATE payloads SET bytes = zeroblob(length(bytes)) WHERE id = (SELECT min(id) FROM payloads WHERE id > 0)",
    );
    let line = told("verify --repair", 1);
    assert!(line.contains("damaged: run research-42: the ") && line.contains(" is damaged: "), "{line}");
}

#[test]
fn a_jobs_counts_are_counted_anew() {
    let (story, run) = Story::of_a_job();
    let dir = tempfile::tempdir().unwrap();
    let story = {
        drop(story);
        Story::in_file(&dir.path().join("j.db"))
    };
    let spec = Spec { job: Some("j".into()), ..Spec::default() };
    assert_eq!(story.start("j", None, spec), run);
    rusqlite::Connection::open(dir.path().join("j.db"))
        .unwrap()
        .execute_batch(
            "UPDATE runs SET counts = '{\"open\":3,\"done\":0,\"failed\":0,\"dead\":0,\"skipped\":0}'",
        )
        .unwrap();
    let mut code = None;
    let look = outlast::render::look::Look::default();
    let told = printed(look, |page| code = act(&story, "outlast verify", page).ok());
    assert!(code == Some(1) && told.contains("damaged: job j counts"), "{told}");
    assert!(shown(&story, "outlast verify --repair").starts_with("repaired: job j counts"));
    assert!(shown(&story, "outlast verify").ends_with("1 run, no damage\n"));
}

const LINES: &str = "{\"job_id\": \"a\", \"index\": 0, \"result\": 1}\n\
                     {\"job_id\": \"a\", \"index\": 3, \"result\": 1, \"attempt\": 2, \"at\": \"x\"}\n\
                     {\"job_id\": \"b\", \"index\": 0, \"result\": 1}\n";

#[test]
fn a_file_of_results_is_inspected_by_its_lines_where_it_has_no_record() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("r.jsonl"), format!("{LINES}{{\"job_id\"")).unwrap();
    let told = |args: &[&str], code: i32| {
        let done = outlast(dir.path()).current_dir(dir.path()).args(args).assert().code(code);
        String::from_utf8(done.get_output().stdout.clone()).unwrap()
    };
    insta::assert_snapshot!("inspect_lines", told(&["inspect", "r.jsonl"], 0));
    let json: serde_json::Value = serde_json::from_str(&told(&["inspect", "r.jsonl", "--json"], 0)).unwrap();
    assert_eq!(json["jobs"][0]["gaps"], serde_json::json!([[1, 2]]));
    assert_eq!(json["damaged_lines"], serde_json::json!([4]));
    assert!(told(&["verify", "r.jsonl"], 1).contains("damaged: line 4 is torn"));
    assert!(told(&["verify", "r.jsonl", "--repair"], 0).contains("repaired: line 4 is torn"));
    assert_eq!(fs::read_to_string(dir.path().join("r.jsonl")).unwrap(), LINES);
    // Bug: `verify --repair` moved every line of a file that `out=` had written. Cause: none of them is a line of ours.
    let theirs = "{\"key\": \"doc-1\", \"ok\": true}\n{\"key\": \"doc-2\", \"ok\": true}\n";
    fs::write(dir.path().join("out.jsonl"), theirs).unwrap();
    assert!(told(&["verify", "out.jsonl", "--repair"], 1).contains("it stays as it is"));
    assert_eq!(fs::read_to_string(dir.path().join("out.jsonl")).unwrap(), theirs);
    let refused = |args: &[&str], code: i32, wanted: &str| {
        let done = outlast(dir.path()).current_dir(dir.path()).args(args).assert().code(code);
        let said = String::from_utf8(done.get_output().stderr.clone()).unwrap();
        assert!(said.contains(wanted), "{args:?}: {said}");
    };
    for command in ["inspect", "verify"] {
        refused(&[command, "none.jsonl"], 1, "cannot work on ");
    }
    let no_record = "`outlast inspect` reads the lines";
    refused(&["retry", "r.jsonl", "--failed"], 69, no_record);
    refused(&["export", "r.jsonl"], 69, no_record);
    refused(&["snapshot", "r.jsonl", "before"], 69, no_record);
    refused(&["fork", "r.jsonl", "--from-snapshot", "before"], 69, no_record);
}

#[test]
fn a_run_is_forked_from_a_snapshot_an_attempt_or_a_time() {
    let (story, run) = Story::of_a_job();
    assert_eq!(
        shown(&story, "outlast snapshot enrich-docs:2 before"),
        "enrich-docs:2  snapshot before at entry 9\n  → outlast fork enrich-docs:2 --from-snapshot before\n"
    );
    let shared = |line: &str| {
        let told = json(&story, &format!("{line} --json"));
        (told["run"].as_str().unwrap().to_owned(), told["seq"].as_i64().unwrap(), told["created"] == true)
    };
    assert_eq!(
        shared("outlast fork enrich-docs:2 --from-snapshot before"),
        ("enrich-docs:2:before".into(), 9, true)
    );
    assert_eq!(
        shared("outlast fork enrich-docs:2 --from-snapshot before"),
        ("enrich-docs:2:before".into(), 9, false)
    );
    assert_eq!(shared("outlast fork enrich-docs:2 --from-snapshot 1 --id again").1, 5);
    let of_time = "outlast fork enrich-docs:2 --from-snapshot 2026-11-20T08:00:02Z --id early";
    assert_eq!(shared(of_time).1, 3);
    assert_eq!(
        refused(&story, "outlast fork enrich-docs:2 --from-snapshot never").code(),
        "unknown_snapshot"
    );
    let told = json(&story, "outlast inspect enrich-docs:2:before --json");
    assert_eq!((told["job"]["done"].as_i64(), told["spent_nano_usd"].as_i64()), (Some(7), Some(0)));
    let fork = story.store.run_no(&outlast_core::words::id::RunId::new("early").unwrap()).unwrap().unwrap();
    assert_eq!(story.store.run(fork).unwrap().unwrap().run.parent, Some(run));
}

#[test]
fn estimates_are_told_beside_a_jobs_money() {
    let story = Story::empty();
    let run = story.start("j", None, Spec { job: Some("j".into()), ..Spec::default() });
    let actor = story.claim(run, story.register(7), false);
    let seq = story.go(actor, "x");
    story.settle(actor, seq, Close::Done(Bill::Reservation), 200, None);
    for line in ["outlast jobs", "outlast inspect j"] {
        assert!(shown(&story, line).contains("estimated 1 call without usage"), "{line}");
    }
}

#[test]
fn a_fork_is_found_again_by_its_own_point_only() {
    let (story, _) = Story::of_a_job();
    let check = |line: &str, wanted: &str| assert_eq!(refused(&story, line).code(), wanted, "{line}");
    story.start("another", None, Spec::default());
    check("outlast fork enrich-docs:2 --from-snapshot 1 --id another", "run_exists");
    check("outlast fork enrich-docs:2 --from-snapshot 1 --id enrich-docs:2", "run_exists");
    check("outlast fork enrich-docs:2 --from-snapshot 9 --id more", "unknown_snapshot");
    for name in ["a/b", "a:b", "ü", &"x".repeat(65)] {
        check(&format!("outlast snapshot enrich-docs:2 {name}"), "bad_snapshot");
    }
    shown(&story, "outlast snapshot enrich-docs:2 mark");
    shown(&story, "outlast fork enrich-docs:2 --from-snapshot mark");
    shown(&story, "outlast retry enrich-docs:2 --key doc-1");
    shown(&story, "outlast snapshot enrich-docs:2 mark");
    // The name means another point now: what was forked from the old one is not it.
    check("outlast fork enrich-docs:2 --from-snapshot mark", "run_exists");
    shown(&story, "outlast fork enrich-docs:2 --from-snapshot mark --id from-the-new-mark");
}
