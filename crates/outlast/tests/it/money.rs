//! The cost of a run, on every face that tells it.

use outlast_core::{engine::run::start::Start, run::Spec, words::id::RunId};

use crate::{
    commands::{json, refused, shown},
    story::Story,
};

#[test]
fn spend_wants_a_time_that_is_one() {
    let error = refused(&Story::whole(), "outlast spend --since 2026-12-01 --until 2026-11-01");
    assert_eq!(error.code(), "usage");
    assert_eq!(shown(&Story::empty(), "outlast spend"), "no calls\n");
}

/// Bug: a parent cost the sum with its children in `ls` and `show`, and its own alone in the digest; a call that failed was
/// one of the calls of `inspect`, and none of those of `show`. Cause: each face took its figures where it found some.
#[test]
fn a_run_has_one_cost_and_one_number_of_calls_on_every_face() {
    let story = Story::empty();
    let job = |name: &str| Spec { name: Some(name.into()), job: Some(name.into()), ..Spec::default() };
    let parent = story.start("run-1", Some(20_000_000), job("docs"));
    let actor = story.claim(parent, story.register(1), false);
    let first = story.go(actor, "one");
    story.answer(actor, first);
    let second = story.go(actor, "two");
    story.refuse(actor, second, 429, None);
    let child = Start { parent: Some(parent), spec: job("part"), ..Start::new(RunId::new("run-2").unwrap()) };
    let child = story.ask(child).run;
    let below = story.claim(child, story.register(2), false);
    let third = story.go(below, "three");
    story.answer(below, third);
    story.clock.advance_ms(60_000);
    let all = |line: &str, list: &str| {
        let told = json(&story, line);
        let rows = told[list].as_array().cloned().unwrap_or_else(|| vec![told.clone()]);
        rows.into_iter().find(|row| row["run"] == "run-1").unwrap_or_else(|| panic!("{line}: {told}"))
    };
    for (line, list) in [
        ("outlast ls --json", "runs"),
        ("outlast show run-1 --json", ""),
        ("outlast inspect run-1 --json", ""),
        ("outlast jobs --json", "jobs"),
        ("outlast budget run-1 --json", ""),
        ("outlast digest --since 1h --json", "runs"),
        ("outlast spend --by run --json", "lines"),
    ] {
        let row = all(line, list);
        let facts = ["calls", "unpaid_calls", "spent_usd"].map(|fact| row[fact].to_string());
        assert_eq!(facts, ["2", "1", "\"0.003\""], "{line}");
        if list != "lines" {
            assert_eq!(row["with_children_usd"], "0.006", "{line}");
        }
    }
    let digest = all("outlast digest --since 1h --json", "runs");
    let told = &digest["in_this_time"];
    assert_eq!((&told["billed_usd"], &told["with_children_usd"]), (&"0.003".into(), &"0.006".into()));
    let cost = "0.003 usd (0.006 with children)";
    for (line, wanted) in [
        ("outlast show run-1", vec![cost, "for 1 call,", "1 call failed"]),
        ("outlast show run-1 -v", vec![cost, "for 1 call,", "1 call failed"]),
        ("outlast inspect run-1", vec![cost, "for 1 call;", "1 call failed"]),
        (
            "outlast budget run-1",
            vec![cost, "usd, tokens and calls are with children", "1 of its calls failed"],
        ),
        (
            "outlast budget run-2",
            vec!["its calls are charged to docs, too: 0.014 of 0.02 usd left", "without a limit of its own:"],
        ),
        ("outlast digest --since 1h", vec![cost, "2 calls, 0.006 usd billed; 1 call failed"]),
    ] {
        let said = shown(&story, line).replace("\n  ", " ");
        wanted.iter().for_each(|words| assert!(said.contains(words), "{line}: no {words:?} in\n{said}"));
    }
}
