//! The run that a word of the command line means.

use std::path::Path;

use outlast::program::find::{self, Verb};
use outlast_core::engine::run::tell::{Tell, Word};

use crate::{
    commands::{refused, shown},
    story::Story,
};

#[test]
fn a_run_is_found_by_id_by_the_start_of_its_id_or_by_name() {
    let story = Story::whole();
    story.start(
        "research-4",
        None,
        outlast_core::run::Spec { name: Some("one".into()), ..Default::default() },
    );
    let check = |asked: &str, wanted: Result<&str, &str>| {
        let found = outlast::program::find::run(&*story.store, asked).map(|v| v.run.id.to_string());
        assert_eq!(found.map_err(|e| e.code()), wanted.map(str::to_owned), "{asked}");
    };
    check("research-42", Ok("research-42"));
    // An exact id wins over longer ones that begin so.
    check("research-4", Ok("research-4"));
    check("one", Ok("research-4"));
    check("0190", Ok("run_0190-web"));
    check("run_01", Ok("run_0190-web"));
    check("res", Err("ambiguous_run"));
    check("nightly", Ok("research-42"));
    check("night", Err("unknown_run"));
    check("", Err("unknown_run"));
    check("no such/run", Err("unknown_run"));
    let like = |asked: &str| {
        let hint = find::run(&*story.store, asked).unwrap_err().hint().unwrap();
        hint.split_once("? list runs").map(|(like, _)| like.to_owned())
    };
    assert_eq!(like("nigthly").as_deref(), Some("did you mean nightly"));
    assert_eq!(like("something-else"), None);
}

#[test]
fn an_unclear_word_lists_what_it_may_mean() {
    let story = Story::empty();
    for id in ["res-1", "res-2"] {
        story.start(id, None, outlast_core::run::Spec { name: Some("day".into()), ..Default::default() });
    }
    story.clock.advance_ms(7_200_000);
    let error = refused(&story, "outlast show res");
    assert_eq!(
        error.text(),
        "error: \"res\" may be any of 2 runs:\n  \
           run    name  status        usd  age\n  \
           res-2  day   interrupted  0.00  2 h\n  \
           res-1  day   interrupted  0.00  2 h\n\
         hint: give its id, or more of it"
    );
    let json: serde_json::Value = serde_json::from_str(&error.json()).unwrap();
    assert_eq!(json["error"]["candidates"][1]["run"], "res-1");
    // A name means the newest run, but never for a verb that would change one of them.
    assert!(shown(&story, "outlast budget day").starts_with("day"));
    for line in ["outlast budget day --add-usd 1", "outlast cancel day"] {
        assert_eq!(refused(&story, line).code(), "ambiguous_run", "{line}");
    }
    // Of what has ended the newest is told: there is nothing left to change.
    for id in ["res-1", "res-2"] {
        shown(&story, &format!("outlast cancel {id}"));
    }
    assert_eq!(shown(&story, "outlast cancel day"), shown(&story, "outlast cancel res-2"));
    // Bug: undo, fork and snapshot took the newest of several that had ended, and changed it.
    for line in [
        "outlast rm day",
        "outlast budget day --add-usd 1",
        "outlast undo day",
        "outlast files restore day a.txt",
        "outlast fork day --at 0",
        "outlast snapshot day x",
    ] {
        assert_eq!(refused(&story, line).code(), "ambiguous_run", "{line}");
    }
}

/// A run's name is used again night after night.
#[test]
fn a_name_means_the_run_that_the_verb_can_act_on() {
    let story = Story::empty();
    let started = |id: &str| {
        let spec = outlast_core::run::Spec {
            name: Some("night".into()),
            command: Some(outlast_core::run::Command {
                directory: "/srv/agents".into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        story.start(id, None, spec)
    };
    let cancel = |run| story.ask(Tell { run, word: Word::Cancel { reason: None } });
    started("a-interrupted");
    let driven = started("b-running");
    story.claim(driven, story.register(1), false);
    cancel(started("c-cancelled"));
    let check = |asked: Option<&str>, verb: Verb, wanted: &str| {
        let found = find::run_or_last(&*story.store, asked, Path::new("/srv/agents"), verb).unwrap();
        assert_eq!(found.run.id.as_str(), wanted, "{asked:?} {verb:?}");
    };
    check(Some("night"), Verb::Look, "b-running");
    check(Some("night"), Verb::Stop, "b-running");
    check(Some("night"), Verb::Resume, "a-interrupted");
    check(Some("night"), Verb::Remove, "c-cancelled");
    // Without a word the last run of the directory is meant, ended or not.
    check(None, Verb::Look, "c-cancelled");
    check(None, Verb::Stop, "b-running");
    check(None, Verb::Resume, "a-interrupted");
    check(None, Verb::Wake, "c-cancelled");
    // A name comes before the start of an id, also of one that could be acted on.
    story.start("b", None, outlast_core::run::Spec { name: Some("a-".into()), ..Default::default() });
    check(Some("a-"), Verb::Resume, "b");
    let error = find::run_or_last(&*story.store, None, Path::new("/srv"), Verb::Look).unwrap_err();
    assert_eq!((error.code(), error.exit()), ("unknown_run", 1));
}
