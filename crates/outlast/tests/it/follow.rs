//! A journal that is followed.

use outlast::{
    commands::{
        Desk,
        journal::{JournalArgs, journal},
    },
    render::look::Look,
};
use outlast_core::{engine::run::end_attempt::Then, run::attempt::Exit};

use crate::{
    commands::context,
    story::{Story, printed},
};

fn followed(look: Look) -> String {
    let story = Story::empty();
    let run = story.start("followed", None, Default::default());
    let actor = story.claim(run, story.register(1), false);
    let seq = story.go(actor, "one");
    // Changes that happen between two looks.
    let mut turns = 0;
    let wait = &mut |_| {
        turns += 1;
        match turns {
            1 => story.answer(actor, seq),
            2 => {
                let next = story.go(actor, "two");
                story.answer(actor, next);
                story.end(actor, Exit { code: Some(0), ..Exit::default() }, Then::Complete);
            }
            _ => panic!("it goes on after the run's end"),
        }
    };
    let args = JournalArgs { run: Some("followed".into()), follow: true, ..JournalArgs::default() };
    let context = context();
    printed(look, |page| {
        journal(&args, Desk { store: &*story.store, by: "", context: &context, page, wait }).unwrap();
    })
}

#[test]
fn a_followed_journal_tells_each_change_until_the_run_has_ended() {
    insta::assert_snapshot!("journal_followed", followed(Look::default()));
}

#[test]
fn a_followed_journal_in_json_is_one_document_a_line() {
    let told = followed(Look { color: false, json: true });
    let lines: Vec<serde_json::Value> = told.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let brief: Vec<String> = lines
        .iter()
        .map(|l| match l["seq"].as_i64() {
            Some(seq) => format!("{seq} {}", l["state"].as_str().unwrap()),
            None => l["status"].as_str().unwrap().to_owned(),
        })
        .collect();
    assert_eq!(brief, ["1 open", "running", "1 done", "2 done", "completed"]);
}
