//! `outlast state …` on stores: what it prints, and that a dump is restored as it was.

use std::sync::Arc;

use outlast::{
    commands::{Command, Desk, state},
    render::look::{Look, Page},
};
use outlast_core::{
    engine::state::put::{Change, Put},
    state::Name,
    store::{Ask as _, Durability, Store, state::EventRange},
};

use crate::story::{Story, printed};

fn act(store: &dyn Store, words: &[&str], page: &mut Page) -> Result<(), outlast::program::error::CliError> {
    let line: Vec<_> = ["outlast", "state"].iter().chain(words).map(Into::into).collect();
    let around =
        outlast::settings::surroundings::Surroundings::new(&[], std::path::Path::new("/nonexistent"));
    match outlast::commands::line::parse(&line, &around).unwrap().command {
        Command::State(args) => {
            let wait = &mut |_| panic!("waits");
            state::state(&args, Desk { store, by: "", context: &crate::commands::context(), page, wait })
        }
        other => panic!("not of the state: {other:?}"),
    }
}

fn says(store: &dyn Store, words: &[&str]) -> String {
    let look = Look { color: false, json: words.contains(&"--json") };
    printed(look, |page| act(store, words, page).unwrap())
}

fn put(story: &Story, id: Option<&str>, changes: Vec<Change>) {
    story.clock.advance_ms(1000);
    let put = Put { actor: None, changes, transaction: id.map(Arc::from) };
    story.store.ask(put, Durability::Synced).wait().unwrap();
}

fn set(namespace: &str, agent: &str, key: &str, value: &str) -> Change {
    Change::set(Name::new(namespace, agent, key), value.as_bytes())
}

