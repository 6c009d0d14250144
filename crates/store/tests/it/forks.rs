//! Forks: what a run shares with the one it came from.

use outlast_core::{
    engine::{
        checkpoint::{self, Checkpoint},
        item::ClaimItem,
        run::{end_attempt::Then, start::Snapshot},
        state::put::{Change, Put},
        step::Step,
    },
    envelope::unit::{Limits, Unit},
    journal::{
        Kind, Role,
        job::{ItemClaim, OnChange, Standing},
        payload::Payload,
    },
    reads::{self, forks::Point},
    state::Name,
    store::{Page, Sought, state::Scan},
    words::id::{AttemptNo, RunId, RunNo, Seq},
};

use crate::{agent::*, stage::Stage};

fn fork(s: &Stage, origin: RunNo, point: Point, id: &str) -> RunNo {
    let id = RunId::new(id).unwrap();
    let fork = reads::forks::prepare(&*s.store(), origin, &point, id, Limits::default()).unwrap();
    s.ask(fork).unwrap().run
}

fn now(s: &Stage, run: RunNo) -> Point {
    Point::Seq(Seq(s.row(run).next_seq.0 - 1))
}

fn names(s: &Stage, run: RunNo, name: &str) -> Point {
    let id = s.row(run).id;
    s.ask(Snapshot { run, id, name: name.into() }).unwrap();
    Point::Name(name.into())
}

fn does(a: &Agent, key: &str, value: &str) -> Seq {
    let seq = a.begins(key);
    a.ask(a.record(seq, value)).unwrap();
    seq
}

fn value(s: &Stage, run: RunNo, seq: Seq) -> Vec<u8> {
    s.store().payload(run, seq, Role::Value).unwrap().unwrap().decode().unwrap().into()
}

pub fn a_fork_goes_on_from_where_its_origin_was(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let plan = does(&a, "plan", "the plan");
    let (name, value_of) = (checkpoint::Name::of_agent("cursor").unwrap(), Payload::encode(b"3"));
    a.ask(Checkpoint { actor: a.actor(), slot: a.slot, name, value: value_of }).unwrap();
    let run = fork(s, a.run, now(s, a.run), "f");
    s.reopen();
    let f = s.process("q").claim(run);
    assert_eq!(f.ask(f.step("plan")).unwrap(), Step::Done { seq: plan });
    assert_eq!(value(s, run, plan), b"the plan");
    let newest = s.store().newest(run, &Sought::done(Kind::Checkpoint, "cursor")).unwrap().unwrap();
    assert_eq!(value(s, run, newest.seq), b"3");
    let own = does(&f, "write", "a text");
    assert_eq!(own, Seq(3), "its places follow those it shares");
    assert_eq!(does(&a, "write", "another"), Seq(3), "and its origin goes its own way");
    assert_eq!((value(s, run, own), value(s, a.run, Seq(3))), (b"a text".to_vec(), b"another".to_vec()));
}

pub fn a_forks_state_begins_with_what_its_origin_knew_then(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let name = |run: &str, key: &str| Name::new(format!("run:{run}"), "writer", key);
    let put = |a: &Agent, changes: Vec<Change>| {
        let actor = Some((a.actor(), a.slot));
        a.ask(Put { actor, changes, transaction: None })
    };
    let set = |run: &str, key: &str, value: &str| Change::set(name(run, key), value.as_bytes());
    put(&a, vec![set("r", "notes", "first"), set("r", "gone", "x")]).unwrap();
    put(&a, vec![Change::delete(name("r", "gone"))]).unwrap();
    let point = names(s, a.run, "then");
    s.wait_a_moment();
    put(&a, vec![set("r", "notes", "later"), set("r", "new", "y")]).unwrap();
    let run = fork(s, a.run, point.clone(), "f");
    s.reopen();
    let f = s.process("q").claim(run);
    let scan = |run: &str| {
        let scan =
            Scan { namespace: format!("run:{run}"), agent: "writer".into(), limit: 9, ..Scan::default() };
        let found = s.store().state_scan(&scan).unwrap();
        found.into_iter().map(|i| (i.key, i.value.unwrap().to_vec(), i.run)).collect::<Vec<_>>()
    };
    assert_eq!(scan("f"), [("notes".to_owned(), b"first".to_vec(), Some(run))]);
    put(&f, vec![set("f", "notes", "its own").expecting(1)]).unwrap();
    assert_eq!(fork(s, a.run, point, "f"), run, "asked for again, it is as it is");
    assert_eq!(scan("f")[0].1, b"its own");
    assert_eq!(scan("r")[1].1, b"later");
    let refused = put(&f, vec![set("r", "notes", "stolen")]).unwrap_err();
    assert_eq!(refused.code(), "read_only_namespace");
}

