//! What a run knows: versioned keys, transactions, conflicts.

use bytes::Bytes;
use outlast_core::{
    engine::put::{Change, Put},
    state::run_namespace,
};

use crate::stage::Stage;

/// Sets `key` of agent `agent` in namespace `ns`.
pub fn change(key: &str, value: &str) -> Change {
    Change {
        namespace: "ns".into(),
        agent: "agent".into(),
        key: key.into(),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
        expected: None,
    }
}

pub fn expecting(change: Change, version: i64) -> Change {
    Change { expected: Some(version), ..change }
}

fn delete(key: &str) -> Change {
    Change { value: None, ..change(key, "") }
}

fn elsewhere(change: Change) -> Change {
    Change { namespace: "elsewhere".into(), ..change }
}

fn put(changes: Vec<Change>) -> Put {
    Put { actor: None, changes }
}

/// (version, value, commit) of a key in `namespace`.
fn at(s: &Stage, namespace: &str, key: &str) -> Option<(i64, Option<String>, i64)> {
    let item = s.store().state(namespace, "agent", key).unwrap()?;
    let text = item.value.map(|v| String::from_utf8(v.to_vec()).unwrap());
    Some((item.version, text, item.commit))
}

fn is(version: i64, value: &str, commit: i64) -> Option<(i64, Option<String>, i64)> {
    Some((version, Some(value.into()), commit))
}

pub fn a_key_grows_by_one_version_per_change(s: &Stage) {
    assert_eq!(at(s, "ns", "k"), None);
    for (version, value) in [(1, "one"), (2, "two"), (3, "two")] {
        assert_eq!(s.ask(put(vec![change("k", value)])).unwrap(), version);
        s.reopen();
        assert_eq!(at(s, "ns", "k"), is(version, value, version));
    }
}

pub fn a_delete_is_a_version_too(s: &Stage) {
    s.ask(put(vec![change("k", "one")])).unwrap();
    s.ask(put(vec![delete("k")])).unwrap();
    assert_eq!(at(s, "ns", "k"), Some((2, None, 2)));
    s.ask(put(vec![change("k", "again")])).unwrap();
    assert_eq!(at(s, "ns", "k"), is(3, "again", 3));
}

pub fn a_transaction_has_one_commit_number(s: &Stage) {
    s.ask(put(vec![change("a", "0")])).unwrap();
    let commit = s.ask(put(vec![change("a", "1"), change("b", "1"), change("a", "2")])).unwrap();
    assert_eq!(commit, 2);
    assert_eq!((at(s, "ns", "a"), at(s, "ns", "b")), (is(3, "2", 2), is(1, "1", 2)));
}

pub fn a_transaction_over_namespaces_takes_their_highest_commit_plus_one(s: &Stage) {
    for i in 0..4 {
        s.ask(put(vec![change("k", &i.to_string())])).unwrap();
    }
    assert_eq!(s.ask(put(vec![elsewhere(change("k", "x")), change("k", "x")])).unwrap(), 5);
    assert_eq!((at(s, "ns", "k"), at(s, "elsewhere", "k")), (is(5, "x", 5), is(1, "x", 5)));
    assert_eq!(s.ask(put(vec![elsewhere(change("k", "y"))])).unwrap(), 6);
}

pub fn a_conflict_names_both_versions_and_writes_nothing(s: &Stage) {
    s.ask(put(vec![change("k", "one")])).unwrap();
    let stale = put(vec![change("other", "x"), expecting(change("k", "two"), 0)]);
    let error = s.ask(stale.clone()).unwrap_err();
    assert_eq!(error.to_string(), "expected version 0 of \"k\", and it is 1");
    s.refuses("conflict", stale);
    assert_eq!((at(s, "ns", "k"), at(s, "ns", "other")), (is(1, "one", 1), None));
}

pub fn the_expected_version_is_that_before_the_transaction(s: &Stage) {
    assert_eq!(s.ask(put(vec![expecting(change("k", "one"), 0)])).unwrap(), 1);
    assert_eq!(s.ask(put(vec![expecting(change("k", "two"), 1)])).unwrap(), 2);
    s.ask(put(vec![expecting(delete("k"), 2)])).unwrap();
    assert_eq!(s.ask(put(vec![expecting(change("k", "three"), 3)])).unwrap(), 4);
}

pub fn two_writers_that_read_the_same_version_do_not_both_win(s: &Stage) {
    s.ask(put(vec![change("n", "0")])).unwrap();
    let one = put(vec![expecting(change("n", "1"), 1)]);
    s.ask(one.clone()).unwrap();
    s.refuses("conflict", one);
}

pub fn an_empty_transaction_is_nothing(s: &Stage) {
    assert_eq!(s.ask(put(Vec::new())).unwrap(), 0);
    assert_eq!(s.ask(put(vec![change("k", "v")])).unwrap(), 1);
}

pub fn keys_are_kept_apart_by_namespace_and_agent(s: &Stage) {
    s.ask(put(vec![change("k", "one")])).unwrap();
    s.ask(put(vec![elsewhere(change("k", "two"))])).unwrap();
    s.ask(put(vec![Change { agent: "other".into(), ..change("k", "three") }])).unwrap();
    assert_eq!((at(s, "ns", "k"), at(s, "elsewhere", "k")), (is(1, "one", 1), is(1, "two", 1)));
    let other = s.store().state("ns", "other", "k").unwrap().unwrap();
    assert_eq!((other.version, other.commit), (1, 2));
}

pub fn keys_and_values_are_any_text_and_bytes(s: &Stage) {
    for (key, value) in [("", ""), ("é/ü\u{0}", "\u{1F680}"), ("a'; drop table runs; --", "\\x00")] {
        s.ask(put(vec![change(key, value)])).unwrap();
        assert_eq!(at(s, "ns", key).unwrap().1.as_deref(), Some(value), "{key:?}");
    }
    let raw = Bytes::from_static(&[0, 255, 128, 0]);
    s.ask(put(vec![Change { value: Some(raw.clone()), ..change("raw", "") }])).unwrap();
    assert_eq!(s.store().state("ns", "agent", "raw").unwrap().unwrap().value, Some(raw));
}

pub fn a_runs_state_carries_who_wrote_it(s: &Stage) {
    let agent = s.process("p").claim(s.run("r").create());
    let namespace = run_namespace(&s.row(agent.run).id);
    let changes = vec![Change { namespace: namespace.clone(), ..change("k", "v") }];
    s.ask(Put { actor: Some((agent.actor(), agent.slot)), changes }).unwrap();
    let item = s.store().state(&namespace, "agent", "k").unwrap().unwrap();
    assert_eq!((item.run, item.attempt), (Some(agent.run), Some(agent.attempt)));
}
