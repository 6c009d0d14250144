//! History of a key: its value at a version, at a commit, at a time; lists, scans and the stream of events.

use outlast_core::{
    engine::state::put::Change,
    state::{At, Name, Position, ResumePoint},
    store::{
        Which,
        state::{EventRange, Moment, Scan},
    },
    words::id::Micros,
};

use crate::{
    stage::Stage,
    state::{change, commit, delete, of, put, within},
};

fn scan(prefix: &str) -> Scan {
    let (namespace, agent) = ("ns".into(), "agent".into());
    Scan { namespace, agent, prefix: prefix.into(), limit: 1000, ..Scan::default() }
}

fn keys(s: &Stage, scan: Scan) -> Vec<String> {
    s.store().state_keys(&scan).unwrap().into_iter().map(|k| k.key).collect()
}

fn range() -> EventRange {
    let (namespace, agent) = ("ns".into(), "agent".into());
    EventRange { namespace, agent, limit: 1000, ..EventRange::default() }
}

/// (commit, key, version) of an agent's events.
fn events(s: &Stage, range: EventRange) -> Vec<(i64, String, i64)> {
    let page = s.store().state_events(&range).unwrap();
    assert!(!page.compacted);
    page.events.into_iter().map(|e| (e.item.commit, e.item.key, e.item.version)).collect()
}

fn text(s: &Stage, at: At) -> Option<String> {
    let item = s.store().state_at("ns", "agent", "k", at.into()).unwrap()?;
    Some(item.value.map_or("deleted".into(), |v| String::from_utf8(v.to_vec()).unwrap()))
}

pub fn a_key_is_read_as_it_was_at_a_version(s: &Stage) {
    commit(s, vec![change("k", "one"), change("k", "two")]);
    commit(s, vec![delete("k")]);
    let at = |version| {
        let item = s.store().state_at("ns", "agent", "k", Which::Version(version)).unwrap()?;
        assert_eq!(item.version, version);
        Some(item.value.map(|v| String::from_utf8(v.to_vec()).unwrap()))
    };
    assert_eq!(at(1), Some(Some("one".into())));
    assert_eq!(at(2), Some(Some("two".into())));
    assert_eq!(at(3), Some(None));
    for none in [0, -1, 4, i64::MAX] {
        assert_eq!(at(none), None);
    }
    assert!(s.store().state_at("ns", "agent", "never", Which::Version(1)).unwrap().is_none());
}

pub fn a_key_is_read_as_it_was_after_a_commit(s: &Stage) {
    commit(s, vec![change("other", "x")]);
    commit(s, vec![change("k", "one"), change("k", "two")]);
    commit(s, vec![change("other", "y")]);
    commit(s, vec![delete("k")]);
    commit(s, vec![change("k", "again")]);
    for (n, want) in
        [(0, None), (1, None), (2, Some("two")), (3, Some("two")), (4, Some("deleted")), (5, Some("again"))]
    {
        assert_eq!(text(s, At::Commit(n)).as_deref(), want, "after commit {n}");
    }
    assert_eq!(text(s, At::Commit(i64::MAX)).as_deref(), Some("again"));
    assert_eq!(text(s, At::Position(Position(2))).as_deref(), Some("one"));
    assert_eq!(text(s, At::Time(s.store().now().unwrap())).as_deref(), Some("again"));
    assert_eq!(text(s, At::Time(Micros(0))), None);
}

