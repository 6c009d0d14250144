//! Openings lost by a database that came back without its last commits, while their processes live.

use crate::{
    engine::{
        Actor, Admission, BeginStep, Error as Refused, NextTry, Record, Step,
        tests::bench::{Bench, Request},
    },
    envelope::Limits,
    journal::{Opening, Payload, State, iteration_scope},
    run::Policy,
    store::{Ask, Durability, Error},
    words::Slot,
};

fn rig() -> (Bench, Actor) {
    let b = Bench::new();
    let instance = b.register();
    let run = b.start("r", Limits::default(), None, Policy::default());
    let actor = b.claim(run, instance).unwrap().unwrap();
    (b, actor)
}

fn begin(b: &Bench, actor: Actor, key: &str) -> Opening {
    open(b, actor, key, false)
}

fn begin_with_retries(b: &Bench, actor: Actor, key: &str) -> Opening {
    open(b, actor, key, true)
}

fn open(b: &Bench, actor: Actor, key: &str, retries: bool) -> Opening {
    let (scope, slot) = (iteration_scope(1), Slot::DRIVER);
    let key = key.to_owned();
    let step = BeginStep { actor, slot, scope, key, within: None, retries, at_most_once: false };
    match b.store.ask(step, Durability::Committed).wait() {
        Ok(Step::Run { opening, .. }) => opening,
        other => panic!("{other:?}"),
    }
}

fn record(b: &Bench, opening: Opening, value: &str) -> Result<(), Error> {
    let value = Payload::encode(value.as_bytes());
    let record = Record { opening, value, failed: false, again: false, changes: Vec::new() };
    b.store.ask(record, Durability::Synced).wait().map(drop)
}

// Bug: a result was recorded as another step's. Consequence: each later life was given k1's value for k4. Cause: a
// closing named its entry by number and instance only; PostgreSQL restarted with `synchronous_commit = off`, lost
// k1's opening while its process lived, and gave the number out again.
#[test]
fn a_result_never_reaches_another_steps_number() {
    let (b, actor) = rig();
    let first = begin(&b, actor, "k1");
    b.store.lose_power();
    let gone = record(&b, first, "one");
    assert_eq!(gone, Err(Refused::UnknownEntry { id: "r".into(), seq: first.seq.0 }.into()));
    let fourth = begin(&b, actor, "k4");
    assert_eq!(fourth.seq, first.seq, "the number is given out again");
    assert_eq!(record(&b, first, "one"), Err(Refused::AlreadyTaken { seq: first.seq.0 }.into()));
    record(&b, fourth, "four").unwrap();
    assert_eq!(b.entry(actor.run, fourth.seq).key.as_deref(), Some("k4"));
}

// Bug: a step's next try was counted as another step's. Consequence: that one skipped tries that it had, and gave up
// early. Cause: the operation named its entry by number only. Found by the simulator, by 5 of 676,000 seeds.
#[test]
fn a_next_try_never_reaches_another_steps_number() {
    let (b, actor) = rig();
    let next = |opening| {
        let next = NextTry { actor, slot: Slot::DRIVER, opening };
        b.store.ask(next, Durability::Committed).wait()
    };
    let first = begin_with_retries(&b, actor, "k1");
    b.store.lose_power();
    assert_eq!(next(first), Err(Refused::NotWithin { seq: first.seq.0 }.into()));
    let fourth = begin_with_retries(&b, actor, "k4");
    assert_eq!(fourth.seq, first.seq, "the number is given out again");
    assert_eq!(next(first), Err(Refused::AlreadyTaken { seq: first.seq.0 }.into()));
    assert_eq!(next(fourth), Ok(2));
}

// Bug: as above, for calls. Consequence: one call's answer and cost were recorded as another's.
#[test]
fn an_answer_never_reaches_another_calls_number() {
    let (b, actor) = rig();
    let go = |prompt| match b.admit(actor, Request::of(prompt, 10), &[]) {
        Ok(Admission::Go { opening, .. }) => opening,
        other => panic!("{other:?}"),
    };
    // As an asynchronous standby that is promoted: what was synced is gone, too.
    let before = b.store.tables();
    let one = go(1);
    b.store.tamper(|tables| *tables = before);
    let two = go(2);
    assert_eq!((two.run, two.seq), (one.run, one.seq));
    let late = b.settle_opening(one, crate::engine::call::settle::Close::Void);
    assert_eq!(late.map(drop), Err(Refused::AlreadyTaken { seq: one.seq.0 }.into()));
    assert_eq!(b.entry(two.run, two.seq).state, State::Open);
}

// Bug: an attempt whose number was given out again was taken for its first holder's. Consequence: two processes
// opened steps in one attempt. Cause: the fence was compared, and not whose attempt it is.
#[test]
fn an_attempts_number_given_out_again_is_not_its_first_holders() {
    let b = Bench::new();
    let (mine, other) = (b.register(), b.register());
    let run = b.start("r", Limits::default(), None, Policy::default());
    let before = b.store.tables();
    let old = b.claim(run, mine).unwrap().unwrap();
    b.store.tamper(|tables| *tables = before);
    let new = b.claim(run, other).unwrap().unwrap();
    assert_eq!(new.attempt, old.attempt);
    let (scope, key) = (iteration_scope(1), "k".to_owned());
    let slot = Slot::DRIVER;
    let step = BeginStep { actor: old, slot, scope, key, within: None, retries: false, at_most_once: false };
    let refused = Refused::LeaseLost { id: "r".into(), attempt: old.attempt.0 };
    assert_eq!(b.store.ask(step, Durability::Committed).wait(), Err(refused.into()));
    begin(&b, new, "k");
}
