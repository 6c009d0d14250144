//! Retention: how much of the past is kept, and that reads of removed versions say so.

use outlast_core::{
    engine::{
        op::Actor,
        state::{
            put::{Change, Put},
            retain::{Compact, Retain},
        },
    },
    state::{At, Retention},
    store::{
        Which,
        state::{EventRange, Moment, Scan},
    },
};

use crate::{
    stage::Stage,
    state::{change, commit, delete, put, within},
};

fn keep(s: &Stage, keep: Retention) {
    s.ask(Retain { actor: None, namespace: "ns".into(), keep }).unwrap();
}

/// Compacts all of a namespace, and returns how many versions that removed.
fn compact(s: &Stage, before: Option<i64>) -> i64 {
    let (mut removed, mut after) = (0, 0);
    loop {
        let piece = s.ask(Compact { namespace: "ns".into(), before, after }).unwrap();
        removed += piece.removed;
        match piece.next {
            Some(next) => after = next,
            None => return removed,
        }
    }
}

fn versions(s: &Stage, key: &str) -> (Vec<i64>, i64) {
    let h = s.store().state_history("ns", "agent", key, 0, 10_000).unwrap();
    (h.items.iter().map(|i| i.version).collect(), h.oldest)
}

fn written(s: &Stage) {
    for i in 1..=5 {
        commit(s, vec![change("k", &i.to_string()), within("other", change("k", "x"))]);
    }
    commit(s, vec![delete("gone"), change("once", "x")]);
}

pub fn everything_is_kept_unless_it_is_said_otherwise(s: &Stage) {
    written(s);
    assert_eq!(s.store().namespace("ns").unwrap().unwrap().keep, Retention::All);
    assert_eq!(compact(s, None), 0);
    assert_eq!(versions(s, "k"), (vec![1, 2, 3, 4, 5], 1));
}

pub fn compaction_leaves_the_last_versions_and_says_what_is_gone(s: &Stage) {
    written(s);
    keep(s, Retention::Last(2));
    assert_eq!(versions(s, "k").1, 1, "retain removes nothing by itself");
    assert_eq!((compact(s, None), compact(s, None)), (3, 0));
    s.reopen();
    let store = s.store();
    assert_eq!(versions(s, "k"), (vec![4, 5], 4));
    assert_eq!((versions(s, "gone"), versions(s, "once")), ((vec![1], 1), (vec![1], 1)));
    let gone = |e: outlast_core::store::Error| (e.code(), e.to_string().contains("versions below 4"));
    let says_so = ("compacted", true);
    assert_eq!(gone(store.state_at("ns", "agent", "k", Which::Version(3)).unwrap_err()), says_so);
    assert_eq!(gone(store.state_at("ns", "agent", "k", At::Commit(3).into()).unwrap_err()), says_so);
    assert_eq!(
        store.state_at("ns", "agent", "k", At::Commit(0).into()).unwrap(),
        None,
        "it was not there yet"
    );
    assert_eq!(store.state_at("ns", "agent", "k", At::Commit(4).into()).unwrap().unwrap().version, 4);
    assert_eq!(store.state_at("ns", "agent", "once", At::Commit(3).into()).unwrap(), None);
    let (namespace, agent) = ("ns".to_owned(), "agent".to_owned());
    let scan = Scan { namespace, agent, at: At::Commit(3), limit: 9, ..Scan::default() };
    assert_eq!(gone(store.state_scan(&scan).unwrap_err()), says_so);
    assert_eq!(gone(store.state_keys(&scan).unwrap_err()), says_so);
    assert_eq!(store.state_keys(&Scan { at: At::Commit(4), ..scan }).unwrap().len(), 1);
    let (namespace, agent) = ("ns".to_owned(), "agent".to_owned());
    let range = EventRange { namespace, agent, limit: 99, ..EventRange::default() };
    let page = store.state_events(&range).unwrap();
    assert!(page.compacted);
    assert_eq!(page.events.iter().map(|e| e.item.commit).collect::<Vec<_>>(), [4, 5, 6, 6]);
    let page = store.state_events(&EventRange { from: Some(Moment::Commit(4)), ..range.clone() }).unwrap();
    assert!(!page.compacted && page.events.len() == 4);
    let empty = EventRange { to: Some(Moment::Commit(2)), ..range };
    let page = store.state_events(&empty).unwrap();
    assert!(page.compacted && page.events.is_empty());
    // Other namespaces keep theirs, and this one goes on counting.
    assert_eq!(store.state_history("other", "agent", "k", 0, 9).unwrap().items.len(), 5);
    commit(s, vec![change("k", "six")]);
    assert_eq!((versions(s, "k"), compact(s, None)), ((vec![5, 6], 5), 0));
}

