//! `outlast show`: the story of a run on one screen.

use outlast::{
    program::{context::Context, run_directory::RunDirectory},
    render::look::Look,
    settings::store_address::StoreAddress,
};
use outlast_core::{
    engine::run::{end_attempt::Then, process::DeclareDead},
    run::{Spec, attempt::Exit},
    words::id::RunId,
};

use crate::{
    commands::{act, act_in, context, json, shown},
    story::{Story, printed},
};

/// The longest words that a run can have do not make its story longer than a screen.
#[test]
fn a_story_fits_a_screen() {
    let story = Story::empty();
    let long = "a very long word ".repeat(30);
    let spec = outlast_core::run::Spec {
        name: Some(long.clone()),
        command: Some(outlast_core::run::Command {
            argv: vec![long.clone(); 3],
            directory: format!("/{long}"),
            ..Default::default()
        }),
        ..Default::default()
    };
    let run = story.start(&"r".repeat(128), Some(1_000_000_000), spec);
    let driver = story.register(1);
    let mut actor = story.claim(run, driver, false);
    for n in 0..20 {
        let seq = story.go(actor, &format!("one {n}"));
        story.answer(actor, seq);
        story.go(actor, &format!("two {n}"));
        let exit = Exit { signal: Some(9), ..Exit::default() };
        story.end(actor, exit, Then::Restart);
        story.clock.advance_ms(93_784_005);
        actor = story.claim(run, driver, true);
    }
    story.end(actor, Exit { code: Some(1), ..Exit::default() }, Then::Fail(long));
    let lines: Vec<String> = (0..50).map(|n| format!("{n} {}", "x".repeat(200))).collect();
    let beside = tempfile::tempdir().unwrap();
    let context = Context { place: StoreAddress::File(beside.path().join("runs.db")), ..context() };
    let id = RunId::new(&"r".repeat(128)).unwrap();
    let logs = RunDirectory::of(&context.place, &id, &context.around).unwrap().logs();
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("21.log"), lines.join("\n")).unwrap();
    let mut told = printed(Look::default(), |page| {
        act_in(&context, &story, &["outlast", "show", "r"], page).unwrap();
    });
    assert!(told.lines().count() <= 22, "{told}");
    // The run's own id has 128 characters, and a command is not cut.
    told = told.replace(&"r".repeat(128), "r");
    assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
    for part in ["what happened", "what it cost", "what is next", "-v", "printed last"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

/// Bug: `show` named the agent's exit where the provider's own words said until when nothing would help. Cause, the second
/// time: it looked for them in the answer, which is kept of no call that failed.
#[test]
fn a_run_that_died_of_a_refusal_shows_the_providers_last_words() {
    let shown = |words: Option<&str>, then: bool| {
        let story = Story::empty();
        let run = story.start("r", None, Default::default());
        let actor = story.claim(run, story.register(1), false);
        story.refuse(actor, story.go(actor, "one"), 429, words);
        if then {
            story.answer(actor, story.go(actor, "two"));
        }
        story.end(actor, Exit { code: Some(1), ..Exit::default() }, Then::Fail("it exits".into()));
        printed(Look::default(), |page| assert_eq!(act(&story, "outlast show r", page).unwrap(), 0))
    };
    for (words, told) in [
        (Some("Your quota resets at 9 am"), "Your quota resets at 9 am"),
        (Some(" "), "no words"),
        (None, "no words"),
    ] {
        let shown = shown(words, false);
        assert!(shown.contains(&format!("its provider said last, in entry 1: 429, {told}\n")), "{shown}");
    }
    assert!(!shown(Some("slow down"), true).contains("said last"), "the newest call says it, or nobody");
}

/// Bug: a supervisor that was killed seconds after a heartbeat had "open at its end, done since" for each call that
/// its agent was answered after that. Consequence: `show` told of many losses where there was none. Cause: the end of
/// a lost attempt is its last heartbeat, and its answers were not looked at.
#[test]
fn what_was_answered_before_a_death_was_not_open_at_it() {
    let story = Story::empty();
    let run = story.start("lost", None, Default::default());
    let instance = story.register(1);
    let actor = story.claim(run, instance, false);
    for prompt in ["one", "two"] {
        story.clock.advance_ms(1000);
        let seq = story.go(actor, prompt);
        story.clock.advance_ms(1000);
        story.answer(actor, seq);
    }
    story.clock.advance_ms(500);
    story.go(actor, "three");
    story.clock.advance_ms(60_000);
    story.ask(DeclareDead { instance, heartbeat_seen: 0, left: false, heir: None });
    let told = json(&story, "outlast show lost --json");
    let attempt = &told["attempts"][0];
    assert_eq!(attempt["open_at_end"], serde_json::json!([3]));
    assert_eq!(attempt["ended_at"], "2026-11-20T08:00:04.500000Z");
}

// Bug: a fork that had not begun told nothing of its origin, and the origin's session as its own.
#[test]
fn a_fork_that_has_not_begun_tells_what_it_is_a_fork_of() {
    let story = Story::empty();
    let run = story.start("r", None, Spec { name: Some("nightly".into()), ..Spec::default() });
    let actor = story.claim(run, story.register(7), false);
    story.ask(outlast::agent::session::keep(
        actor,
        outlast::agent::session::key(None, 0),
        &outlast::agent::session::Session { id: "of-r".into(), spoiled: false, directory: None },
    ));
    shown(&story, "outlast fork nightly --at 1");
    for line in ["outlast show nightly-fork", "outlast show nightly-fork -v"] {
        let told = shown(&story, line);
        let words = "a fork of nightly: it shares the first 1 entry; it has not begun";
        assert!(told.contains(words) && !told.contains("of-r"), "{line}: {told}");
    }
    assert!(shown(&story, "outlast show nightly -v").contains("of-r"));
}
