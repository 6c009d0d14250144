//! Busy waiting at the proxy: judges each call before it asks for admission, and holds or refuses it where its run asks
//! for that.
//!
//! A held call waits here, outside of every queue: no other call of its run stands behind it. A client that leaves drops
//! it. What it waits for is seen in two ways: a process group of the agent's that was there when the hold began is gone,
//! or another conversation of the run has come to its end.

use std::{collections::BTreeSet, time::Duration};

use outlast_core::{
    call::{
        Refused,
        busy_waiting::{Look, Streak},
    },
    engine::Halt,
    envelope,
    run::NoProgress,
    store::{Ask as _, Durability},
    words::{Digest, Seq},
};

use super::{
    call::{Call, Judged},
    config::{Groups, Seen},
    host::Host,
};
use crate::{
    dialect::{conversation, talk::Talk},
    wire::refuse::Refusal,
};

/// Judges a call, and holds it while it may wait. Errors: the refusal of a run that is halted for it.
pub async fn enter(host: &Host, call: &mut Call) -> Result<(), Refusal> {
    // Requests of the shared run belong to no one conversation, and a retry was judged before.
    if call.seat.shared || call.retry_count > 0 {
        return Ok(());
    }
    let Some(judged) = judge(host, call) else { return Ok(()) };
    let (key, streak) = (judged.conversation, judged.streak.clone());
    call.judged = Some(judged);
    if streak.is_news() {
        host.saw(Seen::Waits { calls: streak.waits, name: streak.name.clone() });
    }
    match call.seat.no_progress {
        NoProgress::Warn => Ok(()),
        NoProgress::Hold => {
            hold(host, call, key, &streak).await;
            Ok(())
        }
        NoProgress::Halt => halt(host, call, &streak).await,
    }
}

fn judge(host: &Host, call: &Call) -> Option<Judged> {
    let talk = Talk::read(&call.body)?;
    let (attempt, key, now) = (call.seat.attempt, talk.key(), host.clock.now());
    let memory = host.memories.of(call.seat.run);
    let before = memory.lock().conversations.items(attempt, key);
    // What a conversation says first is new.
    let turn = before.map_or_else(Default::default, |before| talk.since(before));
    let streak = memory.lock().conversations.judge(attempt, key, &turn, now);
    Some(Judged { conversation: key, items: talk.size(), streak })
}

/// Notes that a call has left, as entry `seq`.
pub fn left(host: &Host, call: &Call, seq: Seq) {
    let memory = host.memories.of(call.seat.run);
    let mut memory = memory.lock();
    match call.judged.clone() {
        Some(Judged { conversation, items, streak }) => {
            if streak.waits > 0 {
                host.metrics.waited();
            }
            memory.conversations.left(call.seat.attempt, conversation, items, streak, seq);
        }
        None => memory.conversations.stirs(),
    }
}

/// Notes an answer. An answer without a tool call ends its conversation, which another conversation may wait for.
pub fn answered(host: &Host, call: &Call, body: impl FnOnce() -> Vec<u8>) {
    let Some(judged) = call.judged.as_ref().filter(|_| call.seat.no_progress == NoProgress::Hold) else {
        return;
    };
    if conversation::called(&body()).is_empty() {
        host.memories.of(call.seat.run).lock().conversations.ended(judged.conversation);
    }
}

async fn hold(host: &Host, call: &Call, key: Digest, streak: &Streak) {
    if !streak.wants_look() {
        return;
    }
    let groups = host.config.groups.clone();
    let memory = host.memories.of(call.seat.run);
    let look = async || {
        let groups = listed(groups.clone()).await;
        Look { groups, ends: memory.lock().conversations.ends_of_others(key) }
    };
    let (began, now) = (look().await, host.clock.now());
    let held = memory.lock().conversations.hold(streak, call.digest, call.names_patience_ms, began, now);
    let Some(held) = held else { return };
    host.saw(Seen::Held { calls: streak.waits, ms: held.ms, name: streak.name.clone() });
    host.metrics.held();
    let since_ms = host.clock.monotonic_ms();
    while !host.is_draining() {
        let held_ms = host.clock.monotonic_ms().saturating_sub(since_ms);
        if held.is_over(held_ms, &look().await) {
            break;
        }
        let left = Duration::from_millis(held.ms.saturating_sub(held_ms));
        tokio::time::sleep(left.min(host.config.look_pause)).await;
    }
}

async fn listed(groups: Option<Groups>) -> Option<BTreeSet<u32>> {
    let listed = tokio::task::spawn_blocking(move || groups.map(|groups| groups())).await;
    listed.ok().flatten()?.ok()
}

async fn halt(host: &Host, call: &Call, streak: &Streak) -> Result<(), Refusal> {
    let Some(evidence) = streak.evidence() else { return Ok(()) };
    let refusal = envelope::Refusal::no_progress(evidence, host.clock.now());
    host.store.ask(Halt { run: call.seat.run, refusal: refusal.clone() }, Durability::Synced).await?;
    Err(Refusal::of(Refused::Budget(refusal), call.seat.id.as_str()))
}