pub fn what_was_replaced_before_a_commit_can_be_removed(s: &Stage) {
    written(s);
    assert_eq!(compact(s, Some(0)), 0);
    assert_eq!(compact(s, Some(3)), 2);
    assert_eq!(versions(s, "k"), (vec![3, 4, 5], 3));
    let stood = s.store().state_at("ns", "agent", "k", At::Commit(3).into()).unwrap().unwrap();
    assert_eq!(stood.version, 3, "what stood at the commit is still there");
    assert_eq!(compact(s, Some(i64::MAX)), 2);
    assert_eq!(versions(s, "k"), (vec![5], 5));
}

pub fn a_compaction_goes_on_in_bounded_pieces(s: &Stage) {
    for _ in 0..3 {
        commit(s, (0..700).map(|i| change(&format!("k{i}"), "v")).collect());
    }
    commit(s, (0..2500).map(|_| change("busy", "v")).collect());
    keep(s, Retention::Last(1));
    let first = s.ask(Compact { namespace: "ns".into(), before: None, after: 0 }).unwrap();
    assert!(first.removed > 0 && first.removed <= 1024 && first.next.is_some(), "{first:?}");
    assert_eq!(compact(s, None) + first.removed, 1400 + 2499);
    assert_eq!((versions(s, "busy"), versions(s, "k699")), ((vec![2500], 2500), (vec![3], 3)));
}

pub fn fewer_than_one_version_cannot_be_kept(s: &Stage) {
    written(s);
    for n in [0, -1, i64::MIN] {
        s.refuses("bad_keep", Retain { actor: None, namespace: "ns".into(), keep: Retention::Last(n) });
    }
    keep(s, Retention::Last(i64::MAX));
    assert_eq!(compact(s, None), 0);
    keep(s, Retention::Last(1));
    keep(s, Retention::All);
    assert_eq!(compact(s, None), 0);
}

pub fn an_unknown_namespace_can_be_told_what_to_keep(s: &Stage) {
    keep(s, Retention::Last(1));
    assert_eq!(compact(s, None), 0);
    let namespace = s.store().namespace("ns").unwrap().unwrap();
    assert_eq!((namespace.commit, namespace.keep), (0, Retention::Last(1)));
    assert_eq!(commit(s, vec![change("k", "1"), change("k", "2")]), 1);
    assert_eq!((compact(s, None), versions(s, "k")), (0, (vec![2], 2)));
}

