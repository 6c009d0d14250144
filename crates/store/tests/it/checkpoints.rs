//! Checkpoints: the newest of a name counts.

use outlast_core::{
    engine::{checkpoint::Checkpoint, claim::Claim},
    id::Seq,
    journal::{Kind, Role},
    op::Then,
    payload::Payload,
    status::Status,
    unit::Unit,
};

use crate::{agent::*, stage::Stage};

fn save(agent: &Agent, name: &str, value: &str) -> Seq {
    let (actor, slot, value) = (agent.actor(), agent.slot, Payload::encode(value.as_bytes()));
    agent.ask(Checkpoint { actor, slot, name: name.into(), value }).unwrap()
}

fn newest(s: &Stage, agent: &Agent, name: &str) -> Option<String> {
    let entry = s.store().newest(agent.run, Kind::Checkpoint, name).unwrap()?;
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