pub fn what_a_fork_shares_is_read_as_its_own(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    for i in 0..5 {
        does(&a, &format!("s{i}"), &format!("{i}"));
    }
    let run = fork(s, a.run, Point::Seq(Seq(3)), "f");
    let f = s.process("q").claim(run);
    does(&f, "own", "x");
    let (mut seen, mut after) = (Vec::new(), Seq(0));
    loop {
        let page = s.store().steps(run, after, 2).unwrap();
        let Some((last, _)) = page.last() else { break };
        after = last.seq;
        seen.extend(page.into_iter().map(|(row, v)| (row.key, v.unwrap().decode().unwrap())));
    }
    let wanted = [("s0", "0"), ("s1", "1"), ("s2", "2"), ("own", "x")];
    assert_eq!(seen, wanted.map(|(k, v)| (k.to_owned(), v.into())));
    let e = s.store().entry(run, Seq(2)).unwrap().unwrap();
    assert_eq!((e.run, e.spent.cost()), (run, 0));
    assert_eq!(s.store().entry(run, Seq(5)).unwrap(), None);
}

pub fn what_was_open_or_came_later_is_not_shared(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let open = a.begins("open");
    let point = names(s, a.run, "before");
    s.wait_a_moment();
    a.ask(a.record(open, "too late")).unwrap();
    does(&a, "later", "x");
    let run = fork(s, a.run, point, "f");
    assert_eq!(s.store().steps(run, Seq(0), 10).unwrap(), []);
    let f = s.process("q").claim(run);
    for key in ["open", "later"] {
        assert!(matches!(f.ask(f.step(key)).unwrap(), Step::Run { begun_before: false, .. }), "{key}");
    }
}

pub fn answers_are_replayed_to_a_fork_and_not_paid_again(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let seq = a.buys("ask", 10);
    let run = fork(s, a.run, now(s, a.run), "f");
    a.buys("ask later", 10);
    let f = s.process("q").claim(run);
    assert_eq!(f.request("ask").replays(), seq);
    assert_eq!(
        s.store().payload(run, seq, Role::Answer).unwrap(),
        s.store().payload(a.run, seq, Role::Answer).unwrap()
    );
    f.request("ask later").goes();
    assert_eq!(s.store().run(run).unwrap().unwrap().envelope.spent.cost(), 0);
}

pub fn five_identical_answers_are_five_to_a_fork_too(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let bought: Vec<Seq> = (0..3).map(|_| a.buys("ask", 10)).collect();
    let run = fork(s, a.run, now(s, a.run), "f");
    let f = s.process("q").claim(run);
    for seq in &bought {
        assert_eq!(f.request("ask").replays(), *seq);
        f.delivered(*seq);
    }
    f.request("ask").goes();
    // Another life of it takes them again.
    f.ends(Then::Interrupt { by_person: false });
    let f = s.process("q2").claim(run);
    assert_eq!(f.request("ask").replays(), bought[0]);
}

pub fn a_fork_is_charged_to_its_origin(s: &Stage) {
    let a = s.process("p").claim(s.run("r").limit(Unit::CostNanoUsd, 1_000_000).create());
    a.buys("ask", 10);
    let run = fork(s, a.run, now(s, a.run), "f");
    let f = s.process("q").claim(run);
    f.buys("more", 20);
    let spent = |run| s.store().run(run).unwrap().unwrap().envelope.spent.cost();
    assert_eq!((spent(run), spent(a.run)), (20, 30));
}

pub fn a_forks_items_are_those_of_the_snapshot(s: &Stage) {
    let mut a = s.process("p").works(s.run("r").job().create());
    for key in ["a", "b"] {
        let seq = a.item(key).opening.seq;
        a.item_done(seq, "first");
    }
    let seq = a.item("failed").opening.seq;
    a.item_failed(seq);
    let open = a.item("open").opening.seq;
    let point = names(s, a.run, "before");
    s.wait_a_moment();
    a.item_done(open, "late");
    a.ends(Then::Interrupt { by_person: false });
    a = s.process("p2").works(a.run);
    let changed =
        ClaimItem { content: Some(outlast_core::words::digest::Digest::of(b"2")), ..a.claiming_item("c") };
    a.ask(changed).unwrap();
    // An entry that later replaces a shared item changes nothing in the fork.
    s.ask(outlast_core::engine::item::ResetItem { run: a.run, key: "a".into(), reuse_answers: false })
        .unwrap();
    let run = fork(s, a.run, point, "f");
    let rows = s.store().items(run, &Page::new(Seq(0), 10).with_values()).unwrap();
    let told: Vec<_> = rows.into_iter().map(|(r, v)| (r.key, v.unwrap().decode().unwrap())).collect();
    assert_eq!(told, ["a", "b"].map(|k| (k.to_owned(), b"first"[..].into())));
    assert_eq!(s.row(run).job.unwrap().counts.done, 2);
    let f = s.process("q").works(run);
    for (key, runs) in [("a", false), ("b", false), ("failed", true), ("open", true), ("c", true)] {
        let claim = f.ask(f.claiming_item(key)).unwrap();
        assert_eq!(matches!(claim, ItemClaim::Run(_)), runs, "{key}: {claim:?}");
    }
    assert_eq!(
        s.store().newest(run, &Sought::item("b")).unwrap().unwrap().item.unwrap().standing,
        Standing::Done
    );
}

