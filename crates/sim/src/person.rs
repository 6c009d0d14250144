//! Simulated person: gives orders to a run of their own, in any order and with any mistake, so that every status and
//! every error of the engine is met.

use outlast_core::{
    engine::{
        Actor, Asker, BeginStep, Change, Claim, ClaimItem, Close, DecideApproval, DeclareDead, EndAttempt,
        Enter, Fork, Hold, NextTry, Op, Put, Raise, RaiseBudget, Record, RemoveBudget, Reopen,
        RequestApproval, ResetItem, ResolveStep, Retain, Settle, Snapshot, Start, Tell, Word,
        run::end_attempt::Then,
    },
    envelope::{Limits, PerUnit, Unit, budget::Name as BudgetName},
    journal::{ApprovalId, Entry, Kind, OnChange, Opening, Payload, State, iteration_scope},
    run::{Exit, Origin, Spec},
    state::{Name, Position, Retention},
    words::{AttemptNo, Digest, InstanceNo, RunId, RunNo, Seq, Slot},
};

use crate::{Outside, Runs};

/// Draws the next order, given through the process with this instance.
pub fn order(runs: Runs, instance: InstanceNo, out: &mut Outside) -> Op {
    let rng = &out.engine.rng;
    let (run, slot) = (runs.own, Slot::DRIVER);
    let newest = out.engine.disk.inspect(|t, _| t.runs.get(&run).map_or(0, |r| r.next_attempt.0 - 1));
    let entries = out.engine.disk.inspect(|t, _| t.runs.get(&run).map_or(1, |r| r.next_seq.0));
    let attempt = AttemptNo(if rng.chance(80) { newest } else { rng.below(3) as i64 });
    let actor = Actor { run, attempt, instance };
    let begun = out.engine.disk.inspect(|t, _| {
        let open = |e: &&Entry| e.kind == Kind::Step && e.state == State::Open;
        t.entries_of(run).rev().find(open).map(|e| e.seq)
    });
    let any = Seq(rng.between(0, entries as u64 + 1) as i64);
    let seq = begun.filter(|_| rng.chance(50)).unwrap_or(any);
    let (scope, key) = (iteration_scope(0), "p".to_owned());
    let value = Payload::encode(format!("{key}#0").as_bytes());
    let none = Limits::default;
    match rng.below(32) {
        0..=4 => {
            Claim { run, slot, instance, label: None, fresh: rng.chance(30), restart: rng.chance(30) }.into()
        }
        5..=8 => {
            let until = out.engine.now().plus_ms(rng.between(1, 60_000) as i64);
            let then = match rng.below(9) {
                0 => Then::Restart,
                1 | 7 => Then::Sleep { until, why: None },
                2 => Then::Wait,
                3 => Then::Interrupt { by_person: rng.chance(50) },
                4 => Then::Complete,
                5 | 8 => Then::Fail("simulated".to_owned()),
                _ => Then::Turn,
            };
            EndAttempt { run, attempt, instance, exit: Exit::default(), active_ms: 0, then }.into()
        }
        9..=12 => {
            let word = match rng.below(10) {
                0..=2 => Word::Stop,
                3 => Word::Cancel { reason: None },
                4 => Word::Complete,
                5..=6 => Word::Wake,
                _ => Word::Resume { diverged: None },
            };
            Tell { run: if rng.chance(90) { run } else { RunNo(99) }, word }.into()
        }
        13..=14 => {
            let mut add = none();
            let amount = if rng.chance(80) { 3 } else { -10 };
            add[Unit::Calls] = out.engine.disk.inspect(|t, _| {
                let envelope = t.runs.get(&run).map(|r| r.envelope())?;
                t.envelopes.get(&envelope)?.limits[Unit::Calls].map(|_| amount)
            });
            let mut set = none();
            set[Unit::WallMs] = rng.chance(30).then(|| rng.between(0, 200_000) as i64);
            Raise { run, add, set, lift: PerUnit::default() }.into()
        }
        15 => Reopen { run: if rng.chance(70) { run } else { runs.agents } }.into(),
        16 => Hold { run, instance }.into(),
        17 => BeginStep {
            actor,
            slot,
            scope,
            key,
            within: rng.chance(40).then_some(seq),
            retries: false,
            at_most_once: rng.chance(30),
        }
        .into(),
        18 => NextTry { actor, slot, opening: opening(out, run, seq, instance) }.into(),
        19 => {
            let changes = Vec::new();
            Record {
                opening: opening(out, run, seq, instance),
                value,
                failed: rng.chance(30),
                again: false,
                changes,
            }
            .into()
        }
        20 => {
            let seen = rng.chance(50).then_some(instance);
            ResolveStep { run, scope, key, seen, by: None, value, failed: rng.chance(50) }.into()
        }
        21 => {
            let key = if rng.chance(50) { "i".to_owned() } else { key };
            ResetItem { run: if rng.chance(80) { run } else { runs.agents }, key, reuse_answers: true }.into()
        }
        22 => ClaimItem {
            actor: if rng.chance(80) { actor } else { Actor { run: runs.agents, ..actor } },
            slot,
            key: "i".to_owned(),
            index: 0,
            content: None,
            version: None,
            on_change: OnChange::Rerun,
            on_version: OnChange::Keep,
            alone: true,
        }
        .into(),
        23 => {
            let name = if rng.chance(50) { "point" } else { "no point" };
            let id = RunId::new("person").unwrap_or_else(|e| panic!("an id of a scene: {e:?}"));
            Snapshot { run, id, name: name.to_owned() }.into()
        }
        24 => {
            let id = out.fresh("fork").replace('#', "-");
            let id = RunId::new(&id).unwrap_or_else(|e| panic!("an id of a scene: {e:?}"));
            let origin = Origin { run, seq, at: out.engine.now() };
            let spec = Spec { job: Some("job".to_owned()), ..Spec::default() };
            Fork {
                id,
                origin,
                limits: none(),
                name: None,
                spec,
                counts: Default::default(),
                state: Vec::new(),
            }
            .into()
        }
        25 => {
            let namespace = if rng.chance(50) { "shared".to_owned() } else { out.namespace_of(runs.agents) };
            let mut change = Change::set(Name::new(namespace, "", "s0"), b"s0#0");
            change.unchanged_since = Some(Position(0));
            let actor = Some((actor, slot)).filter(|_| rng.chance(80));
            Put { actor, changes: vec![change], transaction: None }.into()
        }
        26 => {
            let keep = Retention::Last(rng.below(2) as i64 * 50);
            Retain { actor: None, namespace: "kept".to_owned(), keep }.into()
        }
        27 => {
            let name = BudgetName::new(if rng.chance(70) { "team" } else { "nobodys" });
            let name = name.unwrap_or_else(|e| panic!("a name of a scene: {e:?}"));
            match name.as_str() == "team" || rng.chance(50) {
                true => RaiseBudget { name, add: none() }.into(),
                false => RemoveBudget { name }.into(),
            }
        }
        28..=29 => {
            let id = ApprovalId { run, seq };
            let digest = rng.chance(20).then(|| Digest::of(b"other"));
            let approve = rng.chance(50);
            DecideApproval { id, digest, approve, reason: None, by: "p".to_owned() }.into()
        }
        30 => RequestApproval {
            asker: Asker::Attempt { actor, slot },
            key: Some(key),
            tool: if rng.chance(90) { "rm".to_owned() } else { String::new() },
            side_effect: None,
            arguments: Payload::encode(if rng.chance(70) { b"{}" } else { b"[]" }),
            expires_ms: 20_000,
        }
        .into(),
        _ => misuse(runs, instance, seq, attempt, out),
    }
}

