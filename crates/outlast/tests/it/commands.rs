//! The commands on a story: what they print, and what they change.

use std::path::Path;

use clap::Parser;
use outlast::{
    commands::{Cli, Desk, Work},
    program::{context::Context, error::CliError},
    render::look::{Look, Page},
    settings::surroundings::Surroundings,
};
use outlast_core::{
    engine::run::tell::{Tell, Word},
    run::status::Status,
    words::id::RunId,
};

use crate::story::{Story, printed};

/// Name of the person who types the commands.
const BY: &str = "cli:ann@laptop";

/// Context of a command that is typed in /srv/agents, on a store beside which nothing is kept.
pub fn context() -> Context {
    let around = Surroundings::new(&[("HOME", "/nonexistent"), ("USER", "ann")], Path::new("/srv/agents"));
    Cli::try_parse_from(["outlast", "ls"]).unwrap().globals.context(around).unwrap()
}

/// Does `line` on the story's store, for people or with `--json`.
pub fn act(story: &Story, line: &str, page: &mut Page) -> Result<u8, CliError> {
    let words: Vec<&str> = line.split(' ').collect();
    act_in(&context(), story, &words, page)
}

/// Does what was typed on the story's store.
pub fn act_in(context: &Context, story: &Story, words: &[&str], page: &mut Page) -> Result<u8, CliError> {
    // Time passes for the story when the command waits.
    let wait = &mut |time: std::time::Duration| story.clock.advance_ms(time.as_millis() as u64);
    match Cli::try_parse_from(words).unwrap().command.verb().work {
        Work::OnStore(_, run) => run(Desk { store: &*story.store, by: BY, context, page, wait }),
        _ => panic!("not on a store: {words:?}"),
    }
}

fn look_of(line: &str) -> Look {
    Look { color: false, json: line.contains("--json") }
}

pub fn shown(story: &Story, line: &str) -> String {
    printed(look_of(line), |page| {
        act(story, line, page).unwrap();
    })
}

pub fn refused(story: &Story, line: &str) -> CliError {
    let mut error = None;
    printed(look_of(line), |page| error = act(story, line, page).err());
    error.unwrap()
}

pub fn json(story: &Story, line: &str) -> serde_json::Value {
    serde_json::from_str(&shown(story, line)).unwrap()
}

pub fn status(story: &Story, id: &str) -> Status {
    let no = story.store.run_no(&RunId::new(id).unwrap()).unwrap().unwrap();
    story.store.run(no).unwrap().unwrap().run.status
}

#[test]
fn the_story_is_shown_as_it_was() {
    let story = Story::whole();
    for (name, line) in [
        ("ls", "outlast ls"),
        ("ls_json", "outlast ls --json"),
        ("ls_halted", "outlast ls --status halted"),
        ("ls_limit", "outlast ls --limit 1"),
        ("ls_failed", "outlast ls --status failed"),
        ("show_brief", "outlast show research-42"),
        ("show_halted", "outlast show research-42 -v"),
        ("show_halted_json", "outlast show research-42 --json"),
        ("show_completed", "outlast show research-43 -v"),
        ("show_header_run", "outlast show 0190 -v"),
        ("journal", "outlast journal research-42"),
        ("journal_json", "outlast journal research-43 --json"),
        ("budget", "outlast budget research-42"),
        ("budget_json", "outlast budget research-42 --json"),
        ("spend_by_day", "outlast spend"),
        ("spend_by_tag_and_model", "outlast spend --by tag.team,model"),
        ("spend_by_run_json", "outlast spend --by run --since 2026-11-20 --until 2026-11-21 --json"),
    ] {
        insta::assert_snapshot!(name, shown(&story, line), line);
    }
}

#[test]
fn colour_is_only_added() {
    let story = Story::whole();
    for line in ["outlast show research-42", "outlast show research-42 -v"] {
        let coloured = printed(Look { color: true, json: false }, |page| {
            act(&story, line, page).unwrap();
        });
        assert!(coloured.contains("\x1b["));
        let mut plain = String::new();
        for (i, part) in coloured.split("\x1b[").enumerate() {
            plain.push_str(if i == 0 { part } else { part.split_once('m').unwrap().1 });
        }
        assert_eq!(plain, shown(&story, line));
    }
}

#[test]
fn names_cannot_steer_the_terminal() {
    let story = Story::empty();
    let spec = outlast_core::run::Spec {
        name: Some("a\x1b[2Jb".into()),
        tags: [("k\n".into(), "\x1b]0;x\x07".into())].into(),
        ..Default::default()
    };
    let run = story.start("hostile", None, spec);
    story.ask(Tell { run, word: Word::Cancel { reason: Some("\x1b[31mred".into()) } });
    for line in ["outlast ls", "outlast show hostile"] {
        let shown = shown(&story, line);
        assert!(!shown.contains(['\x1b', '\x07']), "{shown:?}");
    }
}

#[test]
fn a_list_has_only_what_is_looked_for() {
    let story = Story::empty();
    for (name, directory, team) in [
        ("search", "/srv/agents/a", "ads"),
        ("lint", "/srv/agents/ab", "ads"),
        ("plan", "/srv/agents", "web"),
    ] {
        let spec = outlast_core::run::Spec {
            name: Some(name.into()),
            tags: [("team".to_owned(), team.to_owned())].into(),
            command: Some(outlast_core::run::Command { directory: directory.into(), ..Default::default() }),
            ..Default::default()
        };
        story.start(name, None, spec);
        story.clock.advance_ms(3_600_000);
    }
    let check = |line: &str, wanted: &[&str]| {
        let runs = json(&story, &format!("outlast ls --json {line}"))["runs"].as_array().unwrap().clone();
        let names: Vec<&str> = runs.iter().map(|run| run["name"].as_str().unwrap()).collect();
        assert_eq!(names, wanted, "{line}");
    };
    check("--tag team", &["plan", "lint", "search"]);
    check("--tag team=ads", &["lint", "search"]);
    check("--dir a", &["search"]);
    check("--dir .", &["plan", "lint", "search"]);
    check("--name LIN", &["lint"]);
    check("--since 2h", &["plan", "lint"]);
    check("--tag team=ads --since 2h", &["lint"]);
    let wide = shown(&story, "outlast ls --wide --dir a");
    assert!(wide.contains("/srv/agents/a") && wide.contains("team=ads"), "{wide}");
    assert!(shown(&story, "outlast ls --tag nobody's").starts_with("no such runs in "));
}