pub fn a_key_is_read_as_it_was_at_a_time(s: &Stage) {
    let began = s.store().now().unwrap();
    for value in ["one", "two", "three"] {
        commit(s, vec![change("k", value)]);
        s.advance_ms(1000);
    }
    for (ms, want) in
        [(-1, None), (0, Some("one")), (999, Some("one")), (1000, Some("two")), (5000, Some("three"))]
    {
        assert_eq!(text(s, At::Time(began.plus_ms(ms))).as_deref(), want, "{ms} ms");
    }
    let from_to = |from: i64, to: i64| {
        let (from, to) = (Moment::Time(began.plus_ms(from)), Moment::Time(began.plus_ms(to)));
        let found = events(s, EventRange { from: Some(from), to: Some(to), ..range() });
        found.into_iter().map(|e| e.0).collect::<Vec<_>>()
    };
    assert_eq!(from_to(0, 2000), [1, 2, 3]);
    assert_eq!(from_to(1, 1999), [2]);
    assert_eq!(from_to(1000, 1000), [2]);
    assert_eq!(from_to(2001, 9000), [] as [i64; 0]);
    assert_eq!(from_to(2000, 0), [] as [i64; 0]);
}

pub fn a_namespaces_time_does_not_go_back_with_the_clock(s: &Stage) {
    commit(s, vec![change("k", "one")]);
    let first = s.store().state("ns", "agent", "k").unwrap().unwrap().at;
    s.set_clock(Micros(first.0 - 5_000_000));
    commit(s, vec![change("k", "two")]);
    assert_eq!(s.store().state("ns", "agent", "k").unwrap().unwrap().at, first);
    assert_eq!(text(s, At::Time(first)).as_deref(), Some("two"));
    assert_eq!(s.store().namespace("ns").unwrap().unwrap().at, first);
}

