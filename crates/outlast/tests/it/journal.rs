//! `outlast journal`: what an agent did, and the tool calls that were cut off.

use outlast_core::{engine::run::process::DeclareDead, run::Spec, words::id::Seq};

use crate::{
    commands::{json, shown},
    story::Story,
};

// Bug: of a CLI agent's journal half were copies of its session, and its tools were ids. Consequence: nobody could read
// what it had done at night. Cause: each entry was told by its row alone.
#[test]
fn an_agents_night_is_told_by_what_was_done() {
    let story = Story::empty();
    let run = story.start("r", None, outlast_core::run::Spec::default());
    let actor = story.claim(run, story.register(7), false);
    story.ask(outlast::agent::session::keep(
        actor,
        outlast::agent::session::key(None, 0),
        &outlast::agent::session::Session { id: "s".into(), spoiled: false, directory: None },
    ));
    let all = shown(&story, "outlast show r -v");
    assert!(all.lines().all(|line| line != "entries"), "nothing would be below this heading: {all}");
    let of = outlast::agent::open_calls::SearchScope::new(run, actor.attempt, Some("s"));
    let begins = |id: &str, command: &str| {
        let call = outlast_server::dialect::conversation::ToolCall {
            id: id.into(),
            name: "Bash".into(),
            input: serde_json::json!({ "command": command }).to_string(),
        };
        story.ask(outlast::agent::truth::begin(actor, &of, &call))
    };
    let outlast_core::engine::tool::Tool::Begun(opening) = begins("toolu_1", "python -m pytest") else {
        panic!("begun twice")
    };
    let failed = outlast::agent::truth::Outcome::Finished { code: Some(1) };
    story.ask(outlast::agent::truth::end(opening, &failed));
    begins("toolu_2", "make deploy");
    for (id, command, outcome) in [
        ("toolu_3", "make push", outlast::agent::truth::Outcome::Unknown),
        ("toolu_4", "make tag", outlast::agent::truth::Outcome::Ended),
    ] {
        let outlast_core::engine::tool::Tool::Begun(opening) = begins(id, command) else {
            panic!("begun twice")
        };
        story.ask(outlast::agent::truth::end(opening, &outcome));
    }
    let told = shown(&story, "outlast journal r");
    let lines: Vec<&str> = told.lines().skip(1).map(|line| line.split_once("  ").unwrap().1).collect();
    let done: Vec<String> =
        lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        done,
        [
            "2 08:00:00 Bash `python -m pytest`: exit 1 @1",
            "3 08:00:00 Bash `make deploy`: at work @1",
            "4 08:00:00 Bash `make push`: in doubt @1",
            "5 08:00:00 Bash `make tag`: in doubt: ended, code unknown @1",
        ],
        "{told}"
    );
    let all = shown(&story, "outlast journal r --all");
    assert!(all.contains("outlast:session") && all.contains("toolu_1"), "{all}");
    // Bug: one tool call was in doubt, failed and unknown, on three faces. Cause: a call whose end nobody saw is stored as
    // failed, and each face told what it found.
    for line in ["outlast journal r --all", "outlast journal r", "outlast show r -v", "outlast journal r 4"] {
        let all = shown(&story, line);
        let rows =
            all.lines().filter(|row| row.trim_start().starts_with("4 ") || row.contains("`make push`"));
        let said: Vec<&str> = rows.collect();
        let is_told =
            |row: &&str| row.contains("in doubt") && !row.contains("failed") && !row.contains("unknown");
        assert!(!said.is_empty() && said.iter().all(is_told), "{line}: {all}");
    }
    assert_eq!(json(&story, "outlast journal r --json")["entries"][3]["state"], "failed", "as it is stored");
}

// Bug: after a night without its supervisor, a tool call was at work in `journal` and in doubt in `show`; then it was the next
// attempt's, and had taken the whole night. Cause: the state was told by the entry alone, and whoever closed an entry became
// its attempt.
#[test]
fn a_tool_call_that_was_cut_off_is_its_attempts_and_in_doubt_on_every_face() {
    let story = Story::empty();
    let run = story.start("r", None, Spec::default());
    let (first, second) = (story.register(7), story.register(8));
    let a = story.claim(run, first, false);
    let of = outlast::agent::open_calls::SearchScope::new(run, a.attempt, None);
    let call = outlast_server::dialect::conversation::ToolCall {
        id: "toolu_1".into(),
        name: "Bash".into(),
        input: serde_json::json!({ "command": "make deploy" }).to_string(),
    };
    story.ask(outlast::agent::truth::begin(a, &of, &call));
    let told = || -> Vec<String> {
        let lines =
            ["outlast journal r", "outlast journal r --all", "outlast show r -v", "outlast journal r 1"];
        lines.map(|line| shown(&story, line)).into()
    };
    let row = |text: &str| {
        let is_its = |row: &&str| row.trim_start().starts_with("1 ") && row.contains("toolu_1");
        text.lines().find(is_its).unwrap().to_owned()
    };
    assert!(told().iter().all(|text| !text.contains("in doubt")), "it is at work: {:?}", told());
    story.ask(DeclareDead { instance: first, heartbeat_seen: 0, left: false, heir: None });
    let in_doubt = |text: &String| row(text).contains("in doubt") && row(text).contains("@1");
    assert!(told().iter().all(in_doubt), "{:?}", told());
    let all = shown(&story, "outlast show r -v");
    assert!(all.contains("Bash `make deploy`: in doubt, it was cut off"), "{all}");
    // Bug: the tool had its id for a name where the death was told.
    assert!(all.contains("open at its end: entry 1, tool Bash `make deploy`"), "{all}");
    let brief = shown(&story, "outlast show r");
    assert!(brief.contains("in flight at its death: entry 1, tool Bash `make deploy`, in doubt"), "{brief}");
    story.clock.advance_ms(8 * 3_600_000);
    let b = story.claim(run, second, false);
    let outlast_core::engine::tool::Tool::Again(opening) =
        story.ask(outlast::agent::truth::begin(b, &of, &call))
    else {
        panic!("it is not taken over")
    };
    story.ask(outlast::agent::truth::end(opening, &outlast::agent::truth::Outcome::Unknown));
    assert!(told().iter().all(in_doubt), "{:?}", told());
    let entry = story.store.entry(run, Seq(1)).unwrap().unwrap();
    let entry = outlast_server::api::read::gist::as_told(&*story.store, entry).unwrap();
    assert_eq!(entry.closed_at, None, "nobody saw its end");
}