pub fn a_change_removes_what_its_namespace_does_not_keep(s: &Stage) {
    for i in 0..10 {
        commit(s, vec![change("k", &i.to_string()), within("other", change("k", "x"))]);
    }
    keep(s, Retention::Last(2));
    let written = |changes: Vec<Change>| {
        commit(s, changes);
        s.reopen();
        let (kept, oldest) = versions(s, "k");
        (kept.len(), oldest)
    };
    // A few more than it adds, until only those are there that are kept.
    assert_eq!(written(vec![change("k", "x")]), (7, 5));
    assert_eq!(written(vec![change("k", "x")]), (4, 9));
    assert_eq!(written(vec![change("k", "x")]), (2, 12));
    for newest in 14..17 {
        assert_eq!(written(vec![delete("k")]), (2, newest - 1));
    }
    let store = s.store();
    let error = store.state_at("ns", "agent", "k", Which::Version(14)).unwrap_err();
    assert_eq!(error.code(), "compacted");
    assert_eq!(store.state_at("ns", "agent", "k", Which::Version(15)).unwrap().unwrap().version, 15);
    assert_eq!(store.state("ns", "agent", "k").unwrap().unwrap().version, 16);
    assert_eq!(store.state_history("other", "agent", "k", 0, 99).unwrap().items.len(), 10);
    // A key that is new, and written more often at once than is kept.
    commit(s, (0..5).map(|i| change("new", &i.to_string())).collect());
    assert_eq!((versions(s, "new"), compact(s, None)), ((vec![4, 5], 4), 0));
    let (namespace, agent) = ("ns".to_owned(), "agent".to_owned());
    let range = EventRange { namespace, agent, limit: 99, ..EventRange::default() };
    let page = store.state_events(&range).unwrap();
    assert!(page.compacted);
    let told: Vec<_> = page.events.iter().map(|e| (e.item.key.as_str(), e.item.version)).collect();
    assert_eq!(told, [("k", 15), ("k", 16), ("new", 4), ("new", 5)]);
}

pub fn a_run_says_what_is_kept_of_its_own_namespace_only(s: &Stage) {
    let process = s.process("p");
    let old = process.claim(s.run("own").create());
    let says = |actor: Actor, namespace: &str| Retain {
        actor: Some((actor, old.slot)),
        namespace: namespace.into(),
        keep: Retention::Last(1),
    };
    s.ask(says(old.actor(), "run:own")).unwrap();
    s.ask(says(old.actor(), "shared")).unwrap();
    s.refuses("read_only_namespace", says(old.actor(), "run:other"));
    let new = process.claim(old.run);
    s.refuses("lease_lost", says(old.actor(), "shared"));
    s.ask(says(new.actor(), "shared")).unwrap();
}

/// Needs a clock that is set.
pub fn ids_of_transactions_are_forgotten_when_they_are_old_a_few_at_a_time(s: &Stage) {
    const DAY_MS: u64 = 24 * 3600 * 1000;
    let once = |id: String| {
        let changes = vec![change("k", &id), within("other", change("k", &id))];
        Put { transaction: Some(id.into()), ..put(changes) }
    };
    let known = |ids: std::ops::Range<i32>| {
        let is_known = |i: &i32| s.store().transaction_outcome(&format!("t{i}")).unwrap().is_some();
        ids.filter(is_known).collect::<Vec<_>>()
    };
    (0..10).for_each(|i| drop(s.ask(once(format!("t{i}"))).unwrap()));
    s.advance_ms(7 * DAY_MS);
    s.ask(once("t10".into())).unwrap();
    assert_eq!(known(0..11), (0..11).collect::<Vec<_>>(), "as long as was promised");
    s.advance_ms(DAY_MS);
    for (turn, wanted) in [(11, 4..12), (12, 8..13)] {
        s.ask(once(format!("t{turn}"))).unwrap();
        s.reopen();
        assert_eq!(known(0..turn + 1), wanted.collect::<Vec<_>>());
    }
    // Ids of fewer than four old commits are kept until the next commits.
    (13..16).for_each(|i| drop(s.ask(once(format!("t{i}"))).unwrap()));
    assert_eq!(known(0..16), (8..16).collect::<Vec<_>>());
    // A known one is not done again; a forgotten one is a new transaction.
    let before = versions(s, "k").0.len();
    s.ask(once("t9".into())).unwrap();
    assert_eq!(versions(s, "k").0.len(), before);
    s.ask(once("t0".into())).unwrap();
    assert_eq!(versions(s, "k").0.len(), before + 1);
}