pub fn a_history_is_read_by_page_and_with_its_tombstones(s: &Stage) {
    for i in 0..5 {
        commit(s, vec![if i == 2 { delete("k") } else { change("k", &i.to_string()) }]);
    }
    let page = |after, limit| {
        let h = s.store().state_history("ns", "agent", "k", after, limit).unwrap();
        assert_eq!(h.oldest, 1);
        h.items.iter().map(|i| (i.version, i.value.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(page(0, 2), [(1, true), (2, true)]);
    assert_eq!(page(2, 2), [(3, false), (4, true)]);
    assert_eq!(page(4, 2), [(5, true)]);
    assert_eq!(page(5, 2), []);
    assert_eq!(s.store().state_history("ns", "agent", "never", 0, 9).unwrap(), Default::default());
}

pub fn live_keys_are_listed_by_their_bytes_and_by_page(s: &Stage) {
    let all = [
        "",
        "a",
        "a\0",
        "a\0b",
        "a!",
        "ab",
        "b",
        "ba",
        "z",
        "é",
        "\u{10ffff}",
        "\u{10ffff}x",
        "%",
        "a%",
        "a_",
    ];
    for key in all {
        commit(s, vec![change(key, "v")]);
    }
    commit(s, vec![change("az", "v"), of("other", change("a2", "v")), within("other", change("a3", "v"))]);
    commit(s, vec![delete("az"), delete("never")]);
    let mut sorted = all.map(str::to_owned);
    sorted.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    for prefix in ["", "a", "a\0", "b", "é", "\u{10ffff}", "nothing", "%"] {
        let want: Vec<String> = sorted.iter().filter(|k| k.starts_with(prefix)).cloned().collect();
        assert_eq!(keys(s, scan(prefix)), want, "{prefix:?}");
        let mut paged = Vec::new();
        loop {
            let after = paged.last().cloned();
            let page = keys(s, Scan { after, limit: 2, ..scan(prefix) });
            if page.is_empty() {
                break;
            }
            paged.extend(page);
        }
        assert_eq!(paged, want, "{prefix:?} by page");
    }
    assert_eq!(keys(s, Scan { after: Some("0".into()), ..scan("b") }), ["b", "ba"]);
    assert_eq!(keys(s, Scan { agent: "nobody".into(), ..scan("") }), [] as [&str; 0]);
    assert_eq!(keys(s, Scan { limit: 0, ..scan("") }), [] as [&str; 0]);
}

pub fn a_scan_gives_values_as_they_stood(s: &Stage) {
    commit(s, vec![change("a", "a1"), change("b", "b1"), change("x", "x1")]);
    commit(s, vec![delete("a"), change("b", "b2")]);
    let before = s.store().state_position().unwrap();
    commit(s, vec![change("c", "c3"), change("a", "a3")]);
    let found = |at| {
        let items = s.store().state_scan(&Scan { at, ..scan("") }).unwrap();
        let listed = s.store().state_keys(&Scan { at, ..scan("") }).unwrap();
        let shown: Vec<String> =
            items.iter().map(|i| String::from_utf8(i.value.clone().unwrap().to_vec()).unwrap()).collect();
        let versions = |keys: Vec<(String, i64)>| keys;
        assert_eq!(
            versions(items.into_iter().map(|i| (i.key, i.version)).collect()),
            versions(listed.into_iter().map(|l| (l.key, l.version)).collect())
        );
        shown.join(" ")
    };
    assert_eq!(found(At::Newest), "a3 b2 c3 x1");
    assert_eq!(found(At::Commit(3)), "a3 b2 c3 x1");
    assert_eq!(found(At::Position(before)), "b2 x1");
    assert_eq!(found(At::Commit(2)), "b2 x1");
    assert_eq!(found(At::Commit(1)), "a1 b1 x1");
    assert_eq!(found(At::Commit(0)), "");
    let page = Scan { at: At::Commit(1), after: Some("a".into()), limit: 1, ..scan("") };
    assert_eq!(keys(s, page), ["b"]);
}

pub fn an_agents_events_are_its_own_in_order_and_by_page(s: &Stage) {
    commit(s, vec![change("b", "1"), of("other", change("x", "1")), change("a", "1"), change("b", "2")]);
    commit(s, vec![of("other", change("x", "2"))]);
    commit(s, vec![delete("a"), within("elsewhere", change("y", "1"))]);
    let key = |n: i64, key: &str, version| (n, key.to_owned(), version);
    let all = [key(1, "b", 1), key(1, "a", 1), key(1, "b", 2), key(3, "a", 2)];
    assert_eq!(events(s, range()), all);
    let between = |from, to| events(s, EventRange { from, to, ..range() });
    let at = |n| Some(Moment::Commit(n));
    assert_eq!(between(at(1), at(2)), all[..3]);
    assert_eq!(between(at(2), None), all[3..]);
    assert_eq!(between(at(3), at(3)), all[3..]);
    assert_eq!(between(at(4), None), []);
    assert_eq!(between(None, at(0)), []);
    let (mut paged, mut after) = (Vec::new(), Position(0));
    for _ in 0..all.len() {
        let page = EventRange { after, limit: 1, from: at(1), ..range() };
        after = s.store().state_events(&page).unwrap().events[0].item.position;
        paged.extend(events(s, page));
    }
    assert_eq!(paged, all);
    // Following: what comes next, once, and nothing before.
    let next = || EventRange { after, ..range() };
    assert_eq!(events(s, next()), []);
    commit(s, vec![change("c", "1")]);
    assert_eq!(events(s, next()), [key(4, "c", 1)]);
    let deleted = &s.store().state_events(&range()).unwrap().events[3];
    assert_eq!((&deleted.item.value, &deleted.transaction), (&None, &None));
}

pub fn an_event_names_its_transaction(s: &Stage) {
    s.ask(outlast_core::engine::state::put::Put {
        transaction: Some("tx é".into()),
        ..put(vec![change("k", "v")])
    })
    .unwrap();
    let page = s.store().state_events(&range()).unwrap();
    assert_eq!(page.events[0].transaction.as_deref(), Some("tx é"));
}

pub fn namespaces_and_agents_are_listed(s: &Stage) {
    for (namespace, agent) in [("b", "y"), ("a", "x"), ("", ""), ("a", "w"), ("a", "\0")] {
        commit(s, vec![Change::set(Name::new(namespace, agent, "k"), b"v")]);
    }
    let namespaces = |after: Option<&str>, limit| {
        let found = s.store().namespaces(after.map(str::to_owned), limit).unwrap();
        found.into_iter().map(|n| (n.name, n.commit)).collect::<Vec<_>>()
    };
    let of = |name: &str, commit| (name.to_owned(), commit);
    assert_eq!(namespaces(None, 9), [of("", 1), of("a", 3), of("b", 1)]);
    assert_eq!(namespaces(Some(""), 1), [of("a", 3)]);
    assert_eq!(s.store().namespace("a").unwrap().map(|n| n.commit), Some(3));
    assert_eq!(s.store().namespace("none").unwrap(), None);
    assert_eq!(s.store().agents("a", None, 9).unwrap(), ["\0", "w", "x"]);
    assert_eq!(s.store().agents("a", Some("w".into()), 9).unwrap(), ["x"]);
    assert_eq!(s.store().agents("none", None, 9).unwrap(), [] as [&str; 0]);
}

fn step(n: i64, status: &str) -> Change {
    change(&format!("step:{n}"), &format!(r#"{{"action": {{"id": "{n}"}}, "status": "{status}"}}"#))
}

fn point(s: &Stage, prefix: &str) -> (i64, Option<i64>) {
    let ResumePoint { done, pending, .. } = s.store().resume_point("ns", "agent", prefix).unwrap();
    (done, pending)
}

pub fn a_loop_goes_on_behind_its_last_done_step(s: &Stage) {
    assert_eq!(point(s, "step:"), (-1, None));
    for n in 0..12 {
        commit(s, vec![step(n, "pending")]);
        assert_eq!(point(s, "step:"), (n - 1, Some(n)), "numeric order, not that of the text");
        commit(s, vec![step(n, "done")]);
        assert_eq!(point(s, "step:"), (n, None));
    }
    commit(s, vec![of("other", step(50, "done")), within("other", step(60, "done"))]);
    for odd in ["step:x", "step:", "step:-3", "steps:77", "step:1:88"] {
        commit(s, vec![change(odd, r#"{"status": "done"}"#)]);
    }
    s.reopen();
    assert_eq!(
        (point(s, "step:"), point(s, "steps:"), point(s, "step")),
        ((11, None), (77, None), (-1, None))
    );
}

/// Bug: a loop over `step:0000`, `step:0001`, … began again from the start. Consequence: its work was done, and paid,
/// twice. Cause: a number with leading zeros was taken for no number.
pub fn steps_with_leading_zeros_are_steps(s: &Stage) {
    let write = |n: i64, status: &str| {
        commit(s, vec![change(&format!("step:{n:02}"), &format!(r#"{{"status": "{status}"}}"#))]);
    };
    for n in 0..12 {
        write(n, "pending");
        let found = s.store().resume_point("ns", "agent", "step:").unwrap();
        let key = Some(format!("step:{n:02}"));
        assert_eq!((found.done, found.pending, found.pending_key), (n - 1, Some(n), key));
        write(n, "done");
    }
    s.reopen();
    assert_eq!(point(s, "step:"), (11, None));
}

pub fn a_step_that_changes_or_goes_moves_the_resume_point_back(s: &Stage) {
    commit(s, vec![step(1, "done"), step(2, "done"), step(3, "pending"), step(2, "pending")]);
    assert_eq!(point(s, "step:"), (1, Some(3)));
    commit(s, vec![delete("step:3"), step(2, "failed")]);
    assert_eq!(point(s, "step:"), (1, None));
    commit(s, vec![change("step:1", "no json"), step(2, "done"), delete("step:2")]);
    assert_eq!(point(s, "step:"), (-1, None));
    commit(s, vec![step(2, "done")]);
    assert_eq!(point(s, "step:"), (2, None));
}

pub fn a_prefix_may_be_empty_or_end_in_a_digit(s: &Stage) {
    for key in ["7", "v20", "v29", "v210", "v3", "v2", "v201", "v200"] {
        commit(s, vec![change(key, r#"{"status": "done"}"#)]);
    }
    commit(s, vec![change("v211", r#"{"status": "pending"}"#)]);
    assert_eq!((point(s, ""), point(s, "v"), point(s, "v2")), ((7, None), (210, Some(211)), (10, Some(11))));
}