/// Returns the opening of an entry, as if `instance` had it.
fn opening(out: &Outside, run: RunNo, seq: Seq, instance: InstanceNo) -> Opening {
    let op = out.engine.disk.inspect(|t, _| t.entries.get(&(run, seq)).map(|e| e.opened_by));
    Opening { run, seq, instance, op: op.unwrap_or_default() }
}

/// Draws an order that the engine refuses.
fn misuse(runs: Runs, instance: InstanceNo, seq: Seq, attempt: AttemptNo, out: &Outside) -> Op {
    let run = runs.own;
    let rng = &out.engine.rng;
    match rng.below(5) {
        0 => {
            let mut limits = Limits::default();
            limits[Unit::Calls] = Some(-1);
            let id = RunId::new("negative").unwrap_or_else(|e| panic!("an id of a scene: {e:?}"));
            Start { limits, ..Start::new(id) }.into()
        }
        1 => DeclareDead { instance, heartbeat_seen: -1, left: false, heir: None }.into(),
        2 => Enter { run, label: Some("p".to_owned()), instance }.into(),
        3 => {
            Claim { run: RunNo(99), slot: Slot::DRIVER, instance, label: None, fresh: false, restart: false }
                .into()
        }
        _ => Settle {
            opening: opening(out, run, seq, instance),
            attempt,
            close: Close::Unknown,
            ..Settle::default()
        }
        .into(),
    }
}
