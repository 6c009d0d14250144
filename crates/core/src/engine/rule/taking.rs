//! Taking: which connection receives an answer, as it stands in the store for the processes of all servers.

use crate::{
    engine::{actor::Actor, loaded::Loaded, rule::guard},
    journal::{Entry, Taker},
    words::id::{InstanceNo, RunNo, Seq},
};

/// Returns whether a connection of another live process receives the entry's answer for the actor's attempt. What
/// connections of its own process receive, a process knows without a commit (`Admit::taken`).
pub fn is_taken_elsewhere(l: &Loaded, e: &Entry, actor: &Actor) -> bool {
    e.taken.is_some_and(|t| {
        t.attempt == actor.attempt && t.instance != actor.instance && guard::lives(l, Some(t.instance))
    })
}

/// Notes that a connection of the actor's process receives the answer of an entry. `counts`: whether it is one of the
/// attempt's untaken answers. Needs the entry and the attempt.
pub fn take(l: &mut Loaded, actor: &Actor, seq: Seq, connection: u64, counts: bool) {
    let (attempt, instance) = (actor.attempt, actor.instance);
    give_back(l, actor.run, seq, |t| t.attempt == attempt);
    if let Some(e) = l.entry_mut(actor.run, seq) {
        e.taken = Some(Taker { attempt, instance, connection, counted: counts });
    }
    if counts && let Some(a) = l.attempt_mut(actor.run, attempt) {
        a.receives(instance, 1);
    }
}

/// Notes that the entry's taker no longer receives the answer, if it is the one that `is_taker` knows. Needs the entry and
/// the taker's attempt.
pub fn give_back(l: &mut Loaded, run: RunNo, seq: Seq, is_taker: impl Fn(&Taker) -> bool) {
    let Some(taker) = l.entry(run, seq).and_then(|e| e.taken).filter(is_taker) else { return };
    if let Some(e) = l.entry_mut(run, seq) {
        e.taken = None;
    }
    if taker.counted
        && let Some(a) = l.attempt_mut(run, taker.attempt)
    {
        a.receives(taker.instance, -1);
    }
}

/// Returns the number of untaken answers of the actor's attempt that connections of live processes are receiving.
pub fn on_their_way(l: &Loaded, actor: &Actor) -> i64 {
    let receiving: &[(InstanceNo, i64)] =
        l.attempt(actor.run, actor.attempt).map_or(&[], |a| a.receiving.as_slice());
    receiving.iter().filter(|(no, _)| guard::lives(l, Some(*no))).map(|(_, count)| count).sum()
}