pub fn a_shared_item_that_runs_anew_is_the_forks_own(s: &Stage) {
    let a = s.process("p").works(s.run("r").job().create());
    let claim = |a: &Agent, text: &str| ClaimItem {
        content: Some(outlast_core::words::digest::Digest::of(text.as_bytes())),
        on_change: OnChange::Rerun,
        ..a.claiming_item("a")
    };
    let ItemClaim::Run(item) = a.ask(claim(&a, "one")).unwrap() else { panic!("not claimed") };
    a.item_done(item.opening.seq, "first");
    let run = fork(s, a.run, now(s, a.run), "f");
    let f = s.process("q").works(run);
    let ItemClaim::Run(again) = f.ask(claim(&f, "two")).unwrap() else { panic!("not claimed") };
    f.item_done(again.opening.seq, "second");
    s.reopen();
    let read = |run| {
        let rows = s.store().items(run, &Page::new(Seq(0), 10).with_values()).unwrap();
        rows.into_iter().map(|(_, v)| v.unwrap().decode().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((read(a.run), read(run)), (vec![b"first"[..].into()], vec![b"second"[..].into()]));
    assert_eq!(s.row(run).job.unwrap().counts.done, 1);
    assert_eq!(s.entry(a.run, item.opening.seq).retried_by, None, "its origin is as it was");
}

/// Bug: a fork of a fork counted an item twice that had run anew in the first fork.
/// Consequence: its job seemed to have more items done than there are, and never matched its own list.
/// Cause: the items of each origin were counted by themselves, also where a nearer one has a row of its own.
pub fn a_fork_of_a_fork_counts_an_item_that_ran_anew_once(s: &Stage) {
    let a = s.process("p").works(s.run("r").job().create());
    for key in ["a", "b"] {
        let seq = a.item(key).opening.seq;
        a.item_done(seq, "first");
    }
    let first = fork(s, a.run, now(s, a.run), "f1");
    let reset = outlast_core::engine::item::ResetItem { run: first, key: "a".into(), reuse_answers: false };
    s.ask(reset).unwrap();
    let f = s.process("q").works(first);
    let seq = f.item("a").opening.seq;
    f.item_done(seq, "second");
    let second = fork(s, first, now(s, first), "f2");
    assert_eq!(s.row(second).job.unwrap().counts.done, 2);
    assert_eq!(s.store().items(second, &Page::new(Seq(0), 10)).unwrap().len(), 2);
}

pub fn a_fork_of_a_fork_shares_both(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    does(&a, "one", "1");
    let first = fork(s, a.run, now(s, a.run), "f1");
    does(&a, "not shared", "x");
    let f = s.process("q").claim(first);
    does(&f, "two", "2");
    let second = fork(s, first, now(s, first), "f2");
    does(&f, "three", "3");
    let g = s.process("g").claim(second);
    for (key, done) in [("one", true), ("two", true), ("three", false), ("not shared", false)] {
        assert_eq!(matches!(g.ask(g.step(key)).unwrap(), Step::Done { .. }), done, "{key}");
    }
    let keys: Vec<_> = s.store().steps(second, Seq(0), 2).unwrap().into_iter().map(|(r, _)| r.key).collect();
    assert_eq!(keys, ["one", "two"]);
}

pub fn a_fork_is_made_once(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    does(&a, "one", "1");
    let point = now(s, a.run);
    let run = fork(s, a.run, point.clone(), "f");
    does(&a, "two", "2");
    assert_eq!(fork(s, a.run, now(s, a.run), "f"), run);
    assert_eq!(s.row(run).next_seq, Seq(2), "it is as it was");
    let beyond = reads::forks::prepare(
        &*s.store(),
        a.run,
        &Point::Seq(Seq(9)),
        RunId::new("g").unwrap(),
        Limits::default(),
    );
    s.refuses("unknown_entry", beyond.unwrap());
}

pub fn points_are_found_by_name_place_and_attempt(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    does(&a, "one", "1");
    let name = names(s, a.run, "n");
    s.wait_a_moment();
    does(&a, "two", "2");
    a.ends(Then::Interrupt { by_person: false });
    s.wait_a_moment();
    let a = s.process("q").claim(a.run);
    does(&a, "three", "3");
    let seq =
        |point: &Point| reads::forks::find(&*s.store(), a.run, point).map(|o| o.seq.0).map_err(|e| e.code());
    assert_eq!(seq(&name), Ok(1));
    assert_eq!(seq(&Point::Seq(Seq(2))), Ok(2));
    assert_eq!(seq(&Point::Attempt(AttemptNo(1))), Ok(2));
    assert_eq!(seq(&Point::Attempt(AttemptNo(2))), Ok(3));
    assert_eq!(seq(&Point::Time(s.store().now().unwrap())), Ok(3));
    assert_eq!(seq(&Point::Time(outlast_core::words::id::Micros(0))), Ok(0));
    assert_eq!(seq(&Point::Name("none".into())), Err("unknown_snapshot"));
    assert_eq!(seq(&Point::Attempt(AttemptNo(7))), Err("unknown_snapshot"));
}
