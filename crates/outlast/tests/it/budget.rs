//! `outlast budget`: a run's limits.

use clap::Parser;
use outlast::commands::Cli;
use outlast_core::{
    engine::run::end_attempt::Then,
    run::{Spec, attempt::Exit, status::Status},
};

use crate::{
    commands::{json, refused, shown, status},
    story::Story,
};

// Bug: a change that changed nothing, or that no run would ever feel, was done with exit code 0.
#[test]
fn a_change_of_a_budget_that_does_nothing_is_an_error() {
    for line in ["outlast budget r --add-usd 0", "outlast budgets raise team --add-calls 0"] {
        let Err(error) = Cli::try_parse_from(line.split(' ')) else { panic!("{line}") };
        assert!(error.to_string().contains("0 adds nothing"), "{error}");
    }
    let story = Story::whole();
    shown(&story, "outlast cancel 0190");
    let error = refused(&story, "outlast budget 0190 --set-usd 9");
    assert!(error.to_string().contains("cancelled"), "{error}");
    shown(&story, "outlast budget 0190");
}

#[test]
fn a_raise_lets_a_halted_run_go_on() {
    let story = Story::whole();
    assert_eq!(status(&story, "research-42"), Status::Halted);
    let shown = shown(&story, "outlast budget research-42 --add-usd 1 --set-calls 50");
    assert!(shown.starts_with("nightly  interrupted, it was halted\n"), "{shown}");
    assert!(shown.contains("1.02") && shown.contains("→ outlast resume nightly"), "{shown}");
    assert_eq!(status(&story, "research-42"), Status::Interrupted);
    let after = json(&story, "outlast budget research-42 --no-limit calls --json");
    assert_eq!(after["budget"][0]["limit"], 1_020_000_000);
    assert_eq!(after["budget"][2]["limit"], serde_json::Value::Null);
}

#[test]
fn a_budget_is_changed_in_one_way_at_once() {
    let story = Story::whole();
    let error = refused(&story, "outlast budget research-42 --add-usd 1 --no-limit usd");
    assert_eq!((error.code(), error.exit()), ("usage", 2));
    let error = refused(&story, "outlast budget research-42 --add-loops 1");
    assert_eq!((error.code(), error.exit()), ("bad_limit", 1));
    assert_eq!(status(&story, "research-42"), Status::Halted);
}

// Bug: a limit below what was spent was set without a word, and the next call was refused.
#[test]
fn a_limit_below_what_is_spent_is_told_with_the_command_that_raises_it() {
    let story = Story::empty();
    let run = story.start("r", None, Spec::default());
    let actor = story.claim(run, story.register(7), false);
    let seq = story.go(actor, "one");
    story.answer(actor, seq);
    let told = shown(&story, "outlast budget r --set-usd 0.001");
    assert!(told.contains("at its limit now: 0.003 of 0.001 usd spent; raise it with"), "{told}");
    assert!(
        told.contains("`outlast budget r --add-usd 0.10`, then calls pass that fit into what is left"),
        "{told}"
    );
    assert!(!shown(&story, "outlast budget r --set-usd 5").contains("at its limit"));
    assert!(!shown(&story, "outlast budgets set all --set-usd 5").contains("at its limit"));
    let seq = story.go(actor, "two");
    story.answer(actor, seq);
    let told = shown(&story, "outlast budgets set all --set-usd 0.002");
    assert!(told.contains("budget all is at its limit now: 0.003 of 0.002 usd spent"), "{told}");
    assert!(told.contains("`outlast budgets raise all --add-usd 0.10`"), "{told}");
    // A run that is over is told, too, and without a command.
    story.end(actor, Exit { code: Some(0), ..Exit::default() }, Then::Complete);
    let told = shown(&story, "outlast budget r --set-usd 0.001");
    assert!(told.contains("at its limit now: ") && !told.contains("raise it with"), "{told}");
}
