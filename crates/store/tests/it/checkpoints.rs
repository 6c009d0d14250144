//! Checkpoints: the newest of a name counts.

use outlast_core::{
    engine::{
        checkpoint::{Checkpoint, Name, OURS, Used},
        run::{claim::Claim, end_attempt::Then},
    },
    envelope::unit::Unit,
    journal::{Kind, Role, payload::Payload},
    reads::entries::newest_saved,
    run::status::Status,
    store::Sought,
    words::id::Seq,
};

use crate::{agent::*, stage::Stage};

fn save(agent: &Agent, name: &str, value: &str) -> Seq {
    let (actor, slot, value) = (agent.actor(), agent.slot, Payload::encode(value.as_bytes()));
    let name = name.strip_prefix(OURS).map_or_else(|| Name::of_agent(name).unwrap(), Name::own);
    agent.ask(Checkpoint { actor, slot, name, value }).unwrap()
}

fn newest(s: &Stage, agent: &Agent, name: &str) -> Option<String> {
    let entry = s.store().newest(agent.run, &Sought::done(Kind::Checkpoint, name)).unwrap()?;
    let value = s.store().payload(agent.run, entry.seq, Role::Value).unwrap().unwrap();
    Some(String::from_utf8(value.decode().unwrap().to_vec()).unwrap())
}

pub fn the_newest_checkpoint_of_a_name_counts(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    assert_eq!(newest(s, &a, "draft"), None);
    save(&a, "draft", "one");
    save(&a, "other", "else");
    save(&a, "draft", "two");
    a.process.dies();
    s.reopen();
    assert_eq!((newest(s, &a, "draft"), newest(s, &a, "other")), (Some("two".into()), Some("else".into())));
}

pub fn a_checkpoint_outlives_iterations(s: &Stage) {
    let old = s.process("p").claim(s.run("r").create());
    save(&old, "draft", "one");
    old.ends(Then::Restart);
    let fresh = old.process.claim_by(Claim { fresh: true, ..old.process.claiming(old.run) });
    assert_eq!(newest(s, &fresh, "draft"), Some("one".into()));
    save(&fresh, "draft", "two");
    assert_eq!(newest(s, &fresh, "draft"), Some("two".into()));
}

pub fn checkpoints_of_other_runs_are_not_found(s: &Stage) {
    let process = s.process("p");
    let (a, b) = (process.claim(s.run("a").create()), process.claim(s.run("b").create()));
    save(&a, "draft", "one");
    assert_eq!(newest(s, &b, "draft"), None);
}

pub fn a_halted_run_still_saves(s: &Stage) {
    let a = s.process("p").claim(s.run("r").limit(Unit::Calls, 0).create());
    a.request("x").refused();
    assert_eq!(s.status(a.run), Status::Halted);
    save(&a, "draft", "what I have");
    assert_eq!(newest(s, &a, "draft"), Some("what I have".into()));
}

pub fn a_step_or_a_loop_of_the_same_name_is_no_checkpoint(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let seq = a.begins("draft");
    a.ask(a.record(seq, "a step's")).unwrap();
    a.ask(a.turn(Some("draft"))).unwrap();
    assert_eq!(newest(s, &a, "draft"), None);
}

pub fn the_newest_checkpoint_of_any_name_is_found_behind_what_is_kept_automatically(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let saved = || newest_saved(s.store().as_ref(), a.run).unwrap().map(|e| e.seq);
    assert_eq!(saved(), None);
    save(&a, "outlast:session", "{}");
    assert_eq!(saved(), None, "nobody's agent saved it");
    let draft = save(&a, "draft", "one");
    save(&a, "outlast:session:other", "{}");
    // More entries than one look goes back.
    (0..300).for_each(|_| drop(a.ask(a.turn(None)).unwrap()));
    assert_eq!(saved(), Some(draft));
    let nameless = save(&a, "", "two");
    assert_eq!(saved(), Some(nameless));
}

pub fn a_checkpoint_says_what_the_run_had_used_by_then(s: &Stage) {
    let a = s.process("p").claim(s.run("r").create());
    let used = |seq: Seq| -> Used {
        let about = s.store().payload(a.run, seq, Role::About).unwrap().unwrap();
        serde_json::from_slice(&about.decode().unwrap()).unwrap()
    };
    let first = save(&a, "draft", "one");
    assert_eq!((used(first).tokens, used(first).loops), (0, 0));
    a.ask(a.turn(None)).unwrap();
    a.buys("x", 5);
    let second = save(&a, "draft", "two");
    let spent = s.envelope(a.run).spent;
    assert_eq!((used(second).cost_nano_usd, used(second).tokens), (spent.cost(), spent.tokens()));
    assert_eq!(used(second).loops, 1);
    assert!(spent.tokens() > 0);
    a.ask(a.turn(None)).unwrap();
    assert_eq!(used(second).loops, 1, "what came later is not in it");
}
