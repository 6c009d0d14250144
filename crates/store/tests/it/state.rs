//! State of a run: versioned keys, transactions, conflicts.

use outlast_core::{
    engine::{
        state::{
            put::{Change, Put},
            retain::Retain,
        },
        step::Record,
    },
    journal::State,
    reads::rows,
    run::snapshot,
    state::{Committed, Name, Retention, own::Table, run_namespace},
};

use crate::stage::Stage;

/// Sets `key` of agent `agent` in namespace `ns`.
pub fn change(key: &str, value: &str) -> Change {
    Change::set(Name::new("ns", "agent", key), value.as_bytes())
}

pub fn expecting(change: Change, version: i64) -> Change {
    change.expecting(version)
}

pub fn delete(key: &str) -> Change {
    Change::delete(Name::new("ns", "agent", key))
}

/// The same change in another namespace.
pub fn within(namespace: &str, change: Change) -> Change {
    let name = Name::new(namespace, &change.name.agent, &change.name.key);
    Change { name, ..change }
}

/// The same change of another agent.
pub fn of(agent: &str, change: Change) -> Change {
    let name = Name::new(&change.name.namespace, agent, &change.name.key);
    Change { name, ..change }
}

fn elsewhere(change: Change) -> Change {
    within("elsewhere", change)
}

pub fn put(changes: Vec<Change>) -> Put {
    Put { changes, ..Put::default() }
}

/// Commits `changes`, and returns their commit number.
pub fn commit(s: &Stage, changes: Vec<Change>) -> i64 {
    s.ask(put(changes)).unwrap().commit
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
        assert_eq!(commit(s, vec![change("k", value)]), version);
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
    let done = s.ask(put(vec![change("a", "1"), change("b", "1"), change("a", "2")])).unwrap();
    assert_eq!((done.commit, done.versions), (2, vec![2, 1, 3]));
    assert_eq!((at(s, "ns", "a"), at(s, "ns", "b")), (is(3, "2", 2), is(1, "1", 2)));
}

pub fn a_transaction_over_namespaces_takes_their_highest_commit_plus_one(s: &Stage) {
    for i in 0..4 {
        s.ask(put(vec![change("k", &i.to_string())])).unwrap();
    }
    assert_eq!(commit(s, vec![elsewhere(change("k", "x")), change("k", "x")]), 5);
    assert_eq!((at(s, "ns", "k"), at(s, "elsewhere", "k")), (is(5, "x", 5), is(1, "x", 5)));
    assert_eq!(commit(s, vec![elsewhere(change("k", "y"))]), 6);
}

pub fn a_conflict_names_both_versions_and_writes_nothing(s: &Stage) {
    s.ask(put(vec![change("k", "one")])).unwrap();
    let stale = put(vec![change("other", "x"), expecting(change("k", "two"), 0)]);
    let error = s.ask(stale.clone()).unwrap_err();
    let want = "expected version 0 of key \"k\" of agent \"agent\" in namespace \"ns\", and it is 1";
    assert_eq!(error.to_string(), want);
    s.refuses("conflict", stale);
    assert_eq!((at(s, "ns", "k"), at(s, "ns", "other")), (is(1, "one", 1), None));
}

pub fn the_expected_version_is_that_before_the_transaction(s: &Stage) {
    assert_eq!(commit(s, vec![expecting(change("k", "one"), 0)]), 1);
    assert_eq!(commit(s, vec![expecting(change("k", "two"), 1)]), 2);
    s.ask(put(vec![expecting(delete("k"), 2)])).unwrap();
    assert_eq!(commit(s, vec![expecting(change("k", "three"), 3)]), 4);
}

pub fn two_writers_that_read_the_same_version_do_not_both_win(s: &Stage) {
    s.ask(put(vec![change("n", "0")])).unwrap();
    let one = put(vec![expecting(change("n", "1"), 1)]);
    s.ask(one.clone()).unwrap();
    s.refuses("conflict", one);
}

pub fn an_empty_transaction_is_nothing(s: &Stage) {
    assert_eq!(commit(s, Vec::new()), 0);
    assert_eq!(commit(s, vec![change("k", "v")]), 1);
}

pub fn keys_are_kept_apart_by_namespace_and_agent(s: &Stage) {
    s.ask(put(vec![change("k", "one")])).unwrap();
    s.ask(put(vec![elsewhere(change("k", "two"))])).unwrap();
    s.ask(put(vec![of("other", change("k", "three"))])).unwrap();
    assert_eq!((at(s, "ns", "k"), at(s, "elsewhere", "k")), (is(1, "one", 1), is(1, "two", 1)));
    let other = s.store().state("ns", "other", "k").unwrap().unwrap();
    assert_eq!((other.version, other.commit), (1, 2));
}