/// Two namespaces, one transaction over both, a delete, odd keys, and a value that is no JSON.
fn known() -> Story {
    let story = Story::empty();
    put(&story, None, vec![set("n", "a", "plan", r#"{"goal":"x","n":[1,2]}"#)]);
    put(
        &story,
        Some("both"),
        vec![set("n", "a", "plan", r#"{"goal":"y","n":[1,3]}"#), set("m", "b:c", "k", "1")],
    );
    put(
        &story,
        None,
        vec![set("m", "b", "c:k", "12345678901234567890.10"), set("m", "b", "\0\u{1b}[2J", "null")],
    );
    put(&story, None, vec![Change::delete(Name::new("n", "a", "plan")), set("n", "a", "raw", "no json")]);
    story
}

#[test]
fn a_value_is_told_as_it_was_at_a_version_and_at_a_time() {
    let story = known();
    let check = |at: &str, want: &str| {
        assert_eq!(says(&*story.store, &["get", "a", "plan", "-n", "n", "--at", at]).trim(), want);
    };
    check("1", r#"{"goal":"x","n":[1,2]}"#);
    check("2", r#"{"goal":"y","n":[1,3]}"#);
    check("2026-11-20T08:00:01Z", r#"{"goal":"x","n":[1,2]}"#);
    check("1s", r#"{"goal":"y","n":[1,3]}"#);
    let refuses = |words: &[&str], code: &str, wanted: &str| {
        let mut refused = None;
        printed(Look::default(), |page| refused = act(&*story.store, words, page).err());
        let refused = refused.unwrap();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.to_string().ends_with(wanted), "{refused}");
    };
    let plan = ["get", "a", "plan", "-n", "n"];
    refuses(&plan, "no_such_key", "in namespace \"n\": version 3 deleted it");
    refuses(&[&plan[..], &["--at", "9"]].concat(), "no_such_key", "in version 9: its newest is 3");
    refuses(&[&plan[..], &["--at", "1h"]].concat(), "no_such_key", "then: it was written later");
    refuses(&["get", "a", "never", "-n", "n"], "no_such_key", "in namespace \"n\"");
    for words in [&["keys", "a", "-n", "n", "--at", "9"][..], &["diff", "a", "1", "9", "-n", "n"]] {
        refuses(words, "no_such_commit", "no commit 9 yet: the newest of namespace \"n\" is 3");
    }
    refuses(&["restore", "/nonexistent/dump"], "bad_dump", "(os error 2)");
    assert_eq!(says(&*story.store, &["agents", "-n", "n"]), "a\n");
    assert_eq!(says(&*story.store, &["agents"]), "no agents in namespace default\n");
    assert!(says(&*story.store, &["namespaces"]).lines().nth(1).unwrap().starts_with("m "));
}

/// Old ids are forgotten: what is one transaction over two namespaces is told by its time.
#[test]
fn a_transaction_over_namespaces_without_an_id_is_dumped_as_one() {
    let story = Story::empty();
    put(&story, None, vec![set("n", "a", "k", "1")]);
    put(&story, None, vec![set("n", "a", "k", "2")]);
    put(&story, None, vec![set("n", "a", "k", "3"), set("m", "b", "k", "3")]);
    let dump = says(&*story.store, &["dump"]);
    assert_eq!(dump.lines().count(), 3, "{dump}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dump.jsonl");
    std::fs::write(&file, &dump).unwrap();
    let other = Story::empty();
    says(&*other.store, &["restore", file.to_str().unwrap()]);
    assert_eq!(other.store.state("m", "b", "k").unwrap().unwrap().commit, 3);
}

#[test]
fn a_difference_is_told_between_two_moments() {
    let story = known();
    let check = |words: &[&str], want: &str| {
        let said = says(&*story.store, &[&["diff", "a", "-n", "n"], words].concat());
        assert_eq!(said, want, "{words:?}");
    };
    check(
        &["1", "2"],
        "~ plan  (version 1 to 2)\n    - /goal: \"x\"\n    + /goal: \"y\"\n    - /n/1: 2\n    + /n/1: 3\n\
         0 keys learnt, 0 forgotten, 1 changed\n",
    );
    check(
        &["2"],
        "- plan  (was version 2)\n    - {\"goal\":\"y\",\"n\":[1,3]}\n+ raw  (version 1)\n    + \"no json\"\n\
         1 key learnt, 1 forgotten, 0 changed\n",
    );
    check(&["2", "2"], "0 keys learnt, 0 forgotten, 0 changed\n");
}

#[test]
fn a_dump_is_restored_with_its_versions_commits_and_ids_and_twice_is_once() {
    let story = known();
    let dump = says(&*story.store, &["dump"]);
    assert_eq!(dump.lines().count(), 4, "{dump}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dump.jsonl");
    std::fs::write(&file, &dump).unwrap();
    for other in [Story::empty(), Story::in_file(&dir.path().join("other.db"))] {
        for said in ["4 commits restored\n", "0 commits restored; 4 were there already\n"] {
            assert_eq!(says(&*other.store, &["restore", file.to_str().unwrap()]), said);
        }
        for (namespace, agent) in [("n", "a"), ("m", "b"), ("m", "b:c")] {
            let events = |store: &dyn Store| {
                let (namespace, agent) = (namespace.to_owned(), agent.to_owned());
                let range = EventRange { namespace, agent, limit: 100, ..EventRange::default() };
                let events = store.state_events(&range).unwrap().events.into_iter();
                let parts = events.map(|e| {
                    let id = e.transaction.filter(|id| !id.starts_with("restored:"));
                    (e.item.key, e.item.version, e.item.value, e.item.commit, id)
                });
                parts.collect::<Vec<_>>()
            };
            assert_eq!(events(&*other.store), events(&*story.store), "{namespace} {agent}");
        }
    }
}

#[test]
fn a_bad_line_of_a_dump_is_named_and_nothing_of_it_is_restored() {
    // Bug: the hint said that nothing was restored, and what came before the bad line was. Cause: a dump was judged line by line.
    let story = known();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dump.jsonl");
    let first = says(&*story.store, &["dump"]).lines().next().unwrap().to_owned();
    std::fs::write(&file, format!("{first}\n{{\"commit\":\n")).unwrap();
    let other = Story::empty();
    let mut refused = None;
    printed(Look::default(), |page| {
        refused = act(&*other.store, &["restore", file.to_str().unwrap()], page).err();
    });
    let refused = refused.unwrap();
    assert_eq!(refused.code(), "bad_dump");
    assert!(refused.to_string().contains("line 2"), "{refused}");
    assert_eq!(other.store.state("n", "a", "plan").unwrap(), None);
}

#[test]
fn what_is_known_cannot_steer_a_terminal() {
    let story = known();
    for words in [&["keys", "b", "-n", "m"][..], &["replay", "b", "-n", "m"]] {
        let said = says(&*story.store, words);
        assert!(said.contains("c:k") && !said.contains('\u{1b}') && !said.contains('\0'), "{said:?}");
    }
}

#[test]
fn a_namespace_keeps_as_many_versions_as_it_is_told_to() {
    let story = known();
    put(&story, None, vec![set("n", "a", "plan", "4")]);
    let says = |words: &[&str]| says(&*story.store, words).trim().to_owned();
    assert_eq!(says(&["keep", "-n", "n"]), "namespace n keeps every version of a key");
    assert_eq!(says(&["keep", "2", "-n", "n"]), "namespace n keeps the last 2 versions of a key; 2 removed");
    assert_eq!(says(&["keep", "2", "-n", "n"]), "namespace n keeps the last 2 versions of a key; 0 removed");
    assert_eq!(says(&["get", "a", "plan", "-n", "n"]), "4");
    let json: serde_json::Value = serde_json::from_str(&says(&["keep", "--json", "-n", "m"])).unwrap();
    assert_eq!(json, serde_json::json!({ "namespace": "m", "keep": "all" }));
    let gone = act(
        &*story.store,
        &["get", "a", "plan", "-n", "n", "--at", "1"],
        &mut Page::new(&mut Vec::new(), Look { color: false, json: false }),
    );
    assert_eq!(gone.unwrap_err().code(), "compacted");
}