pub fn keys_and_values_are_any_text_and_bytes(s: &Stage) {
    for (key, value) in [("", ""), ("é/ü\u{0}", "\u{1F680}"), ("a'; drop table runs; --", "\\x00")] {
        s.ask(put(vec![change(key, value)])).unwrap();
        assert_eq!(at(s, "ns", key).unwrap().1.as_deref(), Some(value), "{key:?}");
    }
    let raw: [u8; 4] = [0, 255, 128, 0];
    commit(s, vec![Change::set(Name::new("ns", "agent", "raw"), &raw)]);
    assert_eq!(s.store().state("ns", "agent", "raw").unwrap().unwrap().value.as_deref(), Some(&raw[..]));
}

pub fn keys_are_never_joined_to_one_text(s: &Stage) {
    let names = [
        ("ns", "a:b", "c"),
        ("ns", "a", "b:c"),
        ("ns:a", "b", "c"),
        ("ns", "a\0b", "c"),
        ("ns", "a", "b\0c"),
    ];
    for (namespace, agent, key) in names {
        let name = Name::new(namespace, agent, key);
        commit(s, vec![Change::set(name, format!("{namespace}/{agent}/{key}").as_bytes())]);
    }
    for (namespace, agent, key) in names {
        let item = s.store().state(namespace, agent, key).unwrap().unwrap();
        let want = format!("{namespace}/{agent}/{key}");
        assert_eq!((item.version, item.value.as_deref()), (1, Some(want.as_bytes())));
    }
}

pub fn large_values_are_kept_as_they_were(s: &Stage) {
    for len in [1000, 1 << 20, (5 << 20) + 7] {
        let text: String = (0..).map(|i| format!("{i} ")).take(len / 4).collect();
        commit(s, vec![change("k", &text)]);
        assert_eq!(
            s.store().state("ns", "agent", "k").unwrap().unwrap().value.as_deref(),
            Some(text.as_bytes())
        );
    }
}

pub fn a_runs_state_carries_who_wrote_it(s: &Stage) {
    let agent = s.process("p").claim(s.run("r").create());
    let namespace = run_namespace(&s.row(agent.run).id);
    let changes = vec![within(&namespace, change("k", "v"))];
    s.ask(Put { actor: Some((agent.actor(), agent.slot)), ..put(changes) }).unwrap();
    let item = s.store().state(&namespace, "agent", "k").unwrap().unwrap();
    assert_eq!((item.run, item.attempt), (Some(agent.run), Some(agent.attempt)));
}

pub fn a_runs_namespace_is_written_by_that_run_only(s: &Stage) {
    let process = s.process("p");
    let (own, other) = (process.claim(s.run("own").create()), process.claim(s.run("other").create()));
    let into = |namespace: &str| put(vec![change("x", "v"), within(namespace, change("k", "v"))]);
    for namespace in ["run:own", "run:other", "run:", "run:nobody"] {
        s.refuses("read_only_namespace", into(namespace));
    }
    let by_own = |namespace: &str| Put { actor: Some((own.actor(), own.slot)), ..into(namespace) };
    s.refuses("read_only_namespace", by_own("run:other"));
    s.ask(by_own("run:own")).unwrap();
    s.ask(by_own("shared")).unwrap();
    let seq = other.begins("step");
    let changes = vec![within("run:own", change("k", "v"))];
    let record = Record { changes, ..other.record(seq, "x") };
    s.refuses("read_only_namespace", record);
}

/// Bug: whoever showed no credential replaced a policy, or wrote what is none, by a change of the state.
/// Consequence: the next run was under no limit, or every request was told that the store was damaged.
/// Cause: runs were kept out of Outlast's own tables, and nobody else was.
pub fn tables_of_outlasts_own_take_no_callers_changes(s: &Stage) {
    let agent = s.process("p").claim(s.run("r").create());
    let names = Table::ALL.map(|table| table.name("k"));
    let snapshot = Name::new(snapshot::namespace(&s.row(agent.run).id), snapshot::AGENT, "k");
    for name in names.into_iter().chain([snapshot, Name::new("outlast:other", "", "")]) {
        let changes = || vec![change("x", "v"), Change::set(name.clone(), b"nonsense")];
        let actor = Some((agent.actor(), agent.slot));
        s.refuses("read_only_namespace", put(changes()));
        s.refuses("read_only_namespace", put(vec![Change::delete(name.clone())]));
        s.refuses("read_only_namespace", Put { actor, ..put(changes()) });
        let record = Record { changes: changes(), ..agent.record(agent.begins("step"), "x") };
        s.refuses("read_only_namespace", record);
        for actor in [None, actor] {
            let (namespace, keep) = (name.namespace.clone(), Retention::Last(1));
            s.refuses("read_only_namespace", Retain { actor, namespace, keep });
        }
    }
}

pub fn a_row_of_outlasts_own_is_kept_as_its_table_says(s: &Stage) {
    for table in Table::ALL {
        let row = |n: i64| rows::put(table, "k", &n, n).unwrap();
        (0..3).for_each(|n| drop(s.ask(row(n)).unwrap()));
        s.refuses("conflict", row(1));
        let item = rows::find(&*s.store(), table, "k").unwrap().unwrap();
        assert_eq!((rows::decode::<i64>(&item).unwrap(), item.version), (Some(2), 3));
        let kept = s.store().namespace(table.namespace()).unwrap().unwrap().keep;
        assert_eq!(kept, table.keep());
    }
}

pub fn a_stale_attempt_writes_no_state(s: &Stage) {
    let process = s.process("p");
    let old = process.claim(s.run("r").create());
    let by =
        |a: &crate::agent::Agent| Put { actor: Some((a.actor(), a.slot)), ..put(vec![change("k", "v")]) };
    s.ask(by(&old)).unwrap();
    let new = process.claim(old.run);
    s.refuses("lease_lost", by(&old));
    s.ask(by(&new)).unwrap();
    let item = s.store().state("ns", "agent", "k").unwrap().unwrap();
    assert_eq!((item.version, item.attempt), (2, Some(new.attempt)));
}

pub fn a_stale_attempts_result_that_changes_the_state_is_refused_whole(s: &Stage) {
    let process = s.process("p");
    let old = process.claim(s.run("r").create());
    let (seq, plain) = (old.begins("step"), old.begins("plain"));
    let new = process.claim(old.run);
    let changing = |a: &crate::agent::Agent| Record { changes: vec![change("k", "v")], ..a.record(seq, "x") };
    s.refuses("lease_lost", changing(&old));
    assert_eq!(at(s, "ns", "k"), None);
    assert_eq!(s.entry(old.run, seq).state, State::Open);
    // A result alone is closed by the process that opened it, whoever drives the run now.
    s.ask(old.record(plain, "x")).unwrap();
    // The next attempt begins the step anew, and its result and what it changed commit.
    assert_eq!(new.begins("step"), seq);
    s.ask(changing(&new)).unwrap();
    let item = s.store().state("ns", "agent", "k").unwrap().unwrap();
    assert_eq!((item.version, item.attempt), (1, Some(new.attempt)));
}

pub fn a_dead_processs_result_changes_no_state(s: &Stage) {
    let process = s.process("p");
    let agent = process.claim(s.run("r").create());
    let seq = agent.begins("step");
    process.dies();
    let changes = vec![change("k", "v")];
    s.refuses("instance_dead", Record { changes, ..agent.record(seq, "x") });
    assert_eq!(at(s, "ns", "k"), None);
}

pub fn a_transaction_is_committed_once_under_its_id(s: &Stage) {
    let once = |value: &str| Put { transaction: Some("tx 1".into()), ..put(vec![change("k", value)]) };
    assert_eq!(s.store().transaction_outcome("tx 1").unwrap(), None);
    let first = s.ask(once("one")).unwrap();
    commit(s, vec![change("k", "two")]);
    s.reopen();
    let recorded = Committed { versions: Vec::new(), ..first };
    assert_eq!(s.ask(once("three")).unwrap(), recorded);
    assert_eq!(s.store().transaction_outcome("tx 1").unwrap(), Some(recorded));
    assert_eq!(at(s, "ns", "k"), is(2, "two", 2));
    assert_eq!(s.store().transaction_outcome("tx 2").unwrap(), None);
}

pub fn a_refused_transaction_leaves_no_outcome(s: &Stage) {
    commit(s, vec![change("k", "one")]);
    let stale = Put { transaction: Some("tx".into()), ..put(vec![change("k", "two").expecting(0)]) };
    s.refuses("conflict", stale.clone());
    assert_eq!(s.store().transaction_outcome("tx").unwrap(), None);
    s.ask(Put { changes: vec![change("k", "two").expecting(1)], ..stale }).unwrap();
    assert!(s.store().transaction_outcome("tx").unwrap().is_some());
}

pub fn the_first_to_commit_wins_where_that_is_asked_for(s: &Stage) {
    commit(s, vec![change("a", "0"), change("b", "0")]);
    let began = s.store().state_position().unwrap();
    let since = |key: &str| Change { unchanged_since: Some(began), ..change(key, "mine") };
    commit(s, vec![change("a", "theirs")]);
    let error = s.ask(put(vec![since("b"), since("a")])).unwrap_err();
    assert!(error.to_string().contains("commit 2 made it version 2"), "{error}");
    s.refuses("conflict", put(vec![since("b"), since("a")]));
    assert_eq!(commit(s, vec![since("b"), since("new")]), 3);
    s.refuses("conflict", put(vec![since("new")]));
}

pub fn versions_and_history_go_on_after_a_restart_between_any_two_commits(s: &Stage) {
    for turn in 1..=4 {
        let done = s.ask(put(vec![change("k", &turn.to_string()), change("l", "x"), delete("l")])).unwrap();
        assert_eq!((done.commit, done.versions), (turn, vec![turn, 2 * turn - 1, 2 * turn]));
        s.reopen();
        let kept = s.store().state_history("ns", "agent", "k", 0, 100).unwrap();
        let had: Vec<(i64, i64)> = kept.items.iter().map(|i| (i.version, i.commit)).collect();
        assert_eq!((had, kept.oldest), ((1..=turn).map(|v| (v, v)).collect(), 1));
    }
}
